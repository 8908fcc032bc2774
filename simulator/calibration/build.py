"""Compiles Composable Kernel's instances for gfx942, as AITER does as far as this compiler knows the options.

`ck` is the folder of Debian's package libcomposable-kernel-dev (suite experimental), unpacked.
"""

import subprocess
from pathlib import Path

from simulator.calibration.pairs import Library
from simulator.host.toolchain import HipToolchain

OPTIONS = ("-O3", "-w", "-D__HIP_PLATFORM_AMD__=1")
# AITER's for Composable Kernel.
CK_OPTIONS = (
    "-DCK_ENABLE_FP8", "-DCK_ENABLE_INT8", "-DCK_ENABLE_BF16", "-DCK_USE_XDL",
    "-mllvm", "-amdgpu-early-inline-all=true", "-mllvm", "-amdgpu-function-calls=false",
    "-mllvm", "--lsr-drop-solution=1", "-mllvm", "-enable-post-misched=0",
)  # fmt: skip


def build(library: Library, ck: Path, folder: Path) -> Path:
    """The shared object; one that is there is taken as it is."""
    out = folder / f"{library.name}.so"
    if out.exists():
        return out
    folder.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".partial")
    flags = [f"-isystem{ck / 'usr' / 'include'}", *OPTIONS, *CK_OPTIONS, *library.flags]
    command = HipToolchain().command(["gfx942"], library.source, partial, *flags)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{library.name} does not compile:\n{done.stderr[-2000:]}")
    partial.rename(out)
    return out
