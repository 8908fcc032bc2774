"""vLLM's latent attention (MLA): mla_append writes its cache, mla_decode reads it for decode steps.

What a prompt needs is vLLM's, and so is the cache's layout: [pages, page size, 576], in the model's dtype or in FP8
with one scale a layer. `LatentOperators` is what CPUs and GPUs share; the GPU's backend is in latent_gpu.py.

vLLM has two backends for CPUs. Ours takes the place of the one for all of them (CPU_MLA): DeepSeek's sizes, a cache in
the model's dtype. The one for AMX has kernels of its own, which ours have not been timed beside.
"""

import torch
from vllm.model_executor.layers.attention.mla_attention import MLAAttention, MLACommonMetadata
from vllm.platforms import current_platform
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl

from .kernel import kernel

__all__ = ["LATENT", "MOST_HEADS", "MOST_QUERIES", "ROTATED", "LatentDecode", "LatentOperators", "connect"]

LATENT, ROTATED, MOST_HEADS, MOST_QUERIES = 512, 64, 128, 8  # mla_decode's


class LatentOperators:
    """Before one of vLLM's MLAAttentionImpl in a class's bases."""

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: MLACommonMetadata,
        layer: MLAAttention,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of B sequences that decode, S new tokens each.

        Args:
            q: float16 or bfloat16 [B S, H, 576], or its parts [B S, H, 512] and [B S, H, 64].
            kv_c_and_k_pe_cache: q's dtype or FP8 (uint8 for it) [pages, page size, 576]. It has the new tokens.
            attn_metadata: of a batch that begins with these sequences. Lengths of 0 are a graph's padding: they see no
                token.
            layer: has the scale of a cache in FP8, `_k_scale`.

        Returns: (q's dtype [B S, H, 512], float32 [B S, H] where decode context parallelism asks for it: the natural
            logarithm of the sum of exponentials)
        Raises: RuntimeError for more than 8 tokens a sequence, where a token does not see those behind it.
        """
        q = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        decode, causal = attn_metadata.decode, attn_metadata.causal
        lengths, table = decode.seq_lens, decode.block_table
        q = q.unflatten(0, (lengths.shape[0], -1))
        if not causal and q.shape[1] > MOST_QUERIES:
            # All of them see the same tokens, so that parts of a sequence's can be sequences of their own.
            each = max(n for n in range(1, MOST_QUERIES + 1) if q.shape[1] % n == 0)
            parts = q.shape[1] // each
            q, lengths = q.reshape(-1, each, *q.shape[2:]), lengths.repeat_interleave(parts)
            table = table.repeat_interleave(parts, dim=0)
        cache = _as_codes(kv_c_and_k_pe_cache)
        lse = q.new_empty(q.shape[:3], dtype=torch.float32) if self.need_to_return_lse_for_decode else None
        out = kernel.mla_decode(
            q,
            cache,
            lengths,
            self.scale,
            block_table=table,
            causal=causal,
            cache_scale=layer._k_scale if cache.element_size() == 1 else None,
            lse_out=lse,
        )
        return out.flatten(0, 1), None if lse is None else lse.flatten(0, 1)

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        skip_scale: bool = False,
    ) -> None:
        """The bytes that vLLM's concat_and_cache_mla writes.

        Args:
            kv_c_normed: float16 or bfloat16 [T, 512].
            k_pe: its dtype [T, 1, 64], rotated.
            kv_cache: its dtype or FP8 (uint8 for it) [pages, page size, 576], written.
            slot_mapping: int64 [up to T], of the first tokens; -1 for none.
            kv_cache_dtype: not read: the cache tells.
            k_scale: float32, one element, for a cache in FP8.
            skip_scale: of vLLM 0.33, where k_scale is 1: a division that changes nothing.
        """
        if not kv_cache.numel():  # none while vLLM measures its memory
            return
        slots, k_pe = slot_mapping.flatten(), k_pe.squeeze(1)
        if len(slots) != len(k_pe):  # a graph's padding
            kv_c_normed, k_pe = kv_c_normed[: len(slots)], k_pe[: len(slots)]
        cache = _as_codes(kv_cache)
        kernel.mla_append(kv_c_normed, k_pe, cache, slots, cache_scale=k_scale if cache.element_size() == 1 else None)


def _as_codes(cache: torch.Tensor) -> torch.Tensor:
    """vLLM stores FP8 as uint8, which is another layout (DeepSeek's) for our operators."""
    return cache.view(current_platform.fp8_dtype()) if cache.dtype == torch.uint8 else cache


class LatentDecode(CPUMLAImpl):
    """CPU_MLA's, which has one new token a sequence."""

    # Not by a second base: an object changes its class to one of the same layout alone.
    forward_mqa, do_kv_cache_update = LatentOperators.forward_mqa, LatentOperators.do_kv_cache_update


def connect(model: torch.nn.Module) -> None:
    """Of a model whose weights are loaded, in place: exactly vLLM's own attention, of the sizes that mla_decode has."""
    for module in model.modules():
        if isinstance(module, MLAAttention) and _can_decode(module):
            module.impl.__class__ = LatentDecode


def _can_decode(attention: MLAAttention) -> bool:
    own = attention.impl
    if type(own) is not CPUMLAImpl or (own.kv_lora_rank, own.qk_rope_head_dim) != (LATENT, ROTATED):
        return False
    dtype = attention.kv_b_proj.params_dtype
    return own.kv_cache_dtype == "auto" and dtype in (torch.bfloat16, torch.float16) and own.num_heads <= MOST_HEADS
