"""RMSNorm, in x's dtype and to FP8, alone and behind the addition of a residual."""

import torch

from .quantize import encode_fp8, fp8_dtype_of, into, quantized


def normalize(h: torch.Tensor, epsilon: float) -> torch.Tensor:
    """h / rms(h) in h's dtype: RMSNorm without the weight."""
    wide = h.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(h.dtype)


def rms_norm(x, weight, epsilon=1e-6, *, out=None):
    return into(out, (normalize(x, epsilon) * weight).to(x.dtype))


def rms_norm_fp8(x, weight, scale, epsilon=1e-6, *, out=None, out_dtype=None):
    y = rms_norm(x, weight, epsilon)
    return into(out, encode_fp8(y.float() / scale, fp8_dtype_of(x, out, out_dtype)))


def add_rms_norm_fp8(x, residual, weight, scale, epsilon=1e-6, *, out=None, out_dtype=None):
    residual.add_(x)
    return rms_norm_fp8(residual, weight, scale, epsilon, out=out, out_dtype=out_dtype)


def rms_norm_dynamic_fp8(
    x,
    weight,
    epsilon=1e-6,
    *,
    scaling="row",
    group_size=128,
    scale_dtype=torch.float32,
    power_of_two=False,
    scale_ub=None,
    fp8_max=None,
    column_major_scales=False,
    normalized_out=None,
    out=None,
    scale_out=None,
    out_dtype=None,
):
    y = into(normalized_out, rms_norm(x, weight, epsilon))
    return quantized(y, scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, out, scale_out, out_dtype)


def add_rms_norm_dynamic_fp8(
    x,
    residual,
    weight,
    epsilon=1e-6,
    *,
    scaling="row",
    group_size=128,
    scale_dtype=torch.float32,
    power_of_two=False,
    scale_ub=None,
    fp8_max=None,
    column_major_scales=False,
    normalized_out=None,
    out=None,
    scale_out=None,
    out_dtype=None,
):
    y = into(normalized_out, rms_norm(residual.add_(x), weight, epsilon))
    return quantized(y, scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, out, scale_out, out_dtype)
