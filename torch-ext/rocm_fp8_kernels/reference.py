"""The operators in plain PyTorch: what each one computes, rounding point by rounding point.

Slow, on any device, and the oracle of the tests. Signatures are those of the operators.
"""

import torch

from .int8_reference import (
    bmm_ab_i8_e_f32,
    bmm_abe_i8,
    encode_int8,
    int8_gemm,
    layer_norm_int8,
    linear_ab_i8_de_f32,
    linear_abde_i8,
    linear_relu_abde_i8,
    quantize_int8,
    softmax_int8,
)
from .ops import fp8_dtype

__all__ = [
    "add_rms_norm_dynamic_fp8",
    "add_rms_norm_fp8",
    "block_scaled_gemm",
    "bmm_ab_i8_e_f32",
    "bmm_abe_i8",
    "encode_fp8",
    "encode_int8",
    "int8_gemm",
    "layer_norm_int8",
    "linear_ab_i8_de_f32",
    "linear_abde_i8",
    "linear_relu_abde_i8",
    "normalize",
    "quantize_fp8",
    "quantize_int8",
    "rms_norm",
    "rms_norm_dynamic_fp8",
    "rms_norm_fp8",
    "skinny_gemm",
    "softmax_int8",
    "swiglu_dynamic_fp8",
    "swiglu_fp8",
]


def encode_fp8(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 values -> FP8: to nearest even, saturating (infinities too), NaN kept.

    A negative value that rounds to zero is -0 in float8_e4m3fn and +0 in float8_e4m3fnuz, which has no -0.
    """
    limit = torch.finfo(dtype).max
    return values.clamp(-limit, limit).to(dtype)


def normalize(h: torch.Tensor, epsilon: float) -> torch.Tensor:
    """h / rms(h) in h's dtype: RMSNorm without the weight."""
    wide = h.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(h.dtype)


def _into(out: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    return result if out is None else out.copy_(result)


def _fp8_dtype(x: torch.Tensor, out: torch.Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype:
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
    dtype = _fp8_dtype(x, out, out_dtype)
    if scale is not None:
        return _into(out, encode_fp8(x.float() / scale, dtype)), scale
    scale_dtype = scale_dtype if scale_out is None else scale_out.dtype
    power_of_two = power_of_two or scale_dtype == torch.float8_e8m0fnu
    scales, each = _computed_scales(x.float(), dtype, scaling, group_size, power_of_two, scale_ub, fp8_max)
    return _into(out, encode_fp8(x.float() / each, dtype)), _into(scale_out, scales.to(scale_dtype))


def rms_norm(x, weight, epsilon=1e-6, *, out=None):
    return _into(out, (normalize(x, epsilon) * weight).to(x.dtype))


def rms_norm_fp8(x, weight, scale, epsilon=1e-6, *, out=None, out_dtype=None):
    y = rms_norm(x, weight, epsilon)
    return _into(out, encode_fp8(y.float() / scale, _fp8_dtype(x, out, out_dtype)))


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
    return quantize_fp8(
        _into(normalized_out, rms_norm(x, weight, epsilon)),
        scaling=scaling,
        group_size=group_size,
        scale_dtype=scale_dtype,
        power_of_two=power_of_two,
        scale_ub=scale_ub,
        fp8_max=fp8_max,
        out=out,
        scale_out=scale_out,
        out_dtype=out_dtype,
    )


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
    return quantize_fp8(
        _into(normalized_out, rms_norm(residual.add_(x), weight, epsilon)),
        scaling=scaling,
        group_size=group_size,
        scale_dtype=scale_dtype,
        power_of_two=power_of_two,
        scale_ub=scale_ub,
        fp8_max=fp8_max,
        out=out,
        scale_out=scale_out,
        out_dtype=out_dtype,
    )


def swiglu(x, limit=None):
    gate, up = x.chunk(2, dim=-1)
    if limit is not None:
        # In float64: torch refuses to clamp by a number beyond the type's largest.
        gate, up = (t.double() for t in (gate, up))
        gate, up = gate.clamp(max=limit).to(x.dtype), up.clamp(-limit, limit).to(x.dtype)
    return torch.nn.functional.silu(gate.float()).to(x.dtype) * up


def swiglu_fp8(x, scale, *, out=None, out_dtype=None):
    return _into(out, encode_fp8(swiglu(x).float() / scale, _fp8_dtype(x, out, out_dtype)))


def swiglu_dynamic_fp8(
    x,
    *,
    limit=None,
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
    return quantize_fp8(
        swiglu(x, limit),
        scaling=scaling,
        group_size=group_size,
        scale_dtype=scale_dtype,
        power_of_two=power_of_two,
        scale_ub=scale_ub,
        fp8_max=fp8_max,
        out=out,
        scale_out=scale_out,
        out_dtype=out_dtype,
    )


def skinny_gemm(a, b, scale_a, scale_b, bias=None, *, out=None, out_dtype=None, constant_b=False):
    c = a.float() @ b.float().t() * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    if bias is not None:
        c = c + bias.float()
    return _into(out, c.to(out_dtype or (torch.bfloat16 if out is None else out.dtype)))


def _block_scales(scale: torch.Tensor, rows: int, blocks: int, by_row: tuple[int, int], by_blocks: bool):
    """float32 [rows, blocks], or with one column where blocks share a scale."""
    row_blocks = -(-rows // 128)
    shape, scale = tuple(scale.shape), scale.float()
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if shape in ((rows,), by_row) and shape != (rows, blocks) and not (by_blocks and shape == (row_blocks, blocks)):
        return scale.reshape(rows, 1)
    return scale if shape == (rows, blocks) else scale.repeat_interleave(128, 0)[:rows]


def block_scaled_gemm(a, b, scale_a, scale_b, bias=None, *, out=None, out_dtype=None, constant_b=False):
    (m, k), n = a.shape, b.shape[0]
    blocks = -(-k // 128)
    scale_a = _block_scales(scale_a, m, blocks, (m, 1), by_blocks=True)
    scale_b = _block_scales(scale_b, n, blocks, (1, n), by_blocks=scale_a.shape[1] > 1)
    c = torch.zeros(m, n, device=a.device)
    for j, (rows, columns) in enumerate(zip(a.float().split(128, 1), b.float().split(128, 1))):
        of_a, of_b = (scale[:, min(j, scale.shape[1] - 1)] for scale in (scale_a, scale_b))
        c += (rows @ columns.t()) * (of_a[:, None] * of_b)
    if bias is not None:
        c = c + bias.float()
    return _into(out, c.to(out_dtype or (torch.bfloat16 if out is None else out.dtype)))
