"""RMSNorm, in x's dtype and to FP8, alone and behind the addition of a residual."""

import torch

from .arguments import check_dims, check_no_self_overlap, check_tensors, result, rows
from .calls import ops
from .device import fp8_result
from .scales import with_computed_scales


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
    out = result("rms_norm", out, None, (), lambda _: torch.empty_like(x, memory_format=torch.contiguous_format))
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
    out = fp8_result("rms_norm_fp8", x, x.shape[-1], out, out_dtype)
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
    return add_and_quantize("add_rms_norm_fp8", x, residual, (weight, scale, epsilon), out, out_dtype)


def add_and_quantize(
    operator: str,
    x: torch.Tensor,
    residual: torch.Tensor,
    operands: tuple,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    """The body of add_rms_norm_fp8, and of that of a sum over ranks. operands: the operator's behind residual, of which
    the first are weight and scale."""
    check_tensors(operator, x=x, residual=residual, weight=operands[0], scale=operands[1])
    check_dims(operator, "x", x, 1, "[..., d]")
    out = fp8_result(operator, x, x.shape[-1], out, out_dtype)
    updated = rows(operator, "residual", residual, out=out)
    if updated is not residual:
        check_no_self_overlap(operator, "residual", residual)
    getattr(ops, operator)(out, rows(operator, "x", x, out=out, residual=residual), updated, *operands)
    if updated is not residual:
        residual.copy_(updated)
    return out


def rms_norm_dynamic_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    scaling: str = "row",
    group_size: int = 128,
    scale_dtype: torch.dtype = torch.float32,
    power_of_two: bool = False,
    scale_ub: torch.Tensor | None = None,
    fp8_max: float | None = None,
    column_major_scales: bool = False,
    normalized_out: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm quantised to FP8 by scales that it computes: `quantize_fp8(y)` of `y = rms_norm(x, weight, epsilon)`.

    One launch; two with scaling="tensor".

    Args:
        x, weight, epsilon: as in rms_norm.
        normalized_out: x's dtype [..., d], overlapping no other argument; takes y itself, where given.
        scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max: as in quantize_fp8, of y.
        column_major_scales, out, scale_out, out_dtype: as in quantize_fp8.

    Returns: (out, scales).
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "rms_norm_dynamic_fp8"
    check_tensors(operator, x=x, weight=weight)
    check_dims(operator, "x", x, 1, "[..., d]")
    operands = weight, epsilon, normalized_out
    scales = scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, column_major_scales
    return with_computed_scales(operator, x, x.shape[-1], operands, scales, out, scale_out, out_dtype, normalized_out)


def add_rms_norm_dynamic_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    scaling: str = "row",
    group_size: int = 128,
    scale_dtype: torch.dtype = torch.float32,
    power_of_two: bool = False,
    scale_ub: torch.Tensor | None = None,
    fp8_max: float | None = None,
    column_major_scales: bool = False,
    normalized_out: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual += x`, in place, then `rms_norm_dynamic_fp8(residual, ...)`, in one pass over memory.

    Args:
        residual: x's dtype and shape, strides of its own; holds round(x + residual) afterwards.
        x, weight, epsilon: as in rms_norm.
        normalized_out: as in rms_norm_dynamic_fp8.
        scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max: as in quantize_fp8, of y.
        column_major_scales, out, scale_out, out_dtype: as in quantize_fp8.

    Returns: (out, scales).
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "add_rms_norm_dynamic_fp8"
    check_tensors(operator, x=x, residual=residual, weight=weight)
    check_dims(operator, "x", x, 1, "[..., d]")
    operands = weight, epsilon, normalized_out
    scales = scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, column_major_scales
    return with_computed_scales(
        operator, x, x.shape[-1], operands, scales, out, scale_out, out_dtype, normalized_out, residual
    )
