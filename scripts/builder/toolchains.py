"""What differs between backends: compilers, flags, the variant's name, the architectures in its metadata.

A toolchain has `env_name` (the middle of the variant's name: cpu, rocm72, cu130), `archs(config)`, and the commands
`compile_command(section, source)` and `link_command()`.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from .config import BuildConfig, BuildError, KernelSection
from .prefixes import CUDA_PREFIX, CUDA_TOOLKIT, ROCM_PREFIX


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


def probe(compiler: str, flag: str) -> subprocess.CompletedProcess:
    """What the compiler makes of an empty source with that flag."""
    command = [compiler, flag, "-x", "c++", "-fsyntax-only", "-"]
    return subprocess.run(command, input="", capture_output=True, text=True)


def cxx_compiler() -> str:
    """$CXX, or g++ or clang++; must know C++20, as torch's headers need."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    for name in candidates:
        path = shutil.which(name)
        if path is None:
            continue
        tried = probe(path, "-std=c++20")
        if tried.returncode == 0:
            return path
        raise BuildError(f"{path} does not compile C++20; g++ 11 or clang++ 14 and later do:\n{tried.stderr.strip()}")
    raise BuildError(
        f"no C++ compiler ({', '.join(candidates)}): install g++ (Debian and Ubuntu: g++, Fedora: gcc-c++)"
    )


def not_unique(compiler: str) -> list[str]:
    """Two versions of the kernel in one process must not share static data, which GCC alone would make them do."""
    return [flag for flag in ["-fno-gnu-unique"] if probe(compiler, flag).returncode == 0]


CXX_ENDINGS = (".cpp", ".cc", ".cxx")

COMMON_FLAGS = ["-std=c++20", "-fPIC", "-DNDEBUG", "-fvisibility-inlines-hidden", "-Wall", "-Wextra"]


def shared_library_flags(torch_library: str) -> list[str]:
    """`torch_library` is named as needed although nothing of it is linked in: Python opens extension modules with
    RTLD_NOW | RTLD_LOCAL, and torch's own libraries are not in the global scope, so the stable ABI's functions
    are found only through such an entry. It is satisfied by the library that `import torch` has loaded,
    whichever version that is. libpython is not needed, its symbols come from the executable.

    libstdc++ is linked in, without its unused parts, some of which need a new glibc: the library must load where
    the compiler at hand is newer than the system (manylinux_2_28; see OLD_GLIBC_CPP)."""
    return [
        *("-shared", "-static-libstdc++", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", "-Wl,-z,relro"),
        *("-Wl,--no-as-needed", f"-L{torch_dir() / 'lib'}", f"-l:{torch_library}", "-Wl,--as-needed"),
        "-Wl,--allow-shlib-undefined",
    ]


def prefix_map(config: BuildConfig) -> str:
    """torch's checks put the source's name into their messages: as build.toml has it, not as this machine has."""
    return f"-fmacro-prefix-map={config.root}/="


class CpuToolchain:
    env_name = "cpu"
    defines = ["-DCPU_KERNEL"]

    def __init__(self, config: BuildConfig):
        self.cxx = cxx_compiler()
        self.prefix_map = prefix_map(config)
        self.unique = not_unique(self.cxx)

    def archs(self, config: BuildConfig) -> list[str] | None:
        return None

    # -Wno-uninitialized: GCC 12's own AVX-512 header trips it at every intrinsic.
    quiet = ["-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-unknown-warning-option"]

    def compile_command(self, section: KernelSection | None, source: str) -> list[str]:
        """The command for one source, without -c, -o and the dependency file."""
        if not source.endswith(CXX_ENDINGS):
            raise BuildError(f"build.toml: {source}: the cpu backend compiles .cpp files only")
        flags = section.flags.get("cxx-flags", []) if section else ["-O2"]
        return [self.cxx, *COMMON_FLAGS, *self.unique, *self.quiet, *self.defines, self.prefix_map, *flags]

    def link_command(self) -> list[str]:
        return [self.cxx, *shared_library_flags("libtorch_cpu.so")]


def all_archs(config: BuildConfig, backend: str) -> list[str]:
    return sorted({arch for section in config.sections(backend) for arch in section.archs})


class RocmToolchain:
    """clang for the architectures of each section's `rocm-archs`, HIP from ROCM_PATH or scripts/rocm_toolchain.py.

    Cross-compilation: neither a GPU nor torch's ROCm build is needed.
    """

    # As kernel-builder defines them.
    defines = ["-DROCM_KERNEL", "-DUSE_ROCM=1"]

    def __init__(self, config: BuildConfig):
        self.prefix_map = prefix_map(config)
        installed = os.environ.get("ROCM_PATH")
        self.root = Path(installed) if installed else ROCM_PREFIX / "usr"
        version = self.root / "include" / "hip" / "hip_version.h"
        if not version.is_file():
            raise BuildError(f"{version}: no such file; python scripts/rocm_toolchain.py fetches what ROCm builds need")
        numbers = dict(re.findall(r"#define HIP_VERSION_(MAJOR|MINOR) (\d+)", version.read_text()))
        self.env_name = f"rocm{numbers['MAJOR']}{numbers['MINOR']}"
        own = [str(path) for path in self.root.glob("l*/llvm/bin/clang++")]
        self.clang = next((path for path in [*own, *map(shutil.which, ("clang++-22", "clang++"))] if path), None)
        if self.clang is None:
            raise BuildError("clang++-22 is missing; python scripts/rocm_toolchain.py brings it")
        self.hip_library = self._find("libamdhip64.so.*", "lib*/", "lib/*/")
        self.device_libraries = self._find("ockl.bc", "**/amdgcn/bitcode/").parent

    def _find(self, name: str, *folders: str) -> Path:
        for folder in folders:
            for path in sorted(self.root.glob(f"{folder}{name}")):
                return path
        raise BuildError(f"{self.root}: holds no {name}")

    def archs(self, config: BuildConfig) -> list[str]:
        return all_archs(config, "rocm")

    def compile_command(self, section: KernelSection | None, source: str) -> list[str]:
        host = [self.clang, *COMMON_FLAGS, *self.defines, self.prefix_map]
        flags = section.flags if section else {}
        if source.endswith(CXX_ENDINGS):
            # HIP's headers say themselves that they are read on the host side of AMD's platform.
            include = [f"-isystem{self.root / 'include'}", "-D__HIP_PLATFORM_AMD__=1"]
            return [*host, *include, *flags.get("cxx-flags", ["-O2"])]
        if not source.endswith(".hip"):
            raise BuildError(f"build.toml: {source}: the rocm backend compiles .hip and .cpp files")
        if not section.archs:
            raise BuildError(f"build.toml: [kernel.{section.name}] needs rocm-archs")
        return [
            *(*host, "-x", "hip", *(f"--offload-arch={arch}" for arch in section.archs)),
            *(f"--rocm-path={self.root}", f"--rocm-device-lib-path={self.device_libraries}"),
            *(f"-isystem{self.root / 'include'}", *flags.get("hip-flags", ["-O3"])),
        ]

    def link_command(self) -> list[str]:
        # libtorch.so brings in whichever of libtorch_hip and libtorch_cpu there is, and with them the ABI's functions.
        hip = [f"-L{self.hip_library.parent}", "-l:libamdhip64.so." + self.env_name.removeprefix("rocm")[0]]
        return [self.clang, "-fuse-ld=lld", *shared_library_flags("libtorch.so"), *hip]


class CudaToolchain:
    """nvcc for each section's `cuda-capabilities`, from CUDA_HOME or scripts/cuda_toolchain.py; the host's compiler
    for the rest.

    Cross-compilation: neither a GPU nor its driver is needed.
    """

    # As kernel-builder defines them.
    defines = ["-DCUDA_KERNEL", "-DUSE_CUDA=1"]

    # -Wno-restrict: GCC 12 sees an overlap in std::string's own operator+.
    quiet = ["-Wno-restrict", "-Wno-unknown-warning-option"]

    def __init__(self, config: BuildConfig):
        self.root = self.toolkit()
        header, self.nvcc = self.root / "include" / "cuda_runtime_api.h", self.root / "bin" / "nvcc"
        for needed in (header, self.nvcc):
            if not needed.is_file():
                raise BuildError(
                    f"{needed}: no such file; python scripts/cuda_toolchain.py fetches what CUDA builds need"
                )
        version = int(re.search(r"#define CUDART_VERSION +(\d+)", header.read_text())[1])
        self.major = version // 1000
        self.env_name = f"cu{self.major}{version % 1000 // 10}"
        runtime = f"libcudart.so.{self.major}"
        folders = [self.root / name for name in ("lib", "lib64", "targets/x86_64-linux/lib")]
        self.library = next((folder for folder in folders if (folder / runtime).is_file()), None)
        if self.library is None:
            raise BuildError(f"{self.root}: holds no {runtime}")
        self.cxx = cxx_compiler()
        self.host = [*COMMON_FLAGS, *self.quiet, *not_unique(self.cxx), *self.defines, prefix_map(config)]
        # ninja runs a compiler a processor. Where there are more processors than sources, nvcc takes several
        # architectures at once.
        sources = sum(source.endswith(".cu") for section in config.sections("cuda") for source in section.src)
        self.threads = -(-len(os.sched_getaffinity(0)) // max(sources, 1))

    @staticmethod
    def toolkit() -> Path:
        """CUDA_HOME, or what scripts/cuda_toolchain.py fetched. nvcc, cuobjdump and nvdisasm are in its bin/."""
        installed = os.environ.get("CUDA_HOME")
        return Path(installed) if installed else CUDA_PREFIX / CUDA_TOOLKIT

    def archs(self, config: BuildConfig) -> list[str]:
        return all_archs(config, "cuda")

    def compile_command(self, section: KernelSection | None, source: str) -> list[str]:
        flags = section.flags if section else {}
        if source.endswith(CXX_ENDINGS):
            return [self.cxx, *self.host, f"-isystem{self.root / 'include'}", *flags.get("cxx-flags", ["-O2"])]
        if not source.endswith(".cu"):
            raise BuildError(f"build.toml: {source}: the cuda backend compiles .cu and .cpp files")
        if not section.archs:
            raise BuildError(f"build.toml: [kernel.{section.name}] needs cuda-capabilities")
        # nvcc has no flags of its own for these; it knows the standard and the macros.
        own = [flag for flag in self.host if flag.startswith(("-std=", "-D"))]
        return [
            *(str(self.nvcc), "-ccbin", self.cxx, *own),
            *(f"-Xcompiler={flag}" for flag in self.host if flag not in own),
            *(f"-gencode={target}" for arch in section.archs for target in code_of(arch)),
            *(f"--threads={min(self.threads, len(section.archs))}", *flags.get("cuda-flags", ["-O3"])),
        ]

    def link_command(self) -> list[str]:
        # The runtime is the one that torch has loaded; libtorch.so brings torch's libraries, as for ROCm.
        return [
            *(self.cxx, *shared_library_flags("libtorch.so")),
            # Before the objects that need it, where GNU ld would drop a library as not needed.
            *("-Wl,--no-as-needed", f"-L{self.library}", f"-l:libcudart.so.{self.major}", "-Wl,--as-needed"),
        ]


def code_of(capability: str) -> list[str]:
    """nvcc's code generation for one of `cuda-capabilities`: 9.0a is machine code, 9.0+PTX that and PTX, which
    drivers compile for later GPUs."""
    number = capability.removesuffix("+PTX").replace(".", "")
    targets = ["sm", "compute"] if capability.endswith("+PTX") else ["sm"]
    return [f"arch=compute_{number},code={target}_{number}" for target in targets]


TOOLCHAINS = {"cpu": CpuToolchain, "rocm": RocmToolchain, "cuda": CudaToolchain}
