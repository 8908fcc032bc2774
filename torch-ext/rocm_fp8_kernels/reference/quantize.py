"""FP8 by a given scale or by scales that are computed, and what every operator's result goes through."""

import torch

from ..ops import fp8_dtype


def encode_fp8(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 values -> FP8: to nearest even, saturating (infinities too), NaN kept.

    A negative value that rounds to zero is -0 in float8_e4m3fn and +0 in float8_e4m3fnuz, which has no -0.
    """
    limit = torch.finfo(dtype).max
    return values.clamp(-limit, limit).to(dtype)


def into(out: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    return result if out is None else out.copy_(result)


def fp8_dtype_of(x: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype:
    return out_dtype or (fp8_dtype(x.device) if out is None else out.dtype)


def _least_power_of_two(scale: torch.Tensor) -> torch.Tensor:
    """Not below scale: positive normal float32 numbers."""
    return ((scale.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def _computed_scales(
    y: torch.Tensor, dtype: torch.dtype, scaling, group_size, power_of_two, scale_ub, fp8_max
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales of float32 values [..., d] in the shape that is returned, and one for each value."""
    d = y.shape[-1]
    magnitudes = torch.where(y.isfinite(), y.abs(), 0.0)
    if scaling == "tensor":
        amax = magnitudes.max().reshape(1) if y.numel() else magnitudes.new_zeros(1)
    elif scaling == "row":
        amax = magnitudes.amax(-1, keepdim=True) if d else magnitudes.new_zeros((*y.shape[:-1], 1))
    else:
        groups = -(-d // group_size)
        filled = torch.nn.functional.pad(magnitudes, (0, groups * group_size - d))
        amax = filled.unflatten(-1, (groups, group_size)).amax(-1)
    if scale_ub is not None:
        amax = torch.minimum(amax, scale_ub.reshape(()))
    # A tensor as the divisor: a number's reciprocal would be multiplied by.
    largest = torch.finfo(dtype).max if fp8_max is None else fp8_max
    scale = amax.clamp(min=1e-10) / torch.full_like(amax, largest)
    if power_of_two:
        scale = _least_power_of_two(scale)
    each = scale.repeat_interleave(group_size, -1)[..., :d] if scaling == "group" else scale
    return scale, each


def quantized(
    y, scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, out, scale_out, out_dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """quantize_fp8 of y by scales that are computed."""
    dtype = fp8_dtype_of(y, out, out_dtype)
    scale_dtype = scale_dtype if scale_out is None else scale_out.dtype
    power_of_two = power_of_two or scale_dtype == torch.float8_e8m0fnu
    scales, each = _computed_scales(y.float(), dtype, scaling, group_size, power_of_two, scale_ub, fp8_max)
    return into(out, encode_fp8(y.float() / each, dtype)), into(scale_out, scales.to(scale_dtype))


def quantize_fp8(
    x,
    scale=None,
    *,
    scaling="row",
    group_size=128,
    scale_dtype=torch.float32,
    power_of_two=False,
    scale_ub=None,
    fp8_max=None,
    column_major_scales=False,
    out=None,
    scale_out=None,
    out_dtype=None,
):
    if scale is None:
        return quantized(
            x, scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, out, scale_out, out_dtype
        )
    return into(out, encode_fp8(x.float() / scale, fp8_dtype_of(x, out, out_dtype))), scale
