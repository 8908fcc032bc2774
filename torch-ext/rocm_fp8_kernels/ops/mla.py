"""Decode attention of DeepSeek's multi-head latent attention (MLA), and what writes its cache."""

import torch

from .arguments import check_dims, check_tensors, result
from .calls import ops

LATENT = 512


def mla_decode(
    q: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    softmax_scale: float,
    *,
    block_table: torch.Tensor | None = None,
    causal: bool = True,
    cache_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    lse_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of new tokens over a latent cache that all heads share (MLA with absorbed weights).

        score = softmax_scale * sum over 576 of q * c[n]        float32; query s sees n < length - S + s + 1
        out   = round(sum over n of softmax(score)[n] * c[n, :512])
        lse   = ln(sum of exp(score))

    Nothing is read on the host: launches depend on shapes alone, so a captured graph serves all lengths. The cache is
    read once for all heads. A row's bits depend on the shapes, never on the lengths of other sequences.

    Args:
        q: float16 or bfloat16 [B, S, H, 576]: 512 absorbed, then 64 rotated; S of 1 to 8 new tokens a sequence, H of 1
            to 128 heads. Any strides; the last dimension contiguous.
        cache: dense [B, L, 576] or, with block_table, [pages, page size, 576] with 1 to 256 tokens a page; in q's
            dtype, or FP8 with cache_scale (on a GPU the device's own format). Or uint8 [..., 656], DeepSeek's layout:
            512 float8_e4m3fn, 4 float32 scales of 128 each, 64 bfloat16.
        lengths: int32 [B]: how many tokens of the cache count, the new ones included; as if within [0, L].
        softmax_scale: DeepSeek's is 192 ** -0.5, times the square of YaRN's factor: see layers.mla_softmax_scale.
        block_table: int32 [B, W]: the pages of each sequence, W of them at most. Entries behind a length are not read.
        causal: whether a new token sees those before it alone. Without it, it sees all.
        cache_scale: float32, one element.
        out: q's dtype [B, S, H, 512], contiguous, overlapping no input; allocated if None.
        lse_out: float32 [B, S, H], contiguous: the natural logarithm of the sum of exponentials, or None.

    Returns: out. A query that sees no token gives zeros, and -infinity in lse_out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: DeepSeek-V2 and V3's attention with W_UK and W_UV absorbed; FlashMLA's flash_mla_with_kvcache.
    """
    operator = "mla_decode"
    check_tensors(operator, q=q, cache=cache, lengths=lengths)
    check_dims(operator, "q", q, 4, "[B, S, H, 576]")
    optional = {"block_table": block_table, "cache_scale": cache_scale, "lse_out": lse_out}
    check_tensors(operator, **{name: t for name, t in optional.items() if t is not None})
    out = result(operator, out, None, (), lambda _: q.new_empty((*q.shape[:3], LATENT)))
    ops.mla_decode(out, lse_out, q, cache, lengths, block_table, cache_scale, softmax_scale, bool(causal))
    return out


def mla_append(
    kv: torch.Tensor | None,
    k_rope: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    interleaved: bool = False,
    cache_scale: torch.Tensor | None = None,
) -> None:
    """Writes tokens into the cache of mla_decode: `cache[slot] = [kv, rotated k_rope]`, quantised as the cache asks.

        rotated = k_rope * cos + rotate_half(k_rope) * sin, rounded to k_rope's dtype

    Where cos and sin have k_rope's dtype, each product is rounded to it as well, as transformers' modules do. A cache
    of FP8 gets fp8(value / cache_scale); DeepSeek's layout float8_e4m3fn by scales of 128 values, as quantize_fp8
    computes them, and bfloat16.

    Without kv the rotated numbers alone are written, to a cache of any kind: no scale depends on them. The cache keeps
    its tokens' latent part, in DeepSeek's layout their scales, too.

    Args:
        kv: k_rope's dtype [T, 512], the normalised latent values; rows strided freely. None: those of the cache stay.
        k_rope: float16 or bfloat16 [T, 64]; rows strided freely.
        cache: as in mla_decode; written in place. A dense one is [B, L, ...].
        slots: int64 [T]: page * page size + row of each token, of a dense cache b * L + n. Outside of the cache
            (-1, say) nothing is written. No two tokens may have the same slot.
        cos, sin: k_rope's dtype or float32 [T, 64], as transformers' rotary embeddings have them: the second half
            repeats the first. Or [R, 64], where R divides T: token t has row t % R. None: k_rope is rotated already.
        interleaved: numbers 2i and 2i + 1 are a pair (and stay where they are), not i and i + 32. Queries need be
            rotated alike: see layers.rotate.
        cache_scale: float32, one element, with a cache of FP8.

    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "mla_append"
    check_tensors(operator, k_rope=k_rope, cache=cache, slots=slots)
    optional = {"kv": kv, "cos": cos, "sin": sin, "cache_scale": cache_scale}
    check_tensors(operator, **{name: t for name, t in optional.items() if t is not None})
    ops.mla_append(cache, kv, k_rope, slots, cos, sin, cache_scale, bool(interleaved))
