"""What vLLM knows of a mixture before it is made, for choices of experts without an engine."""

from types import SimpleNamespace

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation


def moe_config(parallel: dict | None = None, **changes) -> SimpleNamespace:
    """Attributes of vLLM's FusedMoEConfig."""
    alone = dict(
        tp_size=1, dp_size=1, use_all2all_kernels=False, enable_eplb=False, use_batched_activation_format=False
    )
    default = dict(in_dtype=torch.bfloat16, has_bias=False, moe_backend="auto", is_act_and_mul=True)
    default |= dict.fromkeys(("swiglu_alpha", "swiglu_beta", "swiglu_limit"))
    default |= dict.fromkeys(("activation_situ_beta", "activation_situ_linear_beta"))
    default |= dict(activation=MoEActivation.SILU, is_lora_enabled=False, has_hash_routing=False)
    default |= dict(routing_method=None, router_logits_dtype=None, hidden_dim=256, intermediate_size_per_partition=192)
    default |= dict(require_decomposed_backend=False)  # vLLM 0.33 reads it
    return SimpleNamespace(**(default | changes), moe_parallel_config=SimpleNamespace(**alone | (parallel or {})))
