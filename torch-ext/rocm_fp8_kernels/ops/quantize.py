"""quantize_fp8: to FP8 by a given scale, or by scales that are computed of x."""

import torch

from .arguments import check_dims, check_tensors, rows
from .calls import ops
from .device import fp8_result
from .scales import with_computed_scales


def quantize_fp8(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
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
    """Quantises to FP8, by `scale` or by scales that it computes: `fp8(x / scale)`.

        amax  = max |x| over the finite values of the tensor, a row or a group of a row
        amax  = max(min(amax, scale_ub), 1e-10)
        scale = amax / fp8_max, with power_of_two the least power of two that is not smaller
        q     = fp8(x / scale), by the scale that is returned

    Args:
        x: float16, bfloat16 or float32 [..., d], last dimension contiguous, rows strided freely.
        scale: float32, one element, on x's device: x is quantised by it, and the arguments below but for out and
            out_dtype have no effect. None: scales are computed.
        scaling: what has a scale: "tensor" (scales [1]), "row" ([..., 1]) or "group" ([..., ceil(d / group_size)]).
        group_size: 32, 64 or 128; the last group of a row may be shorter.
        scale_dtype: torch.float32 or torch.float8_e8m0fnu, which implies power_of_two.
        power_of_two: rounds scales up to powers of two ("UE8M0" where they are float32).
        scale_ub: float32, one element, on x's device: an upper bound of amax.
        fp8_max: the number that amax becomes, 2 to the format's largest (default: that). vLLM divides by 224 on
            float8_e4m3fnuz.
        column_major_scales: allocates scales of the same shape whose row index is the fastest. Columns begin at
            multiples of 16 bytes, as TMA asks.
        out: FP8 [..., d], overlapping no input; allocated if None.
        scale_out: the scales; its dtype counts, not scale_dtype. Any strides without overlap, if the leading
            dimensions collapse into rows with one stride. Under torch.compile's Inductor it must be float32.
        out_dtype: torch.float8_e4m3fn or torch.float8_e4m3fnuz; the device's own (`fp8_dtype`) if None.

    Returns: (out, scales). Infinities saturate, NaN stays NaN; neither counts in amax. Of an empty x the scales are
    those of zeros.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "quantize_fp8"
    check_tensors(operator, x=x)
    check_dims(operator, "x", x, 1, "[..., d]")
    if scale is None:
        scales = scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, column_major_scales
        return with_computed_scales(operator, x, x.shape[-1], (), scales, out, scale_out, out_dtype)
    out = fp8_result(operator, x, x.shape[-1], out, out_dtype)
    check_tensors(operator, scale=scale)
    ops.quantize_static_fp8(out, rows(operator, "x", x, out=out), scale)
    return out, scale
