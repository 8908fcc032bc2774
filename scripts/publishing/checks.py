"""What must hold of a variant before it is published, read from its files: nothing of it is imported or run."""

import shutil
import subprocess
import sys
from pathlib import Path

from builder import BuildConfig

SCRIPTS = Path(__file__).resolve().parents[1]
# As kernel-builder's check-abi asks.
MANYLINUX, PYTHON_ABI = "manylinux_2_28", "3.9"


def variants_in(folder: Path) -> list[Path]:
    """The variants in a folder as kernel-builder leaves it (build/ or result/), by name."""
    from kernels.variants import get_variants_local

    return sorted(folder / variant.variant_str for variant in get_variants_local(folder))


def problems_of(config: BuildConfig, variants: list[Path], *, allow_dirty: bool = False) -> list[str]:
    """One line a problem; none: the variants can be published together."""
    found = [f"{v.name}: {line}" for v in variants for line in variant_problems(config, v, allow_dirty)]
    return found or same_python(variants)


def variant_problems(config: BuildConfig, variant: Path, allow_dirty: bool) -> list[str]:
    from kernels._rust import Digest, DigestAlgorithm, DigestValidationError, Metadata
    from kernels.variants import parse_variant

    try:
        metadata = Metadata.read_from_file(str(variant / "metadata.json"))
    except Exception as error:
        return [f"metadata.json: {error}"]
    found = []
    general = config.table["general"]
    if (str(metadata.name), metadata.version) != (config.name, general["version"]):
        found.append(f"is {metadata.name} {metadata.version}, build.toml says {config.name} {general['version']}")
    backend = parse_variant(variant.name).arch.backend.name
    if str(metadata.backend.backend_type) != backend:
        found.append(f"metadata.json says {metadata.backend.backend_type}, the folder's name {backend}")
    if metadata.id.endswith("_dirty") and not allow_dirty:
        found.append("was built with uncommitted changes")
    if metadata.digest is None:
        found.append("metadata.json has no digest")
    else:
        try:
            metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))
        except DigestValidationError as error:
            found += [f"not as in the digest: {violation}" for violation in error.violations]
    libraries = sorted(path.name for path in variant.glob("*.so"))
    if libraries != [f"{metadata.id}.abi3.so"]:
        return [*found, f"has the libraries {libraries}, not {metadata.id}.abi3.so alone"]
    if f"torch.ops.{metadata.id}\n" not in (variant / "_ops.py").read_text():
        found.append(f"_ops.py is not of {metadata.id}")
    library = variant / libraries[0]
    return found + abi_problems(library) + (machine_code_problems(library) if backend == "rocm" else [])


def abi_problems(library: Path) -> list[str]:
    """Symbols that an older system, another Python or another torch lacks."""
    from kernel_abi_check import ObjectFile

    try:
        file = ObjectFile(str(library))
        violations = file.check_manylinux(MANYLINUX) + file.check_python_abi(PYTHON_ABI)
    except Exception as error:
        return [f"{library.name}: {error}"]
    return [f"{library.name}: {violation}" for violation in violations]


def machine_code_problems(library: Path) -> list[str]:
    """The gates on the ROCm kernels."""
    if not shutil.which("clang++-22"):
        return ["its machine code was not checked: python scripts/rocm_toolchain.py brings the tools"]
    command = [sys.executable, str(SCRIPTS / "machine_code.py"), "--check", "--library", str(library)]
    run = subprocess.run(command, capture_output=True, text=True)
    return [] if run.returncode == 0 else run.stderr.strip().splitlines()


def same_python(variants: list[Path]) -> list[str]:
    """All variants are of one source: their Python files, but for _ops.py, are the same bytes."""

    def python(variant: Path) -> dict[str, bytes]:
        files = {str(path.relative_to(variant)): path for path in variant.rglob("*.py")}
        return {name: path.read_bytes() for name, path in files.items() if name != "_ops.py"}

    first = python(variants[0]) if variants else {}
    return [
        f"{variant.name}: other Python files than {variants[0].name}'s: of another source"
        for variant in variants[1:]
        if python(variant) != first
    ]
