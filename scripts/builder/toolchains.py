"""What differs between backends: compilers, flags, the variant's name, the architectures in its metadata.

A toolchain has `env_name` (the middle of the variant's name: cpu, cu130, rocm72), `archs(config)`,
`compile_rules()` (file ending -> ninja command), `defines` for the torch binding and `link_command`.
"""

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from .config import BuildConfig, BuildError, KernelSection


def torch_dir() -> Path:
    # Not imported: that takes seconds.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("the Python package `torch` is missing: pip install -r requirements.txt")
    return Path(spec.origin).parent


def python_include_dir() -> Path:
    path = Path(sysconfig.get_paths()["include"])
    if not (path / "Python.h").is_file():
        raise BuildError(
            f"{path}/Python.h is missing: install Python's headers"
            " (Debian and Ubuntu: python3-dev, Fedora: python3-devel)"
        )
    return path


def cxx_compiler() -> str:
    """$CXX, or g++ or clang++; must know C++20, as torch's headers need."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    for name in candidates:
        path = shutil.which(name)
        if path is None:
            continue
        probe = subprocess.run(
            [path, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"], input="", capture_output=True, text=True
        )
        if probe.returncode == 0:
            return path
        raise BuildError(f"{path} does not compile C++20; g++ 11 or clang++ 14 and later do:\n{probe.stderr.strip()}")
    raise BuildError(
        f"no C++ compiler ({', '.join(candidates)}): install g++ (Debian and Ubuntu: g++, Fedora: gcc-c++)"
    )


class CpuToolchain:
    env_name = "cpu"

    def __init__(self, config: BuildConfig):
        self.cxx = cxx_compiler()
        # torch's checks put the source's name into their messages: as build.toml has it, not as this machine has.
        self.prefix_map = f"-fmacro-prefix-map={config.root}/="

    def archs(self, config: BuildConfig) -> list[str] | None:
        return None

    # -fno-gnu-unique: two versions of the kernel in one process must not share static data.
    # -Wno-uninitialized: GCC 12's own AVX-512 header trips it at every intrinsic.
    common_flags = [
        *("-std=c++20", "-fPIC", "-DNDEBUG", "-DCPU_KERNEL", "-fno-gnu-unique", "-fvisibility-inlines-hidden"),
        *("-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-unknown-warning-option", "-Wno-maybe-uninitialized"),
    ]

    def compile_command(self, section: KernelSection | None, source: str) -> list[str]:
        """The command for one source, without -c, -o and the dependency file."""
        if not source.endswith((".cpp", ".cc", ".cxx")):
            raise BuildError(f"build.toml: {source}: the cpu backend compiles .cpp files only")
        flags = section.flags.get("cxx-flags", []) if section else ["-O2"]
        return [self.cxx, *self.common_flags, self.prefix_map, *flags]

    def link_command(self) -> list[str]:
        """libtorch_cpu is named as needed although nothing of it is linked in: Python opens extension modules with
        RTLD_NOW | RTLD_LOCAL, and torch's own libraries are not in the global scope, so the stable ABI's functions
        are found only through such an entry. It is satisfied by the library that `import torch` has loaded,
        whichever version that is. libpython is not needed, its symbols come from the executable.

        libstdc++ is linked in, without its unused parts, some of which need a new glibc: the library must load where
        the compiler at hand is newer than the system (manylinux_2_28; see OLD_GLIBC_CPP)."""
        return [
            *(self.cxx, "-shared", "-static-libstdc++", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", "-Wl,-z,relro"),
            *("-Wl,--no-as-needed", f"-L{torch_dir() / 'lib'}", "-l:libtorch_cpu.so", "-Wl,--as-needed"),
            "-Wl,--allow-shlib-undefined",
        ]


TOOLCHAINS = {"cpu": CpuToolchain}
