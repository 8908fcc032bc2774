"""transformers' experts on the operators, without a change of the model: functions for its interfaces of experts."""

import torch

from .. import ops as _ops
from ..models.fp8.experts import operands, why_not, why_not_silu
from ..ops.device import fp8_dtype

_BLOCK = [128, 128]


def _refuse(module: torch.nn.Module, why: str):
    raise ValueError(f"{type(module).__name__}: {why}; another experts_implementation takes them")


def experts_forward(
    self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Experts in float16 or bfloat16, stacked as transformers has them: fused_moe of them. For inference."""
    if (why := why_not(self)) is not None:
        _refuse(self, why)
    return _ops.fused_moe(*operands(self, hidden_states, top_k_index, top_k_weights)).view(hidden_states.shape)


def fp8_experts_forward(
    self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Experts that transformers has loaded from an "fp8" checkpoint (FP8Experts): blocks of 128x128, dynamic inputs."""
    if not self.has_gate or getattr(self, "gate_up_proj_bias", None) is not None:
        _refuse(self, "needs a gate, and no biases")
    if (why := why_not_silu(self.act_fn)) is not None:
        _refuse(self, why)
    if list(self.block_size or ()) != _BLOCK or self.activation_scheme != "dynamic":
        _refuse(self, "needs blocks of 128x128 and dynamic activations")
    if self.gate_up_proj.dtype != fp8_dtype(self.gate_up_proj.device):
        _refuse(self, f"needs {fp8_dtype(self.gate_up_proj.device)} here; quantization.load_quantized converts it")
    if self.swiglu_alpha is not None:
        _refuse(self, "swiglu_alpha is another gate")
    return _ops.fused_moe(
        *operands(self, hidden_states, top_k_index, top_k_weights),
        scale_w13=self.gate_up_proj_scale_inv,
        scale_w2=self.down_proj_scale_inv,
        limit=self.limit,
    ).view(hidden_states.shape)


def register(name: str) -> str:
    """See register_experts."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(name, experts_forward)
    try:
        from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS
    except ImportError:
        return name
    ALL_FP8_EXPERTS_FUNCTIONS.register(name, fp8_experts_forward)
    return name
