"""A mixture of experts as the half of a decoder layer: one norm feeds the router in 16 bits and the experts in FP8."""

from types import ModuleType

import torch
from kernels import use_kernel_forward_from_hub

from ... import reference
from ...layers.moe import route
from ...layers.watching import call, called_on, is_watched, ours
from .experts import Fp8Experts
from .halves import FusedHalf, FusedMLP, Routing
from .linear import Fp8Linear


@use_kernel_forward_from_hub("MoeRouter")
class MoeRouter:
    """In the place of a router: transformers' results, by moe_route."""

    routing: Routing

    @ours
    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden_states [..., D]: (logits [T, E], weights [T, k], experts int32 [T, k])."""
        return route(self, reference, hidden_states)


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
        ops: ModuleType = reference,
        quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """hidden_states: float16 or bfloat16 [..., D]; quantized: the same as experts take it, (FP8, scales)."""
        ops = called_on(ops)
        _, weights, chosen = self.gate(hidden_states)
        shared = getattr(self, "shared_experts", None)
        if shared is not None:
            shared = self._shared(shared, ops, hidden_states, quantized)
        if not isinstance(self.experts, Fp8Experts) or is_watched(self.experts):
            result = self.experts(hidden_states, chosen, weights)
            return result if shared is None else result + shared
        return self.experts.multiply(ops, hidden_states, chosen, weights, quantized=quantized, shared=shared)

    def _shared(self, module: torch.nn.Module, ops: ModuleType, x: torch.Tensor, quantized) -> torch.Tensor:
        if not isinstance(module, FusedMLP):
            return module(x)
        linear = module.gate_up_proj
        plain = isinstance(linear, Fp8Linear) and not is_watched(module) and not is_watched(linear)
        alike = plain and quantized is not None and linear.input_scale is None
        if alike and linear.input_scaling() == self.experts.input_scaling():
            return module(quantized[0], ops=ops, input_scale=quantized[1])
        return call(module, x, ops=ops, more={})
