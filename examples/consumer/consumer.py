"""A program whose kernel is locked: it runs one commit of rocm-fp8-kernels, fetched beforehand, without a network."""

import importlib.metadata
from pathlib import Path

import torch
from kernels import load_kernel


def lock_file() -> Path:
    """kernels.lock in this package's own metadata. `load_kernel(lockfile=None)` means to find it; in kernels 0.17.2 it
    looks in kernels' own metadata."""
    return next(Path(file.locate()) for file in importlib.metadata.files("consumer") if file.name == "kernels.lock")


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"  # "cuda" is an AMD GPU's device, too
    backend = "cpu" if device == "cpu" else None  # None: that of torch
    kernel = load_kernel("rocm-fp8-kernels/rocm-fp8-kernels", lockfile=lock_file(), backend=backend)
    x = torch.randn(4, 256, dtype=torch.bfloat16, device=device)
    q = kernel.swiglu_fp8(x, torch.tensor(0.02, device=device))
    print(q.dtype, tuple(q.shape))


if __name__ == "__main__":
    main()
