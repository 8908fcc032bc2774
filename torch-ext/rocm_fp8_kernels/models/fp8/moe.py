"""A mixture of experts as the half of a decoder layer: one norm feeds the router in 16 bits, and the experts in FP8
where they take it."""

import torch
import torch.nn.functional as F

from ...layers.watching import is_watched, ours
from ...operators import operators
from .experts import Fp8Experts
from .halves import FusedHalf, FusedMLP, Routing
from .linear import QuantizedLinear


class MoeRouter:
    """In the place of a router: transformers' results, by moe_route.

    Attributes: weight [E, D], top_k, `routing`; for "sigmoid" also e_score_correction_bias, num_group, topk_group and
    routed_scaling_factor; norm_topk_prob, where weights need not sum to 1.
    """

    routing: Routing

    @ours
    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden_states [..., D]: (logits [T, E], weights [T, k], experts int32 [T, k])."""
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        renormalize = bool(getattr(self, "norm_topk_prob", True))
        if self.routing.scoring == "sigmoid":
            logits = F.linear(x.float(), self.weight.float())
            weights, experts = operators().moe_route(
                logits,
                self.top_k,
                scoring="sigmoid",
                bias=self.e_score_correction_bias.float(),
                groups=self.num_group,
                top_groups=self.topk_group,
                renormalize=renormalize,
                factor=self.routed_scaling_factor,
            )
            return logits, weights, experts
        logits = F.linear(x, self.weight)
        weights, experts = operators().moe_route(logits, self.top_k, renormalize=renormalize)
        return logits, weights.to(logits.dtype) if self.routing.rounded else weights, experts


class FusedMoe(FusedHalf):
    READS_BOTH = True
    experts: Fp8Experts

    @property
    def first(self) -> Fp8Experts:
        return self.experts

    @property
    def last(self) -> Fp8Experts:
        return self.experts

    @ours
    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """hidden_states: float16 or bfloat16 [..., D]; quantized: the same as experts take it, (FP8, scales)."""
        _, weights, chosen = self.gate(hidden_states)
        shared = getattr(self, "shared_experts", None)
        if shared is not None:
            shared = self._shared(shared, hidden_states, quantized)
        if not isinstance(self.experts, Fp8Experts) or is_watched(self.experts):
            result = self.experts(hidden_states, chosen, weights)
            return result if shared is None else result + shared
        return self.experts(hidden_states, chosen, weights, quantized=quantized, shared=shared)

    def _shared(self, module: torch.nn.Module, x: torch.Tensor, quantized) -> torch.Tensor:
        if not isinstance(module, FusedMLP):
            return module(x)
        linear = module.gate_up_proj
        plain = isinstance(linear, QuantizedLinear) and not is_watched(module) and not is_watched(linear)
        alike = plain and quantized is not None and quantized[0].dtype == linear.input_dtype
        if alike and linear.input_scale is None and _in_rows(linear) == _in_rows(self.experts):
            return module(quantized[0], input_scale=quantized[1])
        return module(x)


def _in_rows(module: torch.nn.Module) -> dict:
    """Its input_scaling(), with scales in the order in which experts take them."""
    return (module.input_scaling() or {}) | dict(column_major_scales=False)
