"""What the device and the build decide: the FP8 format, the backend, the environment; and how often operators ran."""

import functools

import torch

from .arguments import FP8, result
from .calls import OPERATORS, function_of, ops


@functools.cache
def _fp8_dtype_of(device_type: str, index: int | None) -> torch.dtype:
    if device_type != "cuda" or torch.version.hip is None:
        return torch.float8_e4m3fn
    # The architecture of the device at hand, not of the build: one binary serves several.
    gfx942 = torch.cuda.get_device_properties(index).gcnArchName.startswith("gfx942")
    return torch.float8_e4m3fnuz if gfx942 else torch.float8_e4m3fn


# A device does not change its architecture: torch.compile need not look inside.
@torch.compiler.assume_constant_result
def fp8_dtype(device: torch.device | str) -> torch.dtype:
    """The FP8 format of a device: float8_e4m3fnuz on gfx942 (MI300X), float8_e4m3fn elsewhere."""
    if not isinstance(device, torch.device):
        device = torch.device(device)
    return _fp8_dtype_of(device.type, device.index)


def fp8_result(
    operator: str, x: torch.Tensor, width: int, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    """`out`, or what an operator without one returns of x: rows of `width` values, contiguous."""

    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        dtype = dtype or fp8_dtype(x.device)
        if width == x.shape[-1]:
            return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)  # 1 us less than torch.empty
        return x.new_empty((*x.shape[:-1], width), dtype=dtype)

    return result(operator, out, out_dtype, FP8, allocate)


def backend() -> str:
    """What this build is for: "cpu", "cuda" or "rocm"."""
    # kernel-builder writes it into the namespace's name: _rocm_fp8_kernels_<backend>_<id>.
    return ops.name.removeprefix("_rocm_fp8_kernels_").split("_")[0]


def reread_environment() -> None:
    """Reads the ROCM_FP8_KERNELS_* variables anew. Otherwise they are read once a process, at the first launch.

    For tests and tuning. ROCM_FP8_KERNELS_CPU is not read again.
    """
    ops.reread_environment()


def call_counts() -> dict[str, int]:
    """Name of an operator of this module -> its calls in this process since the package was loaded.

    Counted where an operator is launched, eager or from compiled code. A CUDA or HIP graph counts when it is captured,
    not when it is replayed. A refused call does not count. `quantize_fp8` counts both static and computed scales, GEMMs
    both kinds of weights.
    """
    counts: dict[str, int] = {}
    for name in OPERATORS:
        counts[function_of(name)] = counts.get(function_of(name), 0) + ops.call_count(name)
    return counts
