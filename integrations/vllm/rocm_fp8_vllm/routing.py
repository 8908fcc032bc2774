"""vLLM's choice of experts on a CPU, as one operator: moe_route.

vLLM's own is a dozen of torch's. Of bfloat16 logits it rounds the softmax to bfloat16; here it is float32, as in
transformers. On a GPU vLLM has kernels of its own for it, which stay.
"""

import torch
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.fused_moe.router.fused_moe_router import FusedMoERouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from .experts import runs_on
from .kernel import kernel

__all__ = ["MoeRouteRouter", "connect"]

_MOST_EXPERTS, _MOST_CHOICES = 1024, 32  # moe_route's


class MoeRouteRouter(CPURouter):
    """Softmax or sigmoid, with groups and a bias or without. Ties go to the lower index."""

    def _compute_routing(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        indices_type: torch.dtype | None,
        *,
        input_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """router_logits: float32, float16 or bfloat16 [T, E]. Returns: (float32 [T, k], int32 [T, k])."""
        groups = {}
        if self.use_grouped_topk:
            # Without groups vLLM takes neither a bias nor a factor here.
            groups = dict(
                bias=self.e_score_correction_bias,
                groups=self.num_expert_group,
                top_groups=self.topk_group,
                group_score="max" if self.e_score_correction_bias is None else "top2",
                factor=self.routed_scaling_factor,
            )
        return kernel.moe_route(
            router_logits, self.top_k, scoring=self.scoring_func, renormalize=self.renormalize, **groups
        )


def connect(model: torch.nn.Module) -> int:
    """Gives the mixtures that run on FusedMoeExperts a MoeRouteRouter, in place. Returns: how many those are."""
    mixtures = [each for each in model.modules() if isinstance(each, MoERunner) and runs_on(each.routed_experts)]
    for mixture in mixtures:
        if _can_route(mixture.router):
            mixture.router.__class__ = MoeRouteRouter
    return len(mixtures)


def _can_route(router: FusedMoERouter) -> bool:
    """Whether it is exactly vLLM's own, and asks for nothing that moe_route lacks."""
    if type(router) is not CPURouter or router.custom_routing_function is not None:
        return False
    if router.scoring_func not in ("softmax", "sigmoid"):
        return False
    return router.top_k <= _MOST_CHOICES and router.global_num_experts <= _MOST_EXPERTS
