"""What a GPU benchmark runs on: the package's variant for this GPU, and what has to stand beside a figure."""

import datetime
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from kernels import get_local_kernel

from scripts.load import ROOT, load_kernel

# `kernels` takes no other minor version of ROCm or CUDA than that of torch.
MAKES_ONE = {
    "rocm": "python scripts/build.py --backend rocm makes one, ROCM_PATH naming a ROCm of that version",
    "cuda": "python scripts/build.py --backend cuda makes one, with what python scripts/cuda_toolchain.py brings or"
    " CUDA_HOME naming a CUDA of that version",
}


class Missing(Exception):
    """One line that says what is not there."""


@dataclass(frozen=True)
class Gpu:
    kernel: ModuleType
    device: torch.device
    arch: str  # gfx942, gfx950, sm_90
    environment: dict[str, str]

    @property
    def backend(self) -> str:
        return self.kernel.ops.backend()


def commit() -> str:
    """Of this repository, with "-dirty" where files differ from it."""
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def find_gpu() -> Gpu:
    """The current GPU and the variant that `kernels` picks for it; Missing without either."""
    runtime = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    if not torch.cuda.is_available():
        raise Missing(f"no GPU: torch {torch.__version__} ({runtime}) finds none")
    backend = "rocm" if torch.version.hip else "cuda"
    try:
        # By name: the CPU's variant, `kernels`' last resort, is none of this GPU's.
        kernel = load_kernel(backend)
    except (FileNotFoundError, ImportError, ValueError) as error:
        why = " ".join(str(error).split())
        lacks = f"no build of this package for torch {torch.__version__} ({runtime})"
        raise Missing(f"{lacks}; {MAKES_ONE[backend]}: {why}") from None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    name = properties.gcnArchName if torch.version.hip else f"sm_{properties.major}{properties.minor}"
    environment = {
        "GPU": properties.name,
        "architecture": name,
        "torch": torch.__version__,
        "runtime": runtime,
        "variant": Path(kernel.__file__).parent.name,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }
    return Gpu(kernel, torch.device("cuda"), name.split(":")[0], environment)


def random_numbers(device: torch.device, seed: int | None) -> torch.Generator:
    """A generator on the device, of a new seed for None; `initial_seed()` repeats it."""
    generator = torch.Generator(device)
    generator.manual_seed(generator.seed() % 2**32 if seed is None else seed)
    return generator


def load_build(folder: Path, backend: str) -> ModuleType:
    """The package from folder/build."""
    try:
        return get_local_kernel(folder.resolve(), backend=backend)
    except (FileNotFoundError, ImportError, RuntimeError, ValueError) as error:
        raise Missing(f"{folder}: {' '.join(str(error).split())}") from None


def load_builds(folders: list[Path], backend: str, taken: set[str]) -> dict[str, ModuleType]:
    """Them by the folders' names, which are to be the columns of a table beside those that are taken."""
    builds = {folder.resolve().name: load_build(folder, backend) for folder in folders}
    if len(builds) < len(folders) or builds.keys() & taken:
        raise Missing(f"folders of one name, or called {' or '.join(sorted(taken))}: a table could not tell them apart")
    return builds
