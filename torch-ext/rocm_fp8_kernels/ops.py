"""The operators' Python functions: allocate what was not given, call the kernel."""

import functools

import torch

from ._ops import ops
from .arguments import FP8, WIDE, check_dims, check_no_self_overlap, check_tensors, result, rows

# The most rows that one skinny_gemm takes.
SKINNY_GEMM_MAX_ROWS = 32


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
    device = torch.device(device)
    return _fp8_dtype_of(device.type, device.index)


def backend() -> str:
    """What this build is for: "cpu", "cuda" or "rocm"."""
    # kernel-builder writes it into the namespace's name: _rocm_fp8_kernels_<backend>_<id>.
    return ops.name.removeprefix("_rocm_fp8_kernels_").split("_")[0]


def reread_environment() -> None:
    """Reads the ROCM_FP8_KERNELS_* variables anew. Otherwise they are read once a process, at the first launch.

    For tests and tuning. ROCM_FP8_KERNELS_CPU is not read again.
    """
    ops.reread_environment()


def _fp8_result(
    operator: str, x: torch.Tensor, width: int, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        return torch.empty((*x.shape[:-1], width), dtype=dtype or fp8_dtype(x.device), device=x.device)

    return result(operator, out, out_dtype, FP8, allocate)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """RMSNorm, with the rounding points of transformers' LlamaRMSNorm.

        n = round(x / sqrt(mean(x^2) + epsilon)),  y = round(n * weight)

    Args:
        x: float16 or bfloat16 [..., d], last dimension contiguous, rows strided freely.
        weight: x's dtype or float32 [d].
        epsilon: added to the mean of squares.
        out: x's dtype [..., d], overlapping no input; allocated if None.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    check_tensors("rms_norm", x=x, weight=weight)
    out = result("rms_norm", out, None, (), lambda _: torch.empty(x.shape, dtype=x.dtype, device=x.device))
    ops.rms_norm(out, rows("rms_norm", "x", x, out=out), weight, epsilon)
    return out


def rms_norm_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """RMSNorm quantised to FP8: `fp8(rms_norm(x, weight, epsilon) / scale)`.

    Args:
        x: float16 or bfloat16 [..., d], last dimension contiguous, rows strided freely.
        weight: x's dtype or float32 [d].
        scale: float32, one element, on x's device: the dequantisation scale.
        epsilon: added to the mean of squares.
        out: FP8 [..., d], overlapping no input; allocated if None.
        out_dtype: torch.float8_e4m3fn or torch.float8_e4m3fnuz; the device's own (`fp8_dtype`) if None.

    Returns: out. Values beyond the format's largest saturate, NaN stays NaN.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: the kernel of "Creating custom kernels for the AMD MI300" (Hugging Face and AMD, 2025), with the
    mean (not the sum) of squares and the scale as divisor.
    """
    check_tensors("rms_norm_fp8", x=x, weight=weight, scale=scale)
    check_dims("rms_norm_fp8", "x", x, 1, "[..., d]")
    out = _fp8_result("rms_norm_fp8", x, x.shape[-1], out, out_dtype)
    ops.rms_norm_fp8(out, rows("rms_norm_fp8", "x", x, out=out), weight, scale, epsilon)
    return out


def add_rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`residual += x`, in place, then `rms_norm_fp8(residual, ...)`, in one pass over memory.

    Args:
        residual: x's dtype and shape, strides of its own; holds round(x + residual) afterwards.
        The others: as in rms_norm_fp8.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "add_rms_norm_fp8"
    check_tensors(operator, x=x, residual=residual, weight=weight, scale=scale)
    check_dims(operator, "x", x, 1, "[..., d]")
    out = _fp8_result(operator, x, x.shape[-1], out, out_dtype)
    updated = rows(operator, "residual", residual, out=out)
    if updated is not residual:
        check_no_self_overlap(operator, "residual", residual)
    ops.add_rms_norm_fp8(out, rows(operator, "x", x, out=out, residual=residual), updated, weight, scale, epsilon)
    if updated is not residual:
        residual.copy_(updated)
    return out


def swiglu_fp8(
    x: torch.Tensor, scale: torch.Tensor, *, out: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """SwiGLU quantised to FP8: `fp8(round(round(silu(gate)) * up) / scale)`.

    Args:
        x: float16 or bfloat16 [..., 2 d]: gate = x[..., :d], up = x[..., d:]; last dimension contiguous.
        scale: float32, one element, on x's device: the dequantisation scale.
        out: FP8 [..., d], not overlapping x; allocated if None.
        out_dtype: torch.float8_e4m3fn or torch.float8_e4m3fnuz; the device's own (`fp8_dtype`) if None.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: as rms_norm_fp8; silu(v) = v / (1 + exp(-v)).
    """
    check_tensors("swiglu_fp8", x=x, scale=scale)
    check_dims("swiglu_fp8", "x", x, 1, "[..., 2 d]")
    out = _fp8_result("swiglu_fp8", x, x.shape[-1] // 2, out, out_dtype)
    ops.swiglu_fp8(out, rows("swiglu_fp8", "x", x, out=out), scale)
    return out


def skinny_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    constant_b: bool = False,
) -> torch.Tensor:
    """`out = (a @ b.T) * scale_a * scale_b + bias` for few rows, accumulated in float32 in a fixed order.

    A row's bits do not depend on the other rows; nor on M, on an AMD GPU within 1 to 8, 9 to 16 and 17 to 32, on an
    NVIDIA GPU within 1 to 16 and 17 to 32 (or all of them: docs/numerics.md).

    Args:
        a: FP8 [M, K], 0 <= M <= SKINNY_GEMM_MAX_ROWS, K >= 1; last dimension contiguous, rows strided freely. On a GPU
            the device's own format (`fp8_dtype`), on a CPU either.
        b: a's dtype [N, K] (torch.nn.Linear's weight), likewise.
        scale_a: float32, one element or [M, 1].
        scale_b: float32, one element or [1, N].
        bias: float16, bfloat16 or float32 [N], or None.
        out: float16, bfloat16 or float32 [M, N], overlapping no input; allocated if None, need not be zeroed.
        out_dtype: dtype of the result: out's if None, bfloat16 if out is None too.
        constant_b: promises that whatever wrote b has ended, as with weights that were loaded long before
            (docs/numerics.md). On a Hopper GPU the kernel then reads b while the kernel before it ends.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    check_tensors("skinny_gemm", a=a, b=b, scale_a=scale_a, scale_b=scale_b)
    if bias is not None:
        check_tensors("skinny_gemm", bias=bias)

    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        check_dims("skinny_gemm", "a", a, 2, "[M, K]")
        check_dims("skinny_gemm", "b", b, 2, "[N, K]")
        return torch.empty((a.shape[0], b.shape[0]), dtype=dtype or torch.bfloat16, device=a.device)

    out = result("skinny_gemm", out, out_dtype, WIDE, allocate)
    ops.skinny_gemm(out, a, b, scale_a, scale_b, bias, constant_b)
    return out
