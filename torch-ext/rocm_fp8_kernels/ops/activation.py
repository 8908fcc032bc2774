"""SwiGLU, to FP8."""

import torch

from .arguments import check_dims, check_tensors, refuse, rows
from .calls import ops
from .device import fp8_result
from .scales import with_computed_scales


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
    out = fp8_result("swiglu_fp8", x, x.shape[-1] // 2, out, out_dtype)
    ops.swiglu_fp8(out, rows("swiglu_fp8", "x", x, out=out), scale)
    return out


def swiglu_dynamic_fp8(
    x: torch.Tensor,
    *,
    limit: float | None = None,
    scaling: str = "row",
    group_size: int = 128,
    scale_dtype: torch.dtype = torch.float32,
    power_of_two: bool = False,
    scale_ub: torch.Tensor | None = None,
    fp8_max: float | None = None,
    column_major_scales: bool = False,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """SwiGLU quantised to FP8 by scales that it computes: `quantize_fp8(y)` of `y = round(round(silu(gate)) * up)`.

    One launch; two with scaling="tensor".

    Args:
        x: float16 or bfloat16 [..., 2 d]: gate = x[..., :d], up = x[..., d:]; last dimension contiguous.
        limit: clamps gate to at most `limit` and up to [-limit, limit] beforehand; positive, rounded to x's dtype.
        scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max: as in quantize_fp8, of y.
        column_major_scales, out, scale_out, out_dtype: as in quantize_fp8.

    Returns: (out, scales).
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "swiglu_dynamic_fp8"
    check_tensors(operator, x=x)
    check_dims(operator, "x", x, 1, "[..., 2 d]")
    check_limit(operator, limit)
    scales = scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, column_major_scales
    return with_computed_scales(operator, x, x.shape[-1] // 2, (limit,), scales, out, scale_out, out_dtype)


def check_limit(operator: str, limit: float | None) -> None:
    if limit is not None and not (isinstance(limit, (int, float)) and limit > 0):
        refuse(operator, "limit", f"{limit!r}; needs a positive number, or None")
