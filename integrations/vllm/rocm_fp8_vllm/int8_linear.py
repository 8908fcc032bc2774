"""vLLM's INT8 linears (W8A8) on quantize_int8 and int8_gemm: all rows, on CPUs and on ROCm.

On CUDA vLLM's CUTLASS linear stays: int8_gemm has not been timed beside it.
"""

import torch
from vllm.model_executor.kernels import linear as _choice
from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
    Int8ScaledMMLinearKernel,
    Int8ScaledMMLinearLayerConfig,
)
from vllm.model_executor.layers.quantization.utils import replace_parameter
from vllm.platforms import current_platform

from .kernel import kernel

__all__ = ["Int8GemmLinear", "install"]


class Int8GemmLinear(Int8ScaledMMLinearKernel):
    """INT8 weights with a scale a tensor or an output channel. Inputs with a scale a tensor (static) or a row, each
    with a zero point where the checkpoint is asymmetric."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None  # `register` has asked

    @classmethod
    def can_implement(cls, config: Int8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """What a checkpoint holds, as the operator below takes it: weight int8 [N, K], scales float32 [1] or [1, N],
        input_scale float32 [1], input_zero_point int32 [1], azp_adj int32 [N]: the sums of the weight's rows."""
        names = dict(zip(("weight", "weight_scale", "scale", "zero", "sums"), self.layer_param_names))
        # Of a linear whose weights are loaded anew vLLM has taken away what no checkpoint has.
        weight, weight_scale, scale, zero = (getattr(layer, names[each], None) for each in list(names)[:-1])
        if not self.config.is_channelwise and weight_scale.numel() > 1:  # of the parts of a joined linear
            widths = torch.tensor(layer.logical_widths, device=weight_scale.device)
            weight_scale = weight_scale.repeat_interleave(widths)
        new = dict(
            weight=weight.data.contiguous(),
            weight_scale=weight_scale.data.reshape(1, -1) if weight_scale.numel() > 1 else weight_scale.data.reshape(1),
        )
        if self.config.is_static_input_scheme:
            new["scale"] = scale.data.reshape(1)
        if not self.config.input_symmetric and self.config.is_static_input_scheme:
            new["zero"] = zero.data.reshape(1).to(torch.int32)
        for name, value in new.items():
            replace_parameter(layer, names[name], torch.nn.Parameter(value, requires_grad=False))
        if not self.config.input_symmetric:
            sums = new["weight"].sum(1, dtype=torch.int32)
            setattr(layer, names["sums"], torch.nn.Parameter(sums, requires_grad=False))

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x: float16, bfloat16 or float32 [..., K]. Returns: x's dtype [..., N]."""
        weight, weight_scale, scale, zero, sums = self._get_layer_params(layer)
        return torch.ops.rocm_fp8_vllm.int8_linear(x, weight, weight_scale, bias, scale, zero, sums)


# One operator: a compiled graph then holds no int8 tensors that are written in place.
_library = torch.library.Library("rocm_fp8_vllm", "FRAGMENT")
_library.define(
    "int8_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, Tensor? scale, Tensor? zero, Tensor? sums)"
    " -> Tensor"
)


def _linear(x, weight, weight_scale, bias, scale, zero, sums):
    """scale: of all inputs, or None: one a row is computed. zero: with scale. sums: None where inputs are symmetric."""
    q, scale, zero = kernel.quantize_int8(x.reshape(-1, x.shape[-1]), scale, zero, symmetric=sums is None)
    out = kernel.int8_gemm(q, weight, scale, weight_scale, bias, zero_a=zero, sum_b=sums, out_dtype=x.dtype)
    return out.view(*x.shape[:-1], weight.shape[0])


def _linear_fake(x, weight, weight_scale, bias, scale, zero, sums):
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_library.impl("int8_linear", _linear, "CompositeExplicitAutograd")
torch.library.register_fake("rocm_fp8_vllm::int8_linear", _linear_fake, lib=_library)


def install() -> None:
    """Before vLLM's own linears."""
    if current_platform.is_cuda():
        return
    linears = _choice._POSSIBLE_INT8_KERNELS[current_platform._enum]
    if Int8GemmLinear not in linears:
        linears.insert(0, Int8GemmLinear)
