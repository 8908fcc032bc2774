"""Routers of mixtures of experts, on moe_route."""

from types import ModuleType

import torch
import torch.nn.functional as F


def route(
    router: torch.nn.Module, ops: ModuleType, hidden_states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What transformers' router returns.

    Args:
        router: weight [E, D], top_k, `routing` (../models/fp8/halves.py); for "sigmoid" also e_score_correction_bias,
            num_group, topk_group and routed_scaling_factor; norm_topk_prob, where weights need not sum to 1.
        ops: the operators.
        hidden_states: float16 or bfloat16 [..., D].

    Returns: (logits [T, E], weights [T, k], experts int32 [T, k]).
    """
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    renormalize = bool(getattr(router, "norm_topk_prob", True))
    if router.routing.scoring == "sigmoid":
        logits = F.linear(x.float(), router.weight.float())
        weights, experts = ops.moe_route(
            logits,
            router.top_k,
            scoring="sigmoid",
            bias=router.e_score_correction_bias.float(),
            groups=router.num_group,
            top_groups=router.topk_group,
            renormalize=renormalize,
            factor=router.routed_scaling_factor,
        )
        return logits, weights, experts
    logits = F.linear(x, router.weight)
    weights, experts = ops.moe_route(logits, router.top_k, renormalize=renormalize)
    return logits, weights.to(logits.dtype) if router.routing.rounded else weights, experts
