"""vLLM's MXFP4 and MXFP8 linears on block_scaled_gemm: all rows. Weights and scales stay as they were loaded.

Inputs enter as the checkpoint says: in 16 bits, by quantize_mxfp4 with scales to even, or by quantize_fp8, a scale for
32 numbers or a row (docs/numerics.md).

On a CPU vLLM has none. On ROCm ours stand before its emulations. On CUDA, where Marlin is faster with few rows, they
come first if ROCM_FP8_KERNELS_VLLM_EXPERTS=1 takes all MX formats.
"""

import functools
import os
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.kernels import linear as _choice
from vllm.model_executor.kernels.linear.mxfp4 import MxFp4LinearKernel, MxFp4LinearLayerConfig
from vllm.model_executor.kernels.linear.mxfp8 import Mxfp8LinearKernel, Mxfp8LinearLayerConfig
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsW8A8Mxfp8
from vllm.model_executor.layers.quantization.quark.schemes import QuarkOCP_MX
from vllm.model_executor.layers.quantization.utils import replace_parameter
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    QuantKey,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kMxfp4Dynamic,
    kMxfp8Dynamic,
)
from vllm.platforms import current_platform

from . import EXPERTS, is_on
from .kernel import kernel
from .mx_inputs import asked, asking_for, of_compressed_tensors

__all__ = ["Mxfp4GemmLinear", "Mxfp8GemmLinear", "in_own_format", "install"]

_BLOCK = 32
# What a checkpoint asks for -> how inputs enter the product, in fused_moe's words. A scale a tensor becomes one a row,
# as of FP8's linears.
_BESIDE_MXFP8 = {
    None: "16bit",
    kMxfp8Dynamic: "mxfp8",
    kFp8DynamicTokenSym: "fp8",
    kFp8DynamicTensorSym: "fp8",
}
_BESIDE_MXFP4 = _BESIDE_MXFP8 | {kMxfp4Dynamic: "mxfp4"}


class _GemmLinear:
    """What both have in common."""

    _inputs: dict  # as above

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        if current_platform.is_cuda() and not (EXPERTS in os.environ and is_on(EXPERTS)):
            return False, f"vLLM's is faster with few rows; {EXPERTS}=1 takes it"
        return True, None  # `register` has asked the rest

    @classmethod
    def _key(cls, config: MxFp4LinearLayerConfig | Mxfp8LinearLayerConfig):
        return asked(getattr(config, "activation_quant_key", kMxfp8Dynamic))

    @classmethod
    def can_implement(cls, config: MxFp4LinearLayerConfig | Mxfp8LinearLayerConfig) -> tuple[bool, str | None]:
        given = cls._key(config)
        try:
            known = given in cls._inputs
        except TypeError:  # a checkpoint's own settings
            known = False
        if not known:
            return False, f"has no inputs quantised by {given}"
        model = getattr(get_current_vllm_config_or_none(), "model_config", None)
        if model is not None and model.dtype not in (torch.bfloat16, torch.float16):
            return False, f"has no {model.dtype}"
        return True, None

    def __init__(self, config: MxFp4LinearLayerConfig | Mxfp8LinearLayerConfig):
        super().__init__(config)
        self.inputs = self._inputs[self._key(config)]

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """weight: uint8 [N, K / 2] or FP8 [N, K]; weight_scale: uint8 [N, K / 32]."""
        weight, scale = in_own_format(layer.weight.data, layer.weight_scale.data)
        k = weight.shape[1] * (2 if weight.dtype == torch.uint8 else 1)
        if k % _BLOCK:  # vLLM would cut a block, where a worker's share ends in it, too
            name = getattr(layer, "prefix", "") or "a linear"
            raise ValueError(f"MX blocks: each worker has {k} inputs of {name}; they must divide by {_BLOCK}")
        for name, value in (("weight", weight), ("weight_scale", scale)):
            replace_parameter(layer, name, torch.nn.Parameter(value, requires_grad=False))

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x: float16 or bfloat16 [..., K]. Returns: x's dtype [..., N]."""
        return torch.ops.rocm_fp8_vllm.mx_linear(x, layer.weight, layer.weight_scale, bias, self.inputs)


class Mxfp4GemmLinear(_GemmLinear, MxFp4LinearKernel):
    _inputs = _BESIDE_MXFP4

    @classmethod
    def _supports_quant_scheme(cls, weight_key: QuantKey | None, activation_key: QuantKey | None) -> bool:
        """vLLM 0.33 asks, by default for 16 bits and MXFP4 alone. `can_implement`, which it asks next, says why not."""
        return True

    @classmethod
    def _key(cls, config: MxFp4LinearLayerConfig):
        # From vLLM 0.33 on its user may ask for other inputs than the checkpoint does, and is handed on.
        user = getattr(_choice, "_user_linear_activation_override", None)
        return config.activation_quant_key if user and user() is not None else super()._key(config)


class Mxfp8GemmLinear(_GemmLinear, Mxfp8LinearKernel):
    _inputs = _BESIDE_MXFP8

    @classmethod
    def can_implement(cls, config: Mxfp8LinearLayerConfig) -> tuple[bool, str | None]:
        if config.bmm_batch_size is not None:
            return False, "multiplies no batches"
        return super().can_implement(config)


def in_own_format(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of MX weights [..., N, K] and the bytes of their scales: MXFP8 in float8_e4m3fnuz where the chip has that."""
    if weight.dtype != torch.float8_e4m3fn or current_platform.fp8_dtype() == weight.dtype:
        return weight, scale
    weight, scale = kernel.to_fnuz(weight, scale.view(torch.float8_e8m0fnu))
    return weight, scale.view(torch.uint8)


# One operator: a compiled graph then holds no codes.
_library = torch.library.Library("rocm_fp8_vllm", "FRAGMENT")
_library.define("mx_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, str inputs) -> Tensor")

_SCALING = {
    "mxfp8": dict(scaling="group", group_size=_BLOCK, scale_dtype=torch.float8_e8m0fnu),
    "fp8": dict(scaling="row", scale_ub=None),
}


def _linear(x, weight, weight_scale, bias, inputs):
    """As block_scaled_gemm's; weight_scale: bytes. inputs: "16bit", "fp8", "mxfp8" or "mxfp4"."""
    a, scale = x.reshape(-1, x.shape[-1]), None
    if inputs == "mxfp4":
        a, scale = kernel.quantize_mxfp4(a, rounding="even")
    elif inputs != "16bit":
        kind = current_platform.fp8_dtype() if weight.dtype == torch.uint8 else weight.dtype
        a, scale = kernel.quantize_fp8(a, **_SCALING[inputs], out_dtype=kind)
    exponents = weight_scale.view(torch.float8_e8m0fnu)  # bytes beside FP8 say nothing
    out = kernel.block_scaled_gemm(a, weight, scale, exponents, bias, out_dtype=x.dtype)
    return out.view(*x.shape[:-1], weight.shape[0])


def _linear_fake(x, weight, weight_scale, bias, inputs):
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_library.impl("mx_linear", _linear, "CompositeExplicitAutograd")
torch.library.register_fake("rocm_fp8_vllm::mx_linear", _linear_fake, lib=_library)


# --- in vLLM's place ---


def _schemes(theirs):
    """CompressedTensorsConfig._get_scheme_from_parts, which chooses for MXFP4 by itself. For MXFP8 the scheme does,
    when it makes its weights."""

    @functools.wraps(theirs)
    def scheme(self, weight_quant, input_quant, *arguments, **keywords):
        inputs = of_compressed_tensors(input_quant)
        with asking_for(inputs):
            made = theirs(self, weight_quant, input_quant, *arguments, **keywords)
        if isinstance(made, CompressedTensorsW8A8Mxfp8):
            made.rocm_fp8_inputs = inputs
        return made

    scheme.rocm_fp8_asks = True
    return scheme


def _kind(given: Any) -> Any:
    """Of a scheme's QuantizationArgs: what decides how numbers are quantised, whatever found the scales."""
    names = ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "scale_dtype")
    found = of_compressed_tensors(given)
    return tuple(getattr(found, name) for name in names) if isinstance(found, QuantizationArgs) else found


def _of_parts(theirs):
    """CompressedTensorsConfig.get_scheme_dict, which takes one part's scheme for a joined linear."""

    @functools.wraps(theirs)
    def scheme_of(self, layer: torch.nn.Module, layer_name: str | None = None) -> dict | None:
        found = theirs(self, layer, layer_name)
        before, dot, last = (layer_name or "").rpartition(".")
        for part in self.packed_modules_mapping.get(last, ()) if found is not None else ():
            own = theirs(self, layer, f"{before}{dot}{part}") or found
            for what in ("weights", "input_activations"):
                if _kind(own[what]) != _kind(found[what]):
                    raise ValueError(f"{layer_name}: {what} of its parts are quantised in different ways")
        return found

    return scheme_of


def _create(theirs, attribute: str):
    """A scheme's create_weights, which chooses. attribute: where the scheme holds what the checkpoint says."""

    @functools.wraps(theirs)
    def create_weights(self, *arguments, **keywords):
        with asking_for(getattr(self, attribute)):
            return theirs(self, *arguments, **keywords)

    return create_weights


def install() -> None:
    """Before vLLM's own, on ROCm before its emulations. Its register_linear_kernel would put them behind."""
    for kernels, ours in (
        (_choice._POSSIBLE_MXFP4_KERNELS, Mxfp4GemmLinear),
        (_choice._POSSIBLE_MXFP8_KERNELS, Mxfp8GemmLinear),
    ):
        linears = kernels.setdefault(current_platform._enum, [])
        if ours not in linears:
            linears.insert(_place(linears), ours)
    if not hasattr(CompressedTensorsConfig._get_scheme_from_parts, "rocm_fp8_asks"):
        CompressedTensorsConfig._get_scheme_from_parts = _schemes(CompressedTensorsConfig._get_scheme_from_parts)
        CompressedTensorsConfig.get_scheme_dict = _of_parts(CompressedTensorsConfig.get_scheme_dict)
        CompressedTensorsW8A8Mxfp8.rocm_fp8_inputs = kMxfp8Dynamic  # of one that is made elsewhere
        for scheme, attribute in (
            (CompressedTensorsW8A8Mxfp8, "rocm_fp8_inputs"),
            (QuarkOCP_MX, "activation_quant_key"),
        ):
            scheme.create_weights = _create(scheme.create_weights, attribute)


def _place(linears: list[type]) -> int:
    if not current_platform.is_rocm():
        return 0
    emulations = (_choice.EmulationMxfp4LinearKernel, _choice.EmulationMxfp8LinearKernel)
    return next((place for place, each in enumerate(linears) if each in emulations), len(linears))
