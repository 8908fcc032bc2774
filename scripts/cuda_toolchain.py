#!/usr/bin/env python3
"""Brings what cross-builds the CUDA variant on a machine without CUDA and without an NVIDIA GPU.

    python scripts/cuda_toolchain.py

With pip: nvcc, the runtime with its headers, and what takes machine code apart, into build/.cuda; nothing is
installed. A second call finds everything there. Where CUDA_HOME names an installed CUDA toolkit, that one is used and
nothing is fetched.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from builder.prefixes import CUDA_PREFIX as PREFIX
from builder.prefixes import CUDA_TOOLKIT as TOOLKIT

# The CUDA of the torch in requirements.txt: `kernels` loads the variant of torch's own minor version alone.
PACKAGES = [
    "cuda-toolkit[nvcc,cccl,crt,nvvm,cudart]==13.0.3",
    "nvidia-cuda-cuobjdump==13.*",  # 13.0 has none of its own
    "nvidia-cuda-nvdisasm==13.*",
]


class ToolchainError(Exception):
    """One line that says what is missing."""


def install(packages: list[str], target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--quiet"]
    run = subprocess.run([*command, "--target", str(target), *packages], capture_output=True, text=True)
    if run.returncode != 0:
        last = (run.stderr.strip() or run.stdout.strip() or "no message").splitlines()[-1]
        raise ToolchainError(f"pip failed: {last}")


def fetch(prefix: Path) -> None:
    """Installs beside `prefix` and renames: it appears whole or not at all."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=prefix.parent, prefix=".cuda-") as work:
        root = Path(work) / "root"
        install(PACKAGES, root)
        # CMake looks for the library without a version, and nvcc in lib64.
        (root / TOOLKIT / "lib" / "libcudart.so").symlink_to("libcudart.so.13")
        (root / TOOLKIT / "lib64").symlink_to("lib")
        os.rename(root, prefix)


def main() -> int:
    try:
        if os.environ.get("CUDA_HOME"):
            print(f"CUDA_HOME={os.environ['CUDA_HOME']} is used; nothing to fetch")
            return 0
        if not PREFIX.is_dir():
            fetch(PREFIX)
    except ToolchainError as error:
        print(f"cuda_toolchain.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cuda_toolchain.py: interrupted; nothing half-installed is left", file=sys.stderr)
        return 130
    print(PREFIX / TOOLKIT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
