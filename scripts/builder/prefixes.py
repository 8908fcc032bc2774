"""Where the scripts that bring cross-compilers put them, and where the builds look for them."""

from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"
ROCM_PREFIX = BUILD / ".rocm"
CUDA_PREFIX = BUILD / ".cuda"
CUDA_TOOLKIT = Path("nvidia") / "cu13"  # under CUDA_PREFIX
