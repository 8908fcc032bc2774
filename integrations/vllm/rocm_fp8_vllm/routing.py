"""vLLM's choice of experts on a CPU, as one operator: moe_route.

vLLM's own is a dozen of torch's. Of bfloat16 logits it rounds the softmax to bfloat16; here it is float32, as in
transformers. On a GPU vLLM has kernels of its own for it, which stay.

vLLM's router refuses a sigmoid without groups, and leaves out a bias or a factor without groups. moe_route has all of
them in every combination, in the order of vLLM's routers on GPUs: score, bias for the choice alone, renormalisation,
factor.
"""

from collections import Counter

import torch
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.fused_moe.router.fused_moe_router import FusedMoERouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from .experts import experts_of
from .kernel import kernel

__all__ = ["MoeRouteRouter", "connect"]

_MOST_EXPERTS, _MOST_CHOICES = 1024, 32  # moe_route's

# A router's attributes that MoeRouteRouter hands on, and those that vLLM's base class serves around any choice. Where
# another one is set, which may be of a later vLLM, the router stays vLLM's.
_HANDED_ON = {
    "top_k",
    "global_num_experts",
    "use_grouped_topk",
    "num_expert_group",
    "topk_group",
    "renormalize",
    "scoring_func",
    "routed_scaling_factor",
    "e_score_correction_bias",
}
_SERVED = {"capture_fn", "_routing_replay_out"}


class MoeRouteRouter(CPURouter):
    """Softmax or sigmoid, with groups, a bias and a factor or without. Ties go to the lower index."""

    def _compute_routing(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        indices_type: torch.dtype | None,
        *,
        input_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """router_logits: float32, float16 or bfloat16 [T, E]. Returns: (float32 [T, k], int32 [T, k])."""
        bias = self.e_score_correction_bias
        groups, top_groups = _groups(self)
        return kernel.moe_route(
            router_logits,
            self.top_k,
            scoring=self.scoring_func,
            bias=None if bias is None else bias.float(),
            groups=groups,
            top_groups=top_groups,
            group_score="max" if bias is None else "top2",
            renormalize=self.renormalize,
            factor=self.routed_scaling_factor,
        )


def connect(model: torch.nn.Module) -> Counter[str]:
    """Gives the mixtures that run on FusedMoeExperts a MoeRouteRouter, in place. Returns: kind of weights -> how many.

    Raises: ValueError that names n_group or topk_group of a router, where they make no groups.
    """
    kinds = Counter()
    for mixture in model.modules():
        if not isinstance(mixture, MoERunner) or (experts := experts_of(mixture.routed_experts)) is None:
            continue
        kinds[experts.kind] += 1
        if _can_route(mixture.router):
            mixture.router.__class__ = MoeRouteRouter
    return kinds


def _can_route(router: FusedMoERouter) -> bool:
    """Whether it is exactly vLLM's own, and asks for nothing that moe_route lacks. Raises: as `connect`."""
    if type(router) is not CPURouter:
        return False
    if any(_is_set(value) for name, value in vars(router).items() if name not in _HANDED_ON | _SERVED):
        return False
    if router.scoring_func not in ("softmax", "sigmoid"):
        return False
    if not isinstance(router.routed_scaling_factor, int | float):
        return False
    count, bias = router.global_num_experts, router.e_score_correction_bias
    if bias is not None and bias.shape != (count,):
        return False
    if router.top_k > _MOST_CHOICES or count > _MOST_EXPERTS:
        return False
    groups, top_groups = _groups(router)
    if count % groups or not 1 <= top_groups <= groups or router.top_k > top_groups * (count // groups):
        raise ValueError(
            f"experts: n_group {groups}, topk_group {top_groups}; needs equal groups of the {count} experts, of which"
            f" topk_group hold {router.top_k} or more"
        )
    return True


def _is_set(value: object) -> bool:
    """Whether an attribute asks for something: neither None nor a zero, False or nothing at all."""
    return value is not None and (isinstance(value, torch.Tensor) or bool(value))


def _groups(router: CPURouter) -> tuple[int, int]:
    """(groups of experts, how many of them a token chooses from). Without n_group all experts are one group, as in
    DeepSeek-V2's configurations whose n_group is null. Raises: ValueError where one of the two is missing."""
    if not router.use_grouped_topk:
        return 1, 1
    groups, top_groups = router.num_expert_group, router.topk_group
    if groups is None and top_groups in (None, 1):
        return 1, 1
    for name, value in (("n_group", groups), ("topk_group", top_groups)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"experts: {name} is {value}; needs a positive number, or n_group and topk_group null")
    return groups, top_groups
