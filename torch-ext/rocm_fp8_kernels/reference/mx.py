"""MX formats: their numbers, products with such weights, quantisation to MXFP4, and the gates of experts."""

import torch

from ..ops.mx import MX_BLOCK, gate_numbers
from .quantize import into

_E8M0 = torch.float8_e8m0fnu
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def numbers(codes: torch.Tensor) -> torch.Tensor:
    """float32 [..., K] of uint8 [..., K / 2] (e2m1), or of FP8 or 16-bit [..., K]: without scales."""
    if codes.dtype != torch.uint8:
        return codes.float()
    table = torch.tensor(_MAGNITUDES, device=codes.device)
    table = torch.cat([table, -table])
    return torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], -1).flatten(-2)


def exponents(scale: torch.Tensor) -> torch.Tensor:
    """float32 of float8_e8m0fnu, or of its bytes."""
    return scale.view(_E8M0).float() if scale.dtype == torch.uint8 else scale.float()


def mx_product(a, b, scale_a, scale_b, bias) -> torch.Tensor:
    """float32 [M, N] of block_scaled_gemm with MX weights."""
    of_blocks = scale_a is not None and scale_a.dtype != torch.float32
    by_row = 1.0 if scale_a is None or of_blocks else scale_a.reshape(-1, 1)
    scale_b = exponents(scale_b)
    scale_a = exponents(scale_a) if of_blocks else None
    c = torch.zeros(len(a), len(b), device=a.device)
    for j, (rows, columns) in enumerate(zip(numbers(a).split(MX_BLOCK, 1), numbers(b).split(MX_BLOCK, 1))):
        of_b = scale_b[:, j][None]
        c += (rows @ columns.t()) * (of_b if scale_a is None else scale_a[:, j, None] * of_b)
    c = c * by_row
    return c if bias is None else c + bias.float()


def quantize_mxfp4(x, *, rounding="up", out=None, scale_out=None):
    blocks = x.float().unflatten(-1, (-1, MX_BLOCK))
    finite = blocks.isfinite().all(-1)
    amax = torch.where(blocks.isfinite(), blocks.abs(), 0.0).amax(-1)
    if rounding == "up":
        bits = amax.clamp(min=6 * 2.0**-126).view(torch.int32)
        byte = (bits >> 23) - 2 + ((bits & 0x7FFFFF) > 0x400000).int()
    else:
        bits = amax.view(torch.int32)
        byte = (((bits + 0x1FFFFF + (bits >> 22 & 1)) >> 23) - 2).clamp(0, 254)
    byte = torch.where(finite, byte, 255).to(torch.uint8)
    scaled = blocks / exponents(byte)[..., None]
    middles = torch.tensor((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0), device=x.device)
    # Ties go to the even code: of middles 1, 3 and 5 upwards.
    up = torch.tensor((False, True) * 3 + (False,), device=x.device)
    m = scaled.abs()[..., None]
    code = torch.where(up, m >= middles, m > middles).sum(-1) | (scaled.signbit().int() << 3)
    code = torch.where(finite[..., None], code, 0).flatten(-2).to(torch.uint8)
    scales = byte if scale_out is not None and scale_out.dtype == torch.uint8 else byte.view(_E8M0)
    codes = into(out, code[..., ::2] | code[..., 1::2] << 4)
    if scale_out is not None:
        scale_out.view(torch.uint8).copy_(byte)
        scales = scale_out
    return codes, scales


def moe_gate(
    x,
    offsets=None,
    *,
    gate="silu",
    limit=None,
    alpha=1.702,
    beta=None,
    linear_beta=None,
    interleaved=False,
    out=None,
    out_dtype=None,
):
    gate_numbers("moe_gate", gate, limit, alpha, beta, linear_beta, interleaved)
    g, u = (x[:, ::2], x[:, 1::2]) if interleaved else x.chunk(2, dim=-1)
    g, u = g.float(), u.float()
    if limit is not None:
        g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    if gate == "oai":
        y = (u + 1) * (g * torch.sigmoid(alpha * g))
    elif gate == "silu":
        y = g * torch.sigmoid(g) * u
    else:
        up = u if linear_beta is None else linear_beta * torch.tanh(u / linear_beta)
        y = beta * torch.tanh(g / beta) * torch.sigmoid(g) * up
    if out is None:
        return y.to(out_dtype or torch.bfloat16)
    live = len(x) if offsets is None else int(offsets[-1])
    out[:live] = y[:live].to(out.dtype)
    return out
