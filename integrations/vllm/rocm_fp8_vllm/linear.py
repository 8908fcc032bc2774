"""vLLM's FP8 linears on the package's GEMMs.

At each call the package chooses by the number of rows (`quantization.gemm_for`): skinny_gemm for few rows (decode),
block_scaled_gemm or a library's GEMM for more (a prompt). The library's is the linear that vLLM would have chosen,
where it has one that takes the weight as it is, and otherwise block_scaled_gemm.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from vllm.model_executor.kernels import linear as _choice
from vllm.model_executor.kernels.linear.scaled_mm.cutlass import CutlassFP8ScaledMMLinearKernel
from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
    FP8ScaledMMLinearKernel,
    FP8ScaledMMLinearLayerConfig,
)
from vllm.model_executor.layers.fusion.quant_activation import QuantizedActivation, as_quantized_activation
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    QuantKey,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8StaticTensorSym,
)
from vllm.platforms import current_platform

from .activation import Activation
from .kernel import kernel

__all__ = ["FewRowsFp8Linear", "install"]

# What a checkpoint asks for -> what the linear is given. "Dynamic" without more, which vLLM reads as a scale a tensor
# on some platforms and a scale a row on others, is a scale a row here: as exact at least, and rows do not meet in it.
_INPUTS = {
    kFp8StaticTensorSym: kFp8StaticTensorSym,
    kFp8DynamicTokenSym: kFp8DynamicTokenSym,
    kFp8DynamicTensorSym: kFp8DynamicTokenSym,
}

# What vLLM's linears do to a loaded weight where the linear takes it as it is. CUTLASS's adds rows and columns up to
# multiples of 16, which the package's rule asks for anyway.
_LEAVE_WEIGHTS = (
    FP8ScaledMMLinearKernel.process_weights_after_loading,
    CutlassFP8ScaledMMLinearKernel.process_weights_after_loading,
)

_MANY = 2**20  # more rows than any step has

# On NVIDIA the most rows at which torch._scaled_mm is faster than vLLM's CUTLASS, where neither rows nor channels have
# scales (docs/journal/vllm.md). On ROCm 0: none was timed.
_TORCH_UP_TO = 512 if current_platform.is_cuda() else 0

# vLLM's own linears for many rows, one for all that are alike. The operator below is given the place here: the same one
# in all layers, which so stay one graph that is compiled once.
_many_rows: list[FP8ScaledMMLinearKernel] = []


class FewRowsFp8Linear(FP8ScaledMMLinearKernel):
    """FP8 weights with a scale a tensor or an output channel; inputs with a scale a tensor (static) or a row."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None  # `register` has asked

    @classmethod
    def can_implement(cls, config: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        weight = config.weight_quant_key
        if config.activation_quant_key not in _INPUTS:
            return False, f"has no inputs quantised by {config.activation_quant_key}"
        if not (weight.scale.group_shape.is_per_tensor() or weight.scale.group_shape.is_per_channel()):
            return False, f"has no weights quantised by {weight}"
        for dtype in (config.input_dtype, config.out_dtype):
            if dtype not in (torch.bfloat16, torch.float16):
                return False, f"has no {dtype}"
        return True, None

    def __init__(self, config: FP8ScaledMMLinearLayerConfig, layer_param_names: Sequence[str]):
        super().__init__(config, layer_param_names)
        self._many_rows = _place_of_other(
            replace(config, activation_quant_key=self.input_quant_key()), layer_param_names
        )

    def input_quant_key(self) -> QuantKey:
        return _INPUTS[self.config.activation_quant_key]

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        layer.rocm_fp8_linear = self  # tells `fusion` that this linear takes FP8

    def input_scaling(self, layer: torch.nn.Module) -> tuple[torch.Tensor | None, dict]:
        """(the static scale of this layer's inputs, what a dynamic operator is told where there is none)"""
        _, _, scale, scale_ub = self._get_layer_params(layer)
        return scale, dict(scaling="row", scale_ub=scale_ub)

    def quantized(self, layer: torch.nn.Module, x: torch.Tensor) -> QuantizedActivation:
        """x: float16 or bfloat16 [..., K]."""
        scale, scaling = self.input_scaling(layer)
        q, scale = kernel.quantize_fp8(x, scale, **scaling, out_dtype=self.fp8_dtype)
        return self.activation(q, scale, x.dtype)

    def activation(self, q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> QuantizedActivation:
        return Activation(q, scale, dtype, q.shape, self.input_quant_key())

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor | QuantizedActivation, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        given = as_quantized_activation(x, self.input_quant_key()) or self.quantized(layer, x)
        weight, weight_scale, _, _ = self._get_layer_params(layer)
        return self.apply_scaled_mm(
            A=given.data.view(-1, given.data.shape[-1]),
            B=weight,
            out_dtype=self.config.out_dtype or given.orig_dtype,
            As=given.scale,
            Bs=weight_scale,
            bias=bias,
            output_shape=[*given.orig_shape[:-1], weight.shape[1]],
        )

    def apply_scaled_mm(self, *, A, B, out_dtype, As, Bs, bias, output_shape):
        """A: FP8 [M, K]; B: FP8 [K, N], transposed; As: float32 [] or [M, 1]; Bs: float32 [], [1], [N] or [N, 1]."""
        scale = As.reshape(-1, 1) if As.numel() > 1 or As.dim() > 1 else As.reshape(1)
        out = torch.ops.rocm_fp8_vllm.linear(
            A, scale, B.t(), Bs.reshape(1, -1) if Bs.numel() > 1 else Bs.reshape(1), bias, out_dtype, self._many_rows
        )
        return out.view(output_shape)


def _place_of_other(config: FP8ScaledMMLinearLayerConfig, layer_param_names: Sequence[str]) -> int:
    """The place in _many_rows of the linear that vLLM would choose, among those that take the weight as it was loaded.
    -1 where the package leaves no number of rows to a library, as on a CPU."""
    device = torch.device(current_platform.device_type)
    columns, k = config.weight_shape
    if kernel.quantization.gemm_for(_MANY, columns, k, own_scales=False, device=device) != "library":
        return -1
    for each in _choice._POSSIBLE_FP8_KERNELS[current_platform._enum]:
        if each is FewRowsFp8Linear or each.process_weights_after_loading not in _LEAVE_WEIGHTS:
            continue
        if not _choice.is_supported_and_can_implement_kernel(each, config, None)[0]:
            continue
        for place, made in enumerate(_many_rows):
            if type(made) is each and made.config == config:
                return place
        made = each(config, layer_param_names)
        made.logical_output_size = columns  # CUTLASS's asks for it
        _many_rows.append(made)
        return len(_many_rows) - 1
    return -1


# One operator, so that no compiled graph depends on the number of rows.
_library = torch.library.Library("rocm_fp8_vllm", "DEF")
_library.define(
    "linear(Tensor a, Tensor scale_a, Tensor weight, Tensor scale_b, Tensor? bias, ScalarType dtype, int many_rows)"
    " -> Tensor"
)


def _linear(a, scale_a, weight, scale_b, bias, dtype, many_rows):
    """a: FP8 [M, K], weight: FP8 [N, K]; scales as skinny_gemm's; many_rows: place in _many_rows, or -1."""
    rows, (columns, k) = a.shape[0], weight.shape
    own = scale_a.dim() > 1 or scale_b.dim() > 1
    # The package's rule for scales of rows and channels knows torch's GEMM, which is slow with them; CUTLASS is not.
    known = own and not current_platform.is_cuda()
    gemm = kernel.quantization.gemm_for(rows, columns, k, own_scales=known, device=a.device)
    if gemm == "library" and many_rows >= 0:
        if rows <= _TORCH_UP_TO and not own:
            return torch._scaled_mm(a, weight.t(), scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=dtype)
        wide = dict(A=a, B=weight.t(), As=scale_a, Bs=scale_b.t() if scale_b.dim() > 1 else scale_b)
        return _many_rows[many_rows].apply_scaled_mm(**wide, out_dtype=dtype, bias=bias, output_shape=[rows, columns])
    ours = kernel.skinny_gemm if gemm == "skinny_gemm" else kernel.block_scaled_gemm
    # The promise holds: what writes weights are kernels without PDL, and each step begins with some of vLLM's.
    return ours(a, weight, scale_a, scale_b, bias, out_dtype=dtype, constant_b=True)


def _linear_fake(a, scale_a, weight, scale_b, bias, dtype, many_rows):
    return a.new_empty((a.shape[0], weight.shape[0]), dtype=dtype)


_library.impl("linear", _linear, "CompositeExplicitAutograd")
torch.library.register_fake("rocm_fp8_vllm::linear", _linear_fake, lib=_library)


def install() -> None:
    """Before vLLM's own linears. Its register_linear_kernel would put it behind them."""
    linears = _choice._POSSIBLE_FP8_KERNELS[current_platform._enum]
    if FewRowsFp8Linear not in linears:
        linears.insert(0, FewRowsFp8Linear)
