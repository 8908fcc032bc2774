"""HIP's compiler, headers and libraries, wherever they are: what sources of kernels are compiled with.

    command = HipToolchain().command(["gfx942"], Path("kernels.hip"), Path("kernels.so"), "-O3")
    subprocess.run(command, check=True)

ROCM_PATH names an installed ROCm 7. Without it, what scripts/rocm_toolchain.py has unpacked in build/.rocm is taken.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from simulator.faults import UnsupportedError

UNPACKED = Path(__file__).resolve().parents[2] / "build" / ".rocm" / "usr"


class HipToolchain:
    """The compiler is ROCm's own, or clang++-22. Raises UnsupportedError with what is missing."""

    def __init__(self):
        installed = os.environ.get("ROCM_PATH")
        self.root = Path(installed) if installed else UNPACKED
        self.include = self.root / "include"
        if not (self.include / "hip" / "hip_version.h").is_file():
            raise UnsupportedError(f"{self.include}: no headers of HIP; ROCM_PATH names an installed ROCm")
        own = [str(path) for path in self.root.glob("l*/llvm/bin/clang++")]
        self.clang = next((path for path in [*own, *map(shutil.which, ("clang++-22", "clang++"))] if path), None)
        if self.clang is None:
            raise UnsupportedError("clang++-22 is missing")
        self.libraries = self._find("libamdhip64.so.7", "lib*/", "lib/*/").parent
        self.device_libraries = self._find("ockl.bc", "**/amdgcn/bitcode/").parent

    def _find(self, name: str, *folders: str) -> Path:
        for folder in folders:
            for path in sorted(self.root.glob(f"{folder}{name}")):
                return path
        raise UnsupportedError(f"{self.root}: holds no {name}")

    def command(self, archs: Iterable[str], source: Path, out: Path, *flags: str) -> list[str]:
        """What compiles a HIP source to a shared library, with code objects for these architectures."""
        return [
            self.clang, "-x", "hip", *(f"--offload-arch={arch}" for arch in archs), f"--rocm-path={self.root}",
            f"--rocm-device-lib-path={self.device_libraries}", f"-isystem{self.include}", "-std=c++20", "-fPIC",
            "-shared", *flags, str(source), "-o", str(out), "-fuse-ld=lld", f"-L{self.libraries}",
            "-l:libamdhip64.so.7",
        ]  # fmt: skip
