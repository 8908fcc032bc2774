"""What test files share beside problems/: folders, the run's seed, marks for what needs a cross-compiler."""

import os
import random
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SEED_VARIABLE = "ROCM_FP8_TEST_SEED"
# In the environment, so that worker and child processes draw the same numbers.
SEED = int(os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**31))))


def full(*values):
    """A case that --full takes (tests/selection.py)."""
    return pytest.param(*values, marks=pytest.mark.full)


def need_stdlib() -> None:
    """A module whose tests read the standard library's sources, as the byte-level models do, says so."""
    from examples.byte_llama import corpus

    try:
        corpus.stdlib_folder()
    except FileNotFoundError as error:
        pytest.skip(str(error), allow_module_level=True)


# Where scripts/rocm_toolchain.py and scripts/cuda_toolchain.py unpack (scripts/builder/prefixes.py).
ROCM_HEADERS = ROOT / "build" / ".rocm" / "usr" / "include"
needs_rocm_toolchain = pytest.mark.skipif(
    not (ROCM_HEADERS / "hip" / "hip_version.h").is_file() or not shutil.which("clang++-22"),
    reason="python scripts/rocm_toolchain.py has not been run (.ci/run does)",
)
CUDA_TOOLKIT = ROOT / "build" / ".cuda" / "nvidia" / "cu13"
needs_cuda_toolchain = pytest.mark.skipif(
    not CUDA_TOOLKIT.is_dir(), reason="python scripts/cuda_toolchain.py has not been run (.ci/run does)"
)
