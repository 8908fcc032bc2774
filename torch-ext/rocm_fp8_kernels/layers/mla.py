"""Decode steps of multi-head latent attention with absorbed weights, around mla_append and mla_decode.

A head's key is W_UK c and its value W_UV c, of the latent vector c that all heads share. So q . (W_UK c) is
(W_UK^T q) . c, and sum p (W_UV c) is W_UV (sum p c). The cache is multiplied as it is; W_UK and W_UV multiply new
tokens alone.
"""

import math

import torch

from ..operators import operators

LATENT, ROPE = 512, 64


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Rotates [..., 64] as mla_append rotates keys: numbers i and i + 32 are a pair; with `interleaved` 2i and 2i + 1.

    Args:
        x: [..., 64].
        cos, sin: broadcastable to x; the second half repeats the first.
    Returns: x's shape and dtype; a pair's numbers stay where they are.
    """
    if not interleaved:
        first, second = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    of_even = even * cos[..., :half] + -odd * sin[..., :half]
    of_odd = odd * cos[..., half:] + even * sin[..., half:]
    return torch.stack([of_even, of_odd], dim=-1).flatten(-2).to(x.dtype)


def mla_softmax_scale(head_dim: int, rope_parameters: dict | None = None) -> float:
    """1 / sqrt(head_dim), with YaRN times the square of its factor, 0.1 * mscale_all_dim * ln(factor) + 1.

    Args:
        head_dim: of queries before they are absorbed; 192 in DeepSeek-V3.
        rope_parameters: of transformers' configuration (`rope_parameters`, or `rope_scaling` before), or None.
    """
    scale = head_dim**-0.5
    given = rope_parameters or {}
    factor, all_dim = given.get("factor", 1.0), given.get("mscale_all_dim", 0)
    if given.get("rope_type", given.get("type", "default")) != "default" and all_dim and factor > 1:
        scale *= (0.1 * all_dim * math.log(factor) + 1.0) ** 2
    return scale


class LatentAttention(torch.nn.Module):
    """What lies between the projections of an MLA layer and its output projection, for decode steps.

    Args:
        kv_b: the weight of kv_b_proj, float16 or bfloat16 [heads * (nope + value), 512]: of each head W_UK, then W_UV.
            FP8 blocks are to be dequantised first: they are 16 MiB of a layer of
            DeepSeek-V3, read once a step, and a product in FP8 would quantise the queries once more.
        heads: 1 to 128.
        value: a head's values, 128 in DeepSeek-V3; nope follows from kv_b's shape.
        softmax_scale: see mla_softmax_scale.
        interleaved: see rotate.

    The absorbed weights are copies: kv_b may be dropped. After a change of kv_b, `renew`.
    """

    def __init__(self, kv_b: torch.Tensor, heads: int, *, value: int, softmax_scale: float, interleaved: bool = False):
        super().__init__()
        if kv_b.dim() != 2 or kv_b.shape[1] != LATENT or kv_b.shape[0] % heads:
            raise ValueError(
                f"kv_b: shape {list(kv_b.shape)}; needs [heads * (nope + value), {LATENT}], heads = {heads}"
            )
        of_each = kv_b.shape[0] // heads
        self.nope = of_each - value
        if self.nope < 1:
            raise ValueError(f"value: {value}; kv_b has {of_each} rows a head, for nope and value")
        self.heads, self.softmax_scale, self.interleaved = heads, softmax_scale, interleaved
        self.register_buffer("w_uk", kv_b.new_empty(heads, self.nope, LATENT), persistent=False)
        self.register_buffer("w_uv", kv_b.new_empty(heads, LATENT, value), persistent=False)
        self.renew(kv_b)

    @torch.no_grad()
    def renew(self, kv_b: torch.Tensor) -> None:
        """Takes another weight of the same shape, in place: graphs that were captured before read it, too."""
        of_heads = kv_b.detach().view(self.heads, -1, LATENT)
        parts = of_heads[:, : self.nope], of_heads[:, self.nope :].transpose(1, 2)
        for name, values in zip(("w_uk", "w_uv"), parts):
            own = getattr(self, name)
            if own.is_inference() and not torch.is_inference_mode_enabled():  # torch writes no such tensor here
                setattr(self, name, values.clone(memory_format=torch.contiguous_format))
            else:
                own.copy_(values)

    def absorb(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Queries [B, S, H, nope + 64] as mla_decode takes them, [B, S, H, 576]. cos, sin: [B, S, 64]."""
        batch, queries, heads, _ = q.shape
        absorbed = q.new_empty(batch, queries, heads, LATENT + ROPE)
        of_heads = q[..., : self.nope].reshape(-1, heads, self.nope).transpose(0, 1)
        absorbed[..., :LATENT] = torch.bmm(of_heads, self.w_uk).transpose(0, 1).view(batch, queries, heads, LATENT)
        absorbed[..., LATENT:] = rotate(q[..., self.nope :], cos[:, :, None], sin[:, :, None], self.interleaved)
        return absorbed

    def values(self, out: torch.Tensor) -> torch.Tensor:
        """mla_decode's result [B, S, H, 512] as [B, S, H * value]."""
        batch, queries, heads, _ = out.shape
        of_heads = torch.bmm(out.view(-1, heads, LATENT).transpose(0, 1), self.w_uv)
        return of_heads.transpose(0, 1).reshape(batch, queries, -1)

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        k_rope: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: torch.Tensor,
        slots: torch.Tensor,
        lengths: torch.Tensor,
        *,
        block_table: torch.Tensor | None = None,
        cache_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Appends the new tokens to the cache and attends to it.

        Args:
            q: float16 or bfloat16 [B, S, H, nope + 64], of q_b_proj (or q_proj), S of 1 to 8.
            kv: q's dtype [B, S, 512], normalised (kv_a_layernorm).
            k_rope: q's dtype [B, S, 64], not rotated.
            cos, sin: q's dtype or float32 [B, S, 64], of the new tokens' positions.
            cache, block_table, cache_scale: as in mla_decode; the cache is written in place.
            slots: int64 [B * S], as in mla_append.
            lengths: int32 [B], the new tokens included.
        Returns: [B, S, H * value], what o_proj takes.
        """
        angles = dict(cos=cos.reshape(-1, ROPE), sin=sin.reshape(-1, ROPE), interleaved=self.interleaved)
        kv, k_rope = kv.reshape(-1, LATENT), k_rope.reshape(-1, ROPE)
        ops = operators()
        ops.mla_append(kv, k_rope, cache, slots, cache_scale=cache_scale, **angles)
        options = dict(block_table=block_table, cache_scale=cache_scale)
        out = ops.mla_decode(self.absorb(q, cos, sin), cache, lengths, self.softmax_scale, **options)
        return self.values(out)
