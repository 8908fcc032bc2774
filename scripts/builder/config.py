"""build.toml, and the identity of a build."""

import hashlib
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


class BuildError(Exception):
    """One line (or a compiler's own words) that says why there is no build."""


@dataclass(frozen=True)
class KernelSection:
    """A [kernel.NAME] section: sources compiled with flags of their own."""

    name: str
    backend: str
    src: list[str]
    flags: dict[str, list[str]] = field(default_factory=dict)  # "cxx-flags", "cuda-flags", "hip-flags"
    archs: list[str] = field(default_factory=list)  # "rocm-archs" or "cuda-capabilities"


@dataclass(frozen=True)
class BuildConfig:
    root: Path
    table: dict
    only: tuple[str, ...] = ()  # of the sections' architectures those that are built; none named: all

    @property
    def name(self) -> str:
        return self.table["general"]["name"]

    @property
    def python_name(self) -> str:
        return self.name.replace("-", "_")

    @property
    def backends(self) -> list[str]:
        return self.table["general"]["backends"]

    @property
    def repo_id(self) -> str:
        return self.table["general"]["hub"]["repo-id"]

    @property
    def torch_sources(self) -> list[str]:
        return self.table["torch"]["src"]

    def stable_abi(self, backend: str) -> tuple[int, int]:
        """(major, minor) of the torch whose stable ABI the backend is built against."""
        version = self.table["torch"].get("stable-abi", {}).get(backend)
        if version is None:
            raise BuildError(f"build.toml: [torch.stable-abi] has no entry for {backend!r}")
        major, minor = version.split(".")
        return int(major), int(minor)

    def sections(self, backend: str) -> list[KernelSection]:
        return [
            KernelSection(
                name=name,
                backend=backend,
                src=section["src"],
                flags={key: value for key, value in section.items() if key.endswith("-flags")},
                archs=[
                    arch
                    for arch in section.get("rocm-archs", section.get("cuda-capabilities", []))
                    if not self.only or arch in self.only
                ],
            )
            for name, section in self.table.get("kernel", {}).items()
            if section["backend"] == backend
        ]

    @property
    def all_sections(self) -> list[KernelSection]:
        return [section for backend in self.backends for section in self.sections(backend)]

    @property
    def all_sources(self) -> list[str]:
        return [*self.torch_sources, *(source for section in self.all_sections for source in section.src)]

    @cached_property
    def unique_id(self) -> str:
        """As kernel-builder names a build: the git tree's short hash, `_dirty` with uncommitted changes to
        tracked files. Outside git, a hash of the sources (kernel-builder takes a random number)."""

        def git(*args: str) -> str:
            return subprocess.run(
                ["git", "-C", str(self.root), *args], check=True, capture_output=True, text=True
            ).stdout.strip()

        try:
            tree = git("rev-parse", "HEAD^{tree}")[:7]
            dirty = git("status", "--porcelain", "--untracked-files=no", "--", str(self.root))
            return f"{tree}_dirty" if dirty else tree
        except (OSError, subprocess.CalledProcessError):
            digest = hashlib.sha256()
            for name in sorted(set(self.all_sources)):
                digest.update((self.root / name).read_bytes())
            return digest.hexdigest()[:7]

    def ops_name(self, backend: str) -> str:
        """Name of the library, of its Python module and of its torch.ops namespace."""
        return f"_{self.python_name}_{backend}_{self.unique_id}"


def read_config(root: Path, only: Sequence[str] = ()) -> BuildConfig:
    """build.toml of `root`, validated by kernels' own parser. `only`: the architectures to build, of those it names."""
    root = root.resolve()
    path = root / "build.toml"
    if not path.is_file():
        raise BuildError(f"{path}: no such file")
    try:
        from kernels._rust import Build
    except ImportError:
        raise BuildError("the Python package `kernels` is missing: pip install -r requirements.txt") from None
    try:
        Build.open(str(root))
        table = tomllib.loads(path.read_text())
    except Exception as error:
        raise BuildError(f"{path}: {error}") from None
    known = {arch for each in BuildConfig(root, table).all_sections for arch in each.archs}
    if unknown := sorted(set(only) - known):
        raise BuildError(f"{path}: names no architecture {', '.join(unknown)} (there are: {', '.join(sorted(known))})")
    config = BuildConfig(root, table, tuple(only))
    missing = [name for name in config.all_sources if not (root / name).is_file()]
    if missing:
        raise BuildError(f"{path}: names files that do not exist: {', '.join(missing)}")
    return config
