"""Loads this repository's own build through `kernels.get_kernel`, as a user loads it from the Hub. As a script: prints
which backend that is by default."""

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


def default_backend() -> str:
    """Of the GPU that torch finds, else `cpu`. `kernels` would choose by torch's build alone, with a GPU or without,
    and take the CPU's variant for a GPU whose own is missing."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return "rocm" if torch.version.hip else "cuda"


def load_kernel(backend: str | None = None) -> ModuleType:
    """The package, from build/ (scripts/build.py makes it)."""
    from kernels import get_kernel

    use_local_build()
    return get_kernel(REPO_ID, version=VERSION, backend=backend or default_backend())


if __name__ == "__main__":
    print(default_backend())
