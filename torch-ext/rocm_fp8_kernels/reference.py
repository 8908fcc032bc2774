"""The operators in plain PyTorch: what each one computes, rounding point by rounding point.

Slow, on any device, and the oracle of the tests. Signatures are those of the operators.
"""

import torch

from .ops import fp8_dtype

__all__ = ["add_rms_norm_fp8", "normalize", "quantize_fp8", "rms_norm", "rms_norm_fp8", "skinny_gemm", "swiglu_fp8"]


def quantize_fp8(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
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


def rms_norm(x, weight, epsilon=1e-6, *, out=None):
    return _into(out, (normalize(x, epsilon) * weight).to(x.dtype))


def rms_norm_fp8(x, weight, scale, epsilon=1e-6, *, out=None, out_dtype=None):
    y = rms_norm(x, weight, epsilon)
    return _into(out, quantize_fp8(y.float() / scale, _fp8_dtype(x, out, out_dtype)))


def add_rms_norm_fp8(x, residual, weight, scale, epsilon=1e-6, *, out=None, out_dtype=None):
    residual.add_(x)
    return rms_norm_fp8(residual, weight, scale, epsilon, out=out, out_dtype=out_dtype)


def swiglu_fp8(x, scale, *, out=None, out_dtype=None):
    gate, up = x.chunk(2, dim=-1)
    g = torch.nn.functional.silu(gate.float()).to(x.dtype)
    return _into(out, quantize_fp8((g * up).float() / scale, _fp8_dtype(x, out, out_dtype)))


def skinny_gemm(a, b, scale_a, scale_b, bias=None, *, out=None, out_dtype=None, constant_b=False):
    c = a.float() @ b.float().t() * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    if bias is not None:
        c = c + bias.float()
    return _into(out, c.to(out_dtype or (torch.bfloat16 if out is None else out.dtype)))
