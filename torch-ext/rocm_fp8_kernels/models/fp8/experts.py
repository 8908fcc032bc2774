"""The experts of a mixture on FP8 weights: a module in the place of transformers' stacked ones."""

import torch

from ...layers.experts import operands, why_not
from ...layers.watching import ours
from ...operators import operators
from ..codes import Codes
from .linear import BLOCK, quantize_weight, to_fnuz

__all__ = ["Fp8Experts", "check_experts", "experts_of", "replace_experts"]


def experts_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Qualified name -> module, of all stacked experts."""

    def stacked(module: torch.nn.Module) -> bool:
        return any(value.dim() == 3 and name == "down_proj" for name, value in module.named_parameters(recurse=False))

    return {name: module for name, module in model.named_modules() if stacked(module)}


class Fp8Experts(Codes):
    """A mixture of experts on FP8 weights: `fused_moe` of them.

    Attributes:
        inputs: what of x, and of the hidden values, has a scale: "group" (of 128) with weights of blocks; "row"; or
            "tensor", whose scales are stored.
        power_of_two: whether scales of groups are powers of two.

    Buffers:
        gate_up_proj: FP8 [E, 2 I, D]; down_proj: FP8 [E, D, I].
        gate_up_scale, down_scale: float32 [E, ceil(N / 128), ceil(K / 128)], [E, N, 1] or [E, 1, 1].
        input_scale, hidden_scale: float32 [1]: of x, and of the hidden values, with inputs="tensor"; else None.
    """

    def __init__(
        self,
        gate_up: tuple[torch.Tensor, torch.Tensor],
        down: tuple[torch.Tensor, torch.Tensor],
        *,
        inputs: str,
        dtype: torch.dtype,
        power_of_two: bool = False,
        input_scale: torch.Tensor | None = None,
        hidden_scale: torch.Tensor | None = None,
    ):
        """gate_up, down: (codes, scales)."""
        super().__init__()
        self.inputs, self.dtype, self.power_of_two = inputs, dtype, power_of_two
        self.register_buffer("input_scale", input_scale)
        self.register_buffer("hidden_scale", hidden_scale)
        for name, (weight, scale) in (("gate_up", gate_up), ("down", down)):
            self.register_buffer(f"{name}_proj", weight)
            self.register_buffer(f"{name}_scale", scale)

    @property
    def num_experts(self) -> int:
        return len(self.gate_up_proj)

    @classmethod
    def quantized(cls, experts: torch.nn.Module, granularity: str, fp8_dtype: torch.dtype) -> "Fp8Experts":
        """Of transformers' stacked experts."""
        parts = [
            _stack_of(weight.detach(), granularity, fp8_dtype) for weight in (experts.gate_up_proj, experts.down_proj)
        ]
        return cls(*parts, inputs="group" if granularity == "block" else "row", dtype=experts.down_proj.dtype)

    @property
    def weight(self) -> torch.Tensor:
        """What says the FP8 format, as of Fp8Linear."""
        return self.gate_up_proj

    def kind(self) -> str:
        power = " as powers of two" if self.power_of_two else ""
        return f"experts of {self.gate_up_proj.dtype}, inputs by {self.inputs}{power}"

    def weights(self) -> dict[str, str]:
        """What has a weight scale, of gate_up_proj and of down_proj: "tensor" (of an expert), "channel" or "block"."""
        if self.inputs == "group":
            return {"gate_up_proj": "block", "down_proj": "block"}
        scales = {"gate_up_proj": self.gate_up_scale, "down_proj": self.down_scale}
        return {name: "tensor" if scale.shape[1:].numel() == 1 else "channel" for name, scale in scales.items()}

    def to_fnuz_(self) -> "Fp8Experts":
        """For gfx942: the same numbers in float8_e4m3fnuz, in place."""
        self.gate_up_proj, self.gate_up_scale = to_fnuz(self.gate_up_proj, self.gate_up_scale)
        self.down_proj, self.down_scale = to_fnuz(self.down_proj, self.down_scale)
        if self.inputs == "tensor":  # as of Fp8Linear
            self.input_scale, self.hidden_scale = self.input_scale * 2, self.hidden_scale * 2
        return self

    @ours
    def forward(
        self,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
        *,
        quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
        shared: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As transformers calls experts.

        Args:
            hidden_states: float16 or bfloat16 [..., D].
            top_k_index: int32 or int64 [T, k]; an expert that is none of this module's is left out.
            top_k_weights: [T, k].
            quantized: hidden_states in FP8, and its scales, where they are at hand.
            shared: as in fused_moe.

        Returns: hidden_states' dtype [..., D].
        """
        x, *others = operands(self, hidden_states, top_k_index, top_k_weights)
        input_scale = self.input_scale
        if quantized is not None:
            x, input_scale = quantized[0].view(x.shape), quantized[1].view(x.shape[0], -1)
        return (
            operators()
            .fused_moe(
                x,
                *others,
                scale_w13=self.gate_up_scale,
                scale_w2=self.down_scale,
                inputs="static" if self.inputs == "tensor" else self.inputs,
                input_scale=input_scale,
                hidden_scale=self.hidden_scale,
                shared=None if shared is None else shared.view(x.shape),
                power_of_two=self.power_of_two,
                dtype=hidden_states.dtype,
            )
            .view(hidden_states.shape)
        )

    def input_scaling(self) -> dict:
        """What the dynamic operators are told about the input; where it has no stored scale."""
        if self.inputs != "group":
            return dict(scaling="row", scale_ub=None)
        return dict(scaling="group", group_size=BLOCK, power_of_two=self.power_of_two)

    def extra_repr(self) -> str:
        count, d, hidden = self.down_proj.shape
        return f"{count} experts, {d}, {hidden}, {self.down_proj.dtype}, scales of inputs per {self.inputs}"


def _stack_of(weight: torch.Tensor, granularity: str, fp8_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """One expert after the other: no wide copy of all is made."""
    codes, scales = torch.empty_like(weight, dtype=fp8_dtype), []
    for e, of_expert in enumerate(weight):
        quantized, scale = quantize_weight(of_expert, fp8_dtype, granularity)
        codes.view(torch.uint8)[e] = quantized.view(torch.uint8)
        scales.append(scale if granularity == "block" else scale.reshape(-1, 1))
    return codes, torch.stack(scales)


def check_experts(model: torch.nn.Module) -> None:
    """ValueError that names the first experts to be quantised which the operators do not take, or that hold no
    numbers."""
    for name, module in experts_of(model).items():
        if why_not(module) is not None:
            continue
        for stack in ("gate_up_proj", "down_proj"):
            weight = getattr(module, stack)
            if weight.dtype not in (torch.float16, torch.bfloat16):
                raise ValueError(f"{name}.{stack}: dtype {weight.dtype}; needs float16 or bfloat16")
            if weight.is_meta:
                raise ValueError(f"{name}.{stack} is on the device meta; needs its numbers (offload the model later)")
            if not all(bool(torch.isfinite(of_expert).all()) for of_expert in weight):
                raise ValueError(f"{name}.{stack} holds NaN or infinity")


def replace_experts(model: torch.nn.Module, granularity: str, fp8_dtype: torch.dtype) -> dict[str, str]:
    """Quantises a model's experts, in place. Returns: name of those that stay -> why."""
    stay = {}
    for name, module in experts_of(model).items():
        if (why := why_not(module)) is not None:
            stay[name] = why
        else:
            model.set_submodule(name, Fp8Experts.quantized(module, granularity, fp8_dtype))
    return stay
