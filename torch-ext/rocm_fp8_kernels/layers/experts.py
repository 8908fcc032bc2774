"""transformers' experts on the operators: which of them fused_moe computes, and functions for its interfaces of
experts, which need no change of the model."""

import torch

from ..operators import operators
from ..ops.device import fp8_dtype

_BLOCK = [128, 128]


def is_silu(activation) -> bool:
    """Whether an activation, a module or a function, is SiLU."""
    from transformers.activations import ACT2CLS  # importing it takes longer than the rest of the package

    return activation is torch.nn.functional.silu or type(activation) in (ACT2CLS["silu"], ACT2CLS["swish"])


def why_not_silu(activation) -> str | None:
    if is_silu(activation):
        return None
    name = getattr(activation, "__name__", type(activation).__name__)
    return f"their activation is {name}, and swiglu needs SiLU"


def why_not(module: torch.nn.Module) -> str | None:
    """Why experts stay as they are; None: Fp8Experts takes them. They have gate_up_proj [E, 2 I, D] and down_proj
    [E, D, I], as transformers stacks them."""
    # Set by transformers' decorator for experts. Without it a forward may be anything: Llama 4's takes sorted rows,
    # LongCat's has experts that do nothing.
    if not hasattr(module, "is_concatenated"):
        return "transformers' interface for experts does not reach their forward"
    if not getattr(module, "has_gate", True) or getattr(module, "gate_up_proj", None) is None:
        return "they have no gate"
    if getattr(module, "has_bias", False) or getattr(module, "gate_up_proj_bias", None) is not None:
        return "they have biases"
    if getattr(module, "is_transposed", False) or not getattr(module, "is_concatenated", True):
        return "their weights are transposed or interleaved"
    if (why := why_not_silu(getattr(module, "act_fn", None))) is not None:
        return why
    if not _default_gate(module):
        return "they have a gate of their own"
    return None


def _default_gate(module: torch.nn.Module) -> bool:
    """Whether the gate is transformers' own: SiLU(gate) * up."""
    from transformers.integrations import moe

    own = getattr(type(module), "_apply_gate", None)
    return own is None or own is getattr(moe, "_default_apply_gate", None)


def operands(experts: torch.nn.Module, hidden_states, top_k_index, top_k_weights) -> tuple[torch.Tensor, ...]:
    """fused_moe's, of stacked experts that are called as transformers calls them."""
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    weights = top_k_weights.float().contiguous()
    return x, experts.gate_up_proj, experts.down_proj, weights, top_k_index.contiguous()


def _refuse(module: torch.nn.Module, why: str):
    raise ValueError(f"{type(module).__name__}: {why}; another experts_implementation takes them")


def experts_forward(
    self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Experts in float16 or bfloat16, stacked as transformers has them: fused_moe of them. For inference."""
    if (why := why_not(self)) is not None:
        _refuse(self, why)
    return operators().fused_moe(*operands(self, hidden_states, top_k_index, top_k_weights)).view(hidden_states.shape)


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
    ops, given = operators(), operands(self, hidden_states, top_k_index, top_k_weights)
    scales = dict(scale_w13=self.gate_up_proj_scale_inv, scale_w2=self.down_proj_scale_inv)
    return ops.fused_moe(*given, **scales, limit=self.limit).view(hidden_states.shape)


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
