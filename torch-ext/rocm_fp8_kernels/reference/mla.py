"""Decode attention over a latent cache, and what writes it."""

import torch

from .quantize import quantize_fp8

LATENT, ROPE, GROUP = 512, 64, 128


def values_of(rows, dtype, cache_scale=None):
    """Rows of a cache as float32 numbers. dtype: the queries'."""
    if rows.dtype != torch.uint8:
        values = rows.float()
        return values if cache_scale is None else values * cache_scale
    codes, scales, rope = rows.split((LATENT, LATENT // GROUP * 4, 2 * ROPE), dim=-1)
    latent = codes.contiguous().view(torch.float8_e4m3fn).float().unflatten(-1, (-1, GROUP))
    latent = (latent * scales.contiguous().view(torch.float32)[..., None]).flatten(-2)
    return torch.cat([latent, rope.contiguous().view(torch.bfloat16).float()], dim=-1).to(dtype).float()


def _tokens(cache, table, b, length):
    """The rows of sequence b."""
    if table is None:
        return cache.view(torch.uint8)[b, :length].view(cache.dtype)
    n = torch.arange(length, device=cache.device)
    size = cache.shape[1]
    pages = table[b].long()[n // size].clamp(0, len(cache) - 1)
    return cache.view(torch.uint8)[pages, n % size].view(cache.dtype)


def mla_decode(
    q,
    cache,
    lengths,
    softmax_scale,
    *,
    block_table=None,
    causal=True,
    cache_scale=None,
    out=None,
    lse_out=None,
):
    batch, queries, heads, _ = q.shape
    out = q.new_zeros(batch, queries, heads, LATENT) if out is None else out
    most = cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    for b, length in enumerate(lengths.clamp(0, most).tolist()):
        c = values_of(_tokens(cache, block_table, b, length), q.dtype, cache_scale)
        scores = torch.einsum("shk,nk->shn", q[b].float(), c) * softmax_scale
        if causal:
            last = length - queries + torch.arange(queries, device=q.device)
            hidden = torch.arange(length, device=q.device) > last[:, None]
            scores = scores.masked_fill(hidden[:, None], -torch.inf)
        lse = scores.logsumexp(-1)
        p = torch.where(lse[..., None] == -torch.inf, 0.0, (scores - lse[..., None]).exp())
        out[b] = torch.einsum("shn,nk->shk", p, c[:, :LATENT]).to(out.dtype)
        if lse_out is not None:
            lse_out[b] = lse
    return out


def rotate(x, cos, sin, interleaved=False):
    """[..., 64] by angles of 64; torch rounds as it does."""
    if interleaved:
        x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    rotated = (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
    return rotated.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) if interleaved else rotated


def mla_append(kv, k_rope, cache, slots, *, cos=None, sin=None, interleaved=False, cache_scale=None):
    if cos is not None:
        cos, sin = (t.repeat(len(k_rope) // max(len(t), 1), 1) for t in (cos, sin))
    rope = k_rope if cos is None else rotate(k_rope, cos, sin, interleaved)
    mixed = cache.dtype == torch.uint8
    parts = [] if kv is None else [kv]
    if mixed and kv is not None:
        codes, scales = quantize_fp8(kv, scaling="group", out_dtype=torch.float8_e4m3fn)
        parts = [codes, scales.contiguous()]
    parts.append(rope.to(torch.bfloat16) if mixed else rope)
    if cache_scale is not None:
        parts = [quantize_fp8(part, cache_scale, out_dtype=cache.dtype)[0] for part in parts]
    values = torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=-1)
    live = (slots >= 0) & (slots < cache.shape[0] * cache.shape[1])
    page, row = slots[live] // max(cache.shape[1], 1), slots[live] % max(cache.shape[1], 1)
    cache.view(torch.uint8)[page, row, -values.shape[-1] :] = values[live]
