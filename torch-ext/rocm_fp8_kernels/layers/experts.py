"""transformers' experts on the operators: which of them fused_moe computes, and functions for its interfaces of
experts, which need no change of the model."""

import functools
import itertools
import math
from types import SimpleNamespace

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
    [E, D, I], or both transposed, as transformers stacks them."""
    # Set by transformers' decorator for experts. Without it a forward may be anything: Llama 4's takes sorted rows,
    # LongCat's has experts that do nothing.
    if not hasattr(module, "is_concatenated"):
        return "transformers' interface for experts does not reach their forward"
    if not getattr(module, "has_gate", True) or getattr(module, "gate_up_proj", None) is None:
        return "they have no gate"
    if getattr(module, "gate_up_proj_bias", None) is not None and not getattr(module, "has_bias", False):
        return "they have biases that their has_bias denies"
    activation = getattr(module, "act_fn", None)
    if activation is not None and (why := why_not_silu(activation)) is not None:
        return why
    if gate_of(module) is None:
        return "they have a gate of their own"
    return None


def is_transposed(module: torch.nn.Module) -> bool:
    """Whether stacked experts are [E, D, 2 I] and [E, I, D]."""
    return bool(getattr(module, "is_transposed", False))


def sizes_of(module: torch.nn.Module) -> tuple[int, int, int]:
    """(E, D, I) of stacked experts."""
    count, *sizes = module.down_proj.shape
    return (count, *(reversed(sizes) if is_transposed(module) else sizes))


def gate_of(module: torch.nn.Module) -> dict | None:
    """What experts do between their products, as arguments of fused_moe; None where that has no word for it.

    Their own code is asked, with numbers, so that no list of architectures is needed.
    """
    if "_apply_gate" in vars(module):  # somebody's own
        return None
    if _default_gate(module):
        return {} if is_silu(getattr(module, "act_fn", None)) else None
    numbers = {name: value for name, value in vars(module).items() if type(value) in (float, int, type(None))}
    return _asked_gate(type(module), tuple(numbers.items()))


def _default_gate(module: torch.nn.Module) -> bool:
    """Whether the gate is transformers' own: SiLU(gate) * up."""
    from transformers.integrations import moe

    own = getattr(type(module), "_apply_gate", None)
    return own is None or own is getattr(moe, "_default_apply_gate", None)


@torch.compiler.assume_constant_result
@functools.cache
def _asked_gate(kind: type, numbers: tuple) -> dict | None:
    """Of a class with these attributes, whose activation, if it has one, is SiLU."""
    from ..reference import moe_gate

    given = dict(numbers)
    limits = [value for name, value in numbers if "limit" in name and value and 0 < value < math.inf]
    most = 3 * max([2.0, *limits])
    # Pairs of a grid: of gates and ups that any limit cuts, and of those that none does.
    steps = torch.linspace(-most, most, 48)
    x = torch.stack([steps.repeat(48), steps.roll(17).repeat_interleave(48)], 1).reshape(48, -1)
    try:
        wanted = kind._apply_gate(SimpleNamespace(**given, act_fn=torch.nn.functional.silu), x)
    except Exception:  # it needs more than numbers
        return None
    alphas = [value for name, value in numbers if "alpha" in name and value]
    shapes = [dict(gate="silu"), *(dict(gate="oai", alpha=alpha) for alpha in alphas)]
    for shape, limit, order in itertools.product(shapes, (None, *limits), (False, True)):
        found = shape | dict(limit=limit, interleaved=order)
        if torch.allclose(moe_gate(x, **found, out=torch.empty_like(wanted)), wanted, rtol=1e-5, atol=1e-5):
            return found
    return None


def operands(experts: torch.nn.Module, hidden_states, top_k_index, top_k_weights) -> tuple[torch.Tensor, ...]:
    """fused_moe's, of stacked experts that are called as transformers calls them."""
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    weights = top_k_weights.float().contiguous()
    return x, experts.gate_up_proj, experts.down_proj, weights, top_k_index.contiguous()


def biases_of(experts: torch.nn.Module) -> dict:
    """fused_moe's, of transformers' stacked experts; without any, none."""
    named = (("bias13", "gate_up_proj_bias"), ("bias2", "down_proj_bias"))
    return {ours: bias for ours, name in named if (bias := getattr(experts, name, None)) is not None}


def _refuse(module: torch.nn.Module, why: str):
    raise ValueError(f"{type(module).__name__}: {why}; another experts_implementation takes them")


def experts_forward(
    self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Experts in float16 or bfloat16, stacked as transformers has them: fused_moe of them. For inference."""
    if (why := why_not(self)) is not None:
        _refuse(self, why)
    if is_transposed(self):
        _refuse(self, "their weights are transposed, and each call would copy them; quantization.quantize turns them")
    given = operands(self, hidden_states, top_k_index, top_k_weights)
    return operators().fused_moe(*given, **biases_of(self), **gate_of(self)).view(hidden_states.shape)


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
