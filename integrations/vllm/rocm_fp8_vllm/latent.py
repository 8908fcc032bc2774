"""vLLM's latent attention (MLA) on a CPU: mla_append writes its cache, mla_decode reads it for decode steps.

vLLM has two backends for CPUs. Ours takes the place of the one for all of them (CPU_MLA): DeepSeek's sizes, a cache in
the model's dtype. The one for AMX has kernels of its own, which ours have not been timed beside. What belongs to a
prompt is vLLM's in both.
"""

import torch
from vllm.model_executor.layers.attention.mla_attention import MLAAttention, MLACommonMetadata
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl

from .kernel import kernel

__all__ = ["LatentDecode", "connect"]

_LATENT, _ROTATED = 512, 64  # mla_decode's


class LatentDecode(CPUMLAImpl):
    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: MLACommonMetadata,
        layer: MLAAttention,
    ) -> tuple[torch.Tensor, None]:
        """Of a new token a sequence.

        Args:
            q: float16 or bfloat16 [B, H, 576], or its parts [B, H, 512] and [B, H, 64].
            kv_c_and_k_pe_cache: q's dtype [pages, page size, 576].
            attn_metadata: of B sequences that decode.

        Returns: (q's dtype [B, H, 512], None)
        """
        q = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        decode = attn_metadata.decode
        out = kernel.mla_decode(
            q.unsqueeze(1),
            kv_c_and_k_pe_cache,
            decode.seq_lens.to(torch.int32),
            self.scale,
            block_table=decode.block_table.to(torch.int32),
        )
        return out.squeeze(1), None

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
        """kv_c_normed: the cache's dtype [T, 512]; k_pe: [T, 1, 64], rotated; slot_mapping: int64 [T], -1 for none;
        k_scale, skip_scale (vLLM 0.33): of FP8 caches, not read."""
        if kv_cache.numel():  # none while vLLM measures its memory
            kernel.mla_append(kv_c_normed, k_pe.squeeze(1), kv_cache, slot_mapping.flatten())


def connect(model: torch.nn.Module) -> None:
    """Of a model whose weights are loaded, in place: exactly vLLM's own attention, of the sizes that mla_decode has."""
    for module in model.modules():
        if isinstance(module, MLAAttention) and _can_decode(module):
            module.impl.__class__ = LatentDecode


def _can_decode(attention: MLAAttention) -> bool:
    own = attention.impl
    if type(own) is not CPUMLAImpl or (own.kv_lora_rank, own.qk_rope_head_dim) != (_LATENT, _ROTATED):
        return False
    dtype = attention.kv_b_proj.params_dtype
    return own.kv_cache_dtype == "auto" and dtype in (torch.bfloat16, torch.float16) and own.num_heads <= 128
