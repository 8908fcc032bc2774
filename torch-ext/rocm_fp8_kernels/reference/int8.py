"""The int8 operators."""

import torch

from .quantize import into


def encode_int8(values: torch.Tensor) -> torch.Tensor:
    """float32 values -> int8: to nearest even, saturating; NaN gives 0."""
    return values.round().nan_to_num(nan=0.0).clamp(-128, 127).to(torch.int8)


def _sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b.T as int64, exact. In float64, which holds every sum: integers have no fast product."""
    return (a.double() @ b.double().mT).long()


def _rounded(v: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int8:
        return encode_int8(v)
    bits = {torch.float32: 0x7FC00000, torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}[dtype]
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    return torch.where(v.isnan(), torch.full((), bits, dtype=integer, device=v.device).view(dtype), v.to(dtype))


def _relu(v: torch.Tensor) -> torch.Tensor:
    return torch.where(v < 0, 0.0, v)


def _gelu(approximate: str):
    return lambda v: torch.nn.functional.gelu(v.double(), approximate=approximate).float()


_ACTIVATIONS = {None: lambda v: v, "relu": _relu, "gelu": _gelu("none"), "gelu_tanh": _gelu("tanh")}


def _along(t: torch.Tensor, column: bool) -> torch.Tensor:
    """One for all, or one for each row (or column), in the shape that broadcasts."""
    if t.numel() == 1:
        return t.reshape(())
    return t.unsqueeze(-1) if column and t.dim() == 1 else t


def int8_gemm(
    a,
    b,
    scale_a,
    scale_b,
    bias=None,
    *,
    zero_a=None,
    sum_b=None,
    activation=None,
    scale_out=None,
    out=None,
    out_dtype=None,
    constant_b=False,
):
    acc = _sums(a, b)
    if zero_a is not None:
        acc = acc - _along(zero_a, True).long() * _along(sum_b, False).long()
    v = acc.float() * _along(scale_a, True) * _along(scale_b, False)
    if bias is not None:
        v = v + bias.float()
    v = _ACTIVATIONS[activation](v)
    if scale_out is not None:
        v = v / scale_out.reshape(())
    return into(out, _rounded(v, out_dtype or (torch.bfloat16 if out is None else out.dtype)))


def _number(value, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float32, device=like.device).reshape(())


def _linear(a, b, d, alpha, beta, dtype, activation, out):
    v = _sums(a, b).float() * _number(alpha, a) + _number(beta, a) * d.float()
    return into(out, _rounded(_ACTIVATIONS[activation](v), dtype))


def linear_abde_i8(a, b, d, alpha=1.0, beta=1.0, *, out=None, constant_b=False):
    return _linear(a, b, d, alpha, beta, torch.int8, None, out)


def linear_relu_abde_i8(a, b, d, alpha=1.0, beta=1.0, *, out=None, constant_b=False):
    return _linear(a, b, d, alpha, beta, torch.int8, "relu", out)


def linear_ab_i8_de_f32(a, b, d, alpha=1.0, beta=1.0, *, out=None, constant_b=False):
    return _linear(a, b, d, alpha, beta, torch.float32, None, out)


def bmm_abe_i8(a, b, alpha=1.0, *, out=None):
    return into(out, _rounded(_sums(a, b).float() * _number(alpha, a), torch.int8))


def bmm_ab_i8_e_f32(a, b, alpha=1.0, *, out=None):
    return into(out, _rounded(_sums(a, b).float() * _number(alpha, a), torch.float32))


def _computed(y: torch.Tensor, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    finite = torch.where(y.isfinite(), y, 0.0)
    empty = y.new_zeros((*y.shape[:-1], 1), dtype=torch.float32)
    high, low = (finite.amax(-1, keepdim=True), finite.amin(-1, keepdim=True)) if y.shape[-1] else (empty, empty)
    # Tensors as divisors: a number's reciprocal would be multiplied by.
    if symmetric:
        amax = torch.maximum(high, -low).clamp(min=1e-10)
        return amax / torch.full_like(amax, 127), None
    low, high = low.clamp(max=0), high.clamp(min=0)
    width = (high - low).clamp(1e-10, torch.finfo(torch.float32).max)
    scale = width / torch.full_like(width, 255)
    return scale, encode_int8(-128 - low / scale).int()


def quantize_int8(x, scale=None, zero_point=None, *, symmetric=True, out=None, scale_out=None, zero_point_out=None):
    y = x.float()
    if scale is None:
        scale, zero_point = _computed(y, symmetric)
        scale = into(scale_out, scale)
        zero_point = None if zero_point is None else into(zero_point_out, zero_point)
    q = y / scale
    if zero_point is not None:
        q = q.round()
        q = torch.where(q.isnan(), 0.0, q) + zero_point.float()
    return into(out, encode_int8(q)), scale, zero_point


def layer_norm_int8(
    x,
    weight,
    bias=None,
    scale=None,
    zero_point=None,
    epsilon=1e-5,
    *,
    residual=None,
    symmetric=True,
    out=None,
    scale_out=None,
    zero_point_out=None,
):
    h = (x if residual is None else residual.add_(x)).float()
    centered = h - h.mean(-1, keepdim=True)
    y = centered * torch.rsqrt(centered.pow(2).mean(-1, keepdim=True) + epsilon) * weight.float()
    if bias is not None:
        y = y + bias.float()
    return quantize_int8(
        y.to(x.dtype),
        scale,
        zero_point,
        symmetric=symmetric,
        out=out,
        scale_out=scale_out,
        zero_point_out=zero_point_out,
    )


def softmax_int8(x, mask=None, *, out=None):
    v = x.float() if mask is None else x.float() + mask.float()
    return into(out, encode_int8(127 * torch.softmax(v, -1)))
