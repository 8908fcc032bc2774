"""SwiGLU, to FP8."""

import torch

from .quantize import encode_fp8, fp8_dtype_of, into, quantized


def swiglu(x, limit=None):
    gate, up = x.chunk(2, dim=-1)
    if limit is not None:
        # In float64: torch refuses to clamp by a number beyond the type's largest.
        gate, up = (t.double() for t in (gate, up))
        gate, up = gate.clamp(max=limit).to(x.dtype), up.clamp(-limit, limit).to(x.dtype)
    return torch.nn.functional.silu(gate.float()).to(x.dtype) * up


def swiglu_fp8(x, scale, *, out=None, out_dtype=None):
    return into(out, encode_fp8(swiglu(x).float() / scale, fp8_dtype_of(x, out, out_dtype)))


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
    y = swiglu(x, limit)
    return quantized(y, scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, out, scale_out, out_dtype)
