"""The kernels, as `kernels.get_kernel` gives them for vLLM's platform. Fetched when this module is imported."""

from kernels import get_kernel
from vllm.platforms import current_platform

from . import KERNELS_VERSION, REPO_ID

__all__ = ["kernel"]

_backend = "cpu" if current_platform.is_cpu() else "rocm" if current_platform.is_rocm() else "cuda"
kernel = get_kernel(REPO_ID, version=KERNELS_VERSION, backend=_backend, trust_remote_code=True)
