"""Loads this repository's own build through `kernels.get_kernel`, as a user loads it from the Hub."""

import os
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
REPO_ID = "rocm-fp8-kernels/rocm-fp8-kernels"
VERSION = 1


def use_local_build() -> None:
    """Point LOCAL_KERNELS at this repository, unless the user already points it elsewhere."""
    entries = [e for e in os.environ.get("LOCAL_KERNELS", "").split(":") if e]
    if not any(e.startswith(f"{REPO_ID}=") for e in entries):
        os.environ["LOCAL_KERNELS"] = ":".join([*entries, f"{REPO_ID}={ROOT}"])


def default_backend() -> str | None:
    """`cpu` where torch finds no GPU: a CUDA or ROCm build of torch alone would make `kernels` look for a GPU
    variant. None, `kernels`' own choice, otherwise."""
    import torch

    return None if torch.cuda.is_available() else "cpu"


def load_kernel(backend: str | None = None) -> ModuleType:
    """The package, from build/ (scripts/build.py makes it)."""
    from kernels import get_kernel

    use_local_build()
    return get_kernel(REPO_ID, version=VERSION, backend=backend or default_backend())
