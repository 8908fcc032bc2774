"""The experts of a mixture on FP8 or MX weights: a module in the place of transformers' stacked ones."""

import torch

from ...layers.experts import biases_of, gate_of, is_transposed, operands, why_not
from ...layers.watching import ours
from ...operators import operators
from ...ops.mx import MX_BLOCK
from ..codes import Codes
from .linear import BLOCK, input_dtype_of, quantize_weight, to_fnuz
from .mx_linear import mx_format, mx_scaling

__all__ = ["Fp8Experts", "check_experts", "experts_of", "replace_experts"]


def experts_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Qualified name -> module, of all stacked experts."""

    def stacked(module: torch.nn.Module) -> bool:
        return any(value.dim() == 3 and name == "down_proj" for name, value in module.named_parameters(recurse=False))

    return {name: module for name, module in model.named_modules() if stacked(module)}


class Fp8Experts(Codes):
    """A mixture of experts on FP8 or MX weights: `fused_moe` of them.

    Attributes:
        inputs: what of x, and of the hidden values, has a scale: "group" (of 128) with weights of blocks; "row"; or
            "tensor", whose scales are stored. Beside MX weights fused_moe's words.
        power_of_two: whether scales of groups are powers of two.
        gate: fused_moe's arguments that say what is between the products; of none, SwiGLU.

    Buffers:
        gate_up_proj: FP8 [E, 2 I, D]; down_proj: FP8 [E, D, I]. MXFP4: uint8, the last size halved.
        gate_up_scale, down_scale: float32 [E, ceil(N / 128), ceil(K / 128)], [E, N, 1] or [E, 1, 1]; MX: float8_e8m0fnu
            [E, N, K / 32].
        gate_up_bias, down_bias: [E, 2 I] and [E, D], or None.
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
        biases: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
        gate: dict | None = None,
    ):
        """gate_up, down: (codes, scales); biases: of each."""
        super().__init__()
        self.inputs, self.dtype, self.power_of_two, self.gate = inputs, dtype, power_of_two, gate or {}
        self.register_buffer("input_scale", input_scale)
        self.register_buffer("hidden_scale", hidden_scale)
        for name, (weight, scale), bias in (("gate_up", gate_up, biases[0]), ("down", down, biases[1])):
            self.register_buffer(f"{name}_proj", weight)
            self.register_buffer(f"{name}_scale", scale)
            self.register_buffer(f"{name}_bias", bias)

    @property
    def num_experts(self) -> int:
        return len(self.gate_up_proj)

    @property
    def intermediate_size(self) -> int:
        return self.gate_up_proj.shape[1] // 2

    @classmethod
    def quantized(cls, experts: torch.nn.Module, granularity: str, fp8_dtype: torch.dtype) -> "Fp8Experts":
        """Of transformers' stacked experts. granularity: of an FP8 weight, or "mxfp4"."""
        stacks = [getattr(experts, name).detach() for name in ("gate_up_proj", "down_proj")]
        if is_transposed(experts):
            stacks = [stack.transpose(1, 2) for stack in stacks]
        biases = biases_of(experts)
        return cls(
            *(_stack_of(stack, granularity, fp8_dtype) for stack in stacks),
            inputs={"block": "group", "mxfp4": "16bit"}.get(granularity, "row"),
            dtype=experts.down_proj.dtype,
            biases=tuple(None if (bias := biases.get(name)) is None else bias.detach() for name in ("bias13", "bias2")),
            gate=gate_of(experts),
        )

    @property
    def weight(self) -> torch.Tensor:
        """What says the FP8 format, as of Fp8Linear."""
        return self.gate_up_proj

    @property
    def format(self) -> str:
        """Of the weights: "mxfp4", "mxfp8" or "fp8"."""
        return mx_format(self.gate_up_proj) if self.gate_up_scale.dtype == torch.float8_e8m0fnu else "fp8"

    @property
    def input_dtype(self) -> torch.dtype:
        """Of an input that is quantised to FP8."""
        return input_dtype_of(self.weight)

    def kind(self) -> str:
        power = " as powers of two" if self.power_of_two else ""
        format = self.gate_up_proj.dtype if self.format == "fp8" else self.format
        return f"experts of {format}, inputs by {self.inputs}{power}"

    def weights(self) -> dict[str, str]:
        """What has a weight scale, of gate_up_proj and of down_proj: "tensor" (of an expert), "channel" or "block"; or
        the MX format."""
        if self.format != "fp8":
            return {"gate_up_proj": self.format, "down_proj": self.format}
        if self.inputs == "group":
            return {"gate_up_proj": "block", "down_proj": "block"}
        scales = {"gate_up_proj": self.gate_up_scale, "down_proj": self.down_scale}
        return {name: "tensor" if scale.shape[1:].numel() == 1 else "channel" for name, scale in scales.items()}

    def to_fnuz_(self) -> "Fp8Experts":
        """For gfx942: the same numbers in float8_e4m3fnuz, in place. MXFP4 is the same everywhere."""
        if self.format == "mxfp4":
            return self
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
                bias13=self.gate_up_bias,
                bias2=self.down_bias,
                **self.gate,
                shared=None if shared is None else shared.view(x.shape),
                power_of_two=self.power_of_two,
                dtype=hidden_states.dtype,
            )
            .view(hidden_states.shape)
        )

    def input_scaling(self) -> dict | None:
        """What the dynamic operators are told about the input; None: it has a stored scale, or enters in 16 bits."""
        if self.format != "fp8":
            return mx_scaling(self.inputs)
        if self.inputs == "tensor":
            return None
        if self.inputs != "group":
            return dict(scaling="row", scale_ub=None)
        return dict(scaling="group", group_size=BLOCK, power_of_two=self.power_of_two)

    def extra_repr(self) -> str:
        count, d = self.down_proj.shape[:2]
        format = self.down_proj.dtype if self.format == "fp8" else self.format
        return f"{count} experts, {d}, {self.intermediate_size}, {format}, scales of inputs per {self.inputs}"


def _stack_of(weight: torch.Tensor, granularity: str, fp8_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """One expert after the other: no wide copy of all is made."""
    if granularity == "mxfp4":
        # "even" is 3 to 7 % nearer than "up" (docs/journal/byte_deepseek.md).
        parts = [operators().quantize_mxfp4(of_expert.contiguous(), rounding="even") for of_expert in weight]
        return tuple(map(torch.stack, zip(*parts)))
    codes, scales = torch.empty_like(weight, dtype=fp8_dtype, memory_format=torch.contiguous_format), []
    for e, of_expert in enumerate(weight):
        quantized, scale = quantize_weight(of_expert, fp8_dtype, granularity)
        codes.view(torch.uint8)[e] = quantized.view(torch.uint8)
        scales.append(scale if granularity == "block" else scale.reshape(-1, 1))
    return codes, torch.stack(scales)


def check_mxfp4(model: torch.nn.Module) -> None:
    """ValueError where a model has no experts that can be MXFP4, or some have rows of another length than blocks."""
    found = experts_of(model)
    if any(isinstance(module, Fp8Experts) for module in model.modules()):
        raise ValueError("the model is quantised already")
    if not any(why_not(module) is None for module in found.values()):
        why = next((why_not(module) for module in found.values()), "it has no mixture of stacked experts")
        raise ValueError(f"experts: {type(model).__name__} has none for 'mxfp4': {why}")
    for name, module in found.items():
        for stack in ("gate_up_proj", "down_proj") if why_not(module) is None else ():
            k = getattr(module, stack).shape[1 if is_transposed(module) else 2]
            if k % MX_BLOCK:
                raise ValueError(f"{name}.{stack}: {k} inputs; MXFP4 needs a multiple of {MX_BLOCK}")


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


def replace_experts(model: torch.nn.Module, granularity: str, fp8_dtype: torch.dtype | None) -> dict[str, str]:
    """Quantises a model's experts, in place; granularity: as of Fp8Experts.quantized. Returns: name of those that stay
    -> why."""
    stay = {}
    for name, module in experts_of(model).items():
        if (why := why_not(module)) is not None:
            stay[name] = why
        else:
            model.set_submodule(name, Fp8Experts.quantized(module, granularity, fp8_dtype))
    return stay
