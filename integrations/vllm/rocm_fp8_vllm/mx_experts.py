"""vLLM's mixtures of MXFP4 and MXFP8 experts on fused_moe: gpt-oss, compressed-tensors, Quark, ModelOpt, "mxfp4" and
"mxfp8".

Of MXFP4 vLLM has two functions that say which experts serve a layer, and a method of compressed-tensors that asks
neither. Ours answers in all three. The name of our backend is none of vLLM's: for each other function that asks for the
backend, one of vLLM's stands in whose answer is right for ours. Of MXFP8 it has one function; the name of its emulation
is what ours returns. Weights and scales stay as they were loaded.

A checkpoint that names no quantised inputs (W4A16) has 16-bit ones here, one that names MXFP4 (W4A4) or MXFP8 has
those. The class says which, so that no configuration of vLLM's changes it.

On a CPU ours comes first, and on Hopper for what was measured in engines (docs/performance.md): MXFP4 beside bfloat16.
Else it does where vLLM has none or an emulation. ROCM_FP8_KERNELS_VLLM_EXPERTS=1 takes all that fused_moe serves.
"""

import functools
import os
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEQuantConfig
from vllm.model_executor.layers.fused_moe.oracle import fp8 as _of_fp8
from vllm.model_executor.layers.fused_moe.oracle import mxfp4 as _choice
from vllm.model_executor.layers.fused_moe.oracle import mxfp8 as _of_mxfp8
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    CompressedTensorsMoEMethod,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_w4a4_mxfp4 import (  # noqa: E501
    CompressedTensorsW4A4Mxfp4MoEMethod,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_w8a8_mxfp8 import (  # noqa: E501
    CompressedTensorsW8A8Mxfp8MoEMethod,
)
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    QuantKey,
    kMxfp4Dynamic,
    kMxfp4Static,
    kMxfp8Dynamic,
    kMxfp8Static,
)
from vllm.platforms import current_platform

from . import EXPERTS, is_on
from .experts import FusedMoeExperts, is_left_to_vllm, none_serves
from .mx_inputs import of_compressed_tensors
from .mx_linear import in_own_format
from .patching import replace

__all__ = ["MxExperts", "MxExpertsOfMxInputs", "Mxfp8Experts", "Mxfp8ExpertsOfMxInputs", "install"]

_BLOCK = 32
# What vLLM computes for SWIGLUOAI, which gpt-oss alone has, where nothing is configured.
_OAI_ALPHA, _OAI_LIMIT = 1.702, 7.0
_Chosen = tuple[Enum, type[FusedMoeExperts] | None]
# What vLLM's functions raise where it has no experts: of MXFP4 the first, of MXFP8 the second.
_NONE = (NotImplementedError, ValueError)


class MxExperts(FusedMoeExperts):
    """MXFP4 weights beside 16-bit inputs; biases; the gates of vLLM that moe_gate has."""

    kind, weight_key = "MXFP4", kMxfp4Static
    inputs, input_key = "16bit", None

    def __init__(self, moe_config: FusedMoEConfig, quant_config: FusedMoEQuantConfig, **keywords):
        super().__init__(moe_config, quant_config, **keywords)
        self._gate = _gate(moe_config, quant_config)

    @staticmethod
    def _why_not(config: FusedMoEConfig, weight_key: QuantKey | None) -> str | None:
        alpha, beta, interleaved = config.swiglu_alpha, config.swiglu_beta, MoEActivation.SWIGLUOAI
        if config.activation in (interleaved, MoEActivation.SWIGLUOAI_UNINTERLEAVE):
            if beta != 1 and not (beta is None and config.activation == interleaved):
                return f"fused_moe adds 1 to what is gated: not swiglu_beta {beta}"
        elif alpha is not None or beta is not None:
            return f"fused_moe has no swiglu_alpha and no swiglu_beta beside {config.activation}"
        # gpt-oss' own loading pads a worker's share; others cut what does not divide.
        share = config.intermediate_size_per_partition
        if share % _BLOCK and config.activation != interleaved:
            return f"fused_moe has blocks of {_BLOCK}: an expert's intermediate size on each worker is {share}"
        return None

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation in _GATES

    @classmethod
    def _supports_quant_scheme(cls, weight_key: QuantKey | None, activation_key: QuantKey | None) -> bool:
        return weight_key == cls.weight_key and activation_key == cls.input_key

    def _how(self) -> dict:
        inputs = dict(inputs=self.inputs, input_scale=None, hidden_scale=None, power_of_two=False)
        return inputs | self._gate | dict(bias13=self.w1_bias, bias2=self.w2_bias)


class MxExpertsOfMxInputs(MxExperts):
    """The same beside MXFP4 inputs, whose scales round to even, as those of Quark and compressed-tensors."""

    inputs, input_key = "mxfp4", kMxfp4Dynamic


class Mxfp8Experts(MxExperts):
    """MXFP8 weights beside 16-bit inputs."""

    kind, weight_key = "MXFP8", kMxfp8Static


class Mxfp8ExpertsOfMxInputs(Mxfp8Experts):
    """The same beside MXFP8 inputs."""

    inputs, input_key = "mxfp8", kMxfp8Dynamic


# vLLM's gates -> what moe_gate is told of them. Rows of gates and ups alternate in gpt-oss.
_GATES = {
    MoEActivation.SILU: dict(gate="silu"),
    MoEActivation.SITU: dict(gate="situ"),
    MoEActivation.SWIGLUOAI: dict(gate="oai", interleaved=True),
    MoEActivation.SWIGLUOAI_UNINTERLEAVE: dict(gate="oai"),
}


def _gate(config: FusedMoEConfig, quant: FusedMoEQuantConfig) -> dict:
    """moe_gate's arguments: a method's own numbers, else those of the model."""
    limit = config.swiglu_limit if quant.gemm1_clamp_limit is None else quant.gemm1_clamp_limit
    alpha = config.swiglu_alpha if quant.gemm1_alpha is None else quant.gemm1_alpha
    told = _GATES[config.activation]
    if config.activation == MoEActivation.SWIGLUOAI:
        limit = _OAI_LIMIT if limit is None else limit
        alpha = _OAI_ALPHA if alpha is None else alpha
    if told["gate"] == "oai":
        return told | dict(limit=limit, alpha=1.0 if alpha is None else alpha)
    if told["gate"] == "situ":
        return told | dict(limit=None, beta=config.activation_situ_beta, linear_beta=config.activation_situ_linear_beta)
    return told | dict(limit=limit)


# --- in vLLM's place ---


class Backend(Enum):
    """Ours, beside vLLM's Mxfp4MoeBackend and Fp8MoeBackend: Quark's method asks for a backend's class a second
    time."""

    W4A16 = "fused_moe (MXFP4, 16-bit inputs)"
    W4A4 = "fused_moe (MXFP4, MXFP4 inputs)"
    W8A16 = "fused_moe (MXFP8, 16-bit inputs)"
    W8A8 = "fused_moe (MXFP8, MXFP8 inputs)"


_CLASSES = {
    Backend.W4A16: MxExperts,
    Backend.W4A4: MxExpertsOfMxInputs,
    Backend.W8A16: Mxfp8Experts,
    Backend.W8A8: Mxfp8ExpertsOfMxInputs,
}
# vLLM's functions that ask for a backend -> the one that stands in for ours.
_STANDS_IN = {
    # Both sizes become multiples of 32, and no weight changes.
    "mxfp4_round_up_hidden_size_and_intermediate_size": _choice.Mxfp4MoeBackend.EMULATION,
    "convert_gpt_oss_weight_to_mxfp4_moe_kernel_format": _choice.Mxfp4MoeBackend.EMULATION,
    "convert_weight_to_mxfp4_moe_kernel_format": _choice.Mxfp4MoeBackend.EMULATION,
    # Scales, biases and the gate's numbers; nothing is said of inputs.
    "make_mxfp4_moe_quant_config": _choice.Mxfp4MoeBackend.MARLIN,
}


def _comes_first(config: FusedMoEConfig, weight_key: QuantKey, inputs: Any) -> bool:
    """Whether ours is asked before vLLM's, by the user's switch, which is not off, or by default."""
    if EXPERTS in os.environ or current_platform.is_cpu():
        return True
    fast = weight_key == kMxfp4Static and inputs is None and config.in_dtype == torch.bfloat16
    return fast and current_platform.is_cuda() and current_platform.is_device_capability(90)


def _choose(theirs: Callable[[], _Chosen], config: FusedMoEConfig, weight_key: QuantKey, inputs: Any) -> _Chosen:
    """Ours or vLLM's. inputs: the checkpoint's, as `mx_inputs.of_compressed_tensors` has them. Raises:
    NotImplementedError with both reasons where neither serves."""
    if is_left_to_vllm(config) or not is_on(EXPERTS):
        return theirs()
    if not _comes_first(config, weight_key, inputs):
        try:
            chosen = theirs()
        except _NONE:
            pass
        else:
            if chosen[0].name != "EMULATION":
                return chosen
    beside = [(ours, made) for ours, made in _CLASSES.items() if made.weight_key == weight_key]
    # Of inputs that none has, the last one says so.
    ours, made = next((each for each in beside if each[1].input_key == inputs), beside[-1])
    supported, reason = made.is_supported_config(made, config, weight_key, inputs, made.activation_format())
    if supported:
        return ours, made
    try:
        return theirs()
    except _NONE as error:
        raise none_serves(made.kind, reason) from error


def _ours_first(theirs):
    """select_mxfp4_moe_backend and select_deepseek_v4_mxfp4_moe_backend."""

    @functools.wraps(theirs)
    def select(config: FusedMoEConfig, activation_key: QuantKey | None = None):
        given = () if activation_key is None else (activation_key,)
        # A user's --quantization-config may name other inputs than the checkpoint.
        inputs = _choice._resolve_activation_key(activation_key)
        return _choose(lambda: theirs(config, *given), config, kMxfp4Static, inputs)

    select.rocm_fp8_first = True
    return select


def _ours_first_of_mxfp8(theirs):
    """select_mxfp8_moe_backend, whose methods have MXFP8 inputs."""

    @functools.wraps(theirs)
    def select(config: FusedMoEConfig):
        return _choose(lambda: theirs(config), config, kMxfp8Static, kMxfp8Dynamic)

    return select


def _keep_mxfp8(theirs):
    """convert_to_fp8_moe_kernel_format."""

    @functools.wraps(theirs)
    def convert(
        fp8_backend: Enum, layer: torch.nn.Module, w13, w2, w13_scale, w2_scale, w13_input_scale, w2_input_scale
    ):
        if not isinstance(fp8_backend, Backend):
            return theirs(fp8_backend, layer, w13, w2, w13_scale, w2_scale, w13_input_scale, w2_input_scale)
        (w13, w13_scale), (w2, w2_scale) = in_own_format(w13, w13_scale), in_own_format(w2, w2_scale)
        return w13, w2, w13_scale, w2_scale

    return convert


def _classes_of(theirs):
    """backend_to_kernel_cls, which knows ours, too."""

    @functools.wraps(theirs)
    def classes(backend: Enum):
        return [_CLASSES[backend]] if isinstance(backend, Backend) else theirs(backend)

    return classes


def _by_stand_in(theirs, stand_in: Enum):
    def swap(value):
        return stand_in if isinstance(value, Backend) else value

    @functools.wraps(theirs)
    def answer(*arguments, **keywords):
        return theirs(*map(swap, arguments), **{name: swap(value) for name, value in keywords.items()})

    return answer


def _of_compressed_tensors(theirs):
    """CompressedTensorsMoEMethod.get_moe_method. vLLM's methods for MXFP4 and MXFP8 do not look at a checkpoint's
    inputs: the one is W4A4 on GPUs with FP4 and W4A16 by Marlin on others, the other W8A8 but where Marlin serves."""

    @functools.wraps(theirs)
    def get_moe_method(quant_config, layer, layer_name: str):
        method = theirs(quant_config, layer, layer_name)
        if type(method) not in (CompressedTensorsW4A4Mxfp4MoEMethod, CompressedTensorsW8A8Mxfp8MoEMethod):
            return method
        scheme = quant_config.get_scheme_dict(layer, f"{layer_name}.0.{layer.ckpt_gate_proj_name}")
        inputs = of_compressed_tensors(scheme["input_activations"])  # what no key stands for is refused
        if type(method) is CompressedTensorsW8A8Mxfp8MoEMethod:
            if isinstance(method.fp8_backend, Backend):
                vllms = _of_mxfp8.select_mxfp8_moe_backend.__wrapped__
                chosen = _choose(lambda: vllms(method.moe), method.moe, kMxfp8Static, inputs)
                method.fp8_backend, method.experts_cls = chosen
            return method

        def chosen() -> _Chosen:
            if not method.experts_cls._supports_current_device():  # vLLM would go on, to a missing operator
                raise NotImplementedError(f"{method.experts_cls.__name__}: not on {current_platform.device_name}")
            return method.mxfp4_backend, method.experts_cls

        backend, made = _choose(chosen, method.moe, kMxfp4Static, inputs)
        if isinstance(backend, Backend):
            # Of this method's backends B12X leaves weights and scales as they are.
            method.mxfp4_backend, method.experts_cls = _choice.Mxfp4MoeBackend.B12X_MXFP4_BF16, made
            method.use_cutlass_mxfp4 = False
        return method

    return get_moe_method


def install() -> None:
    """Before vLLM's own experts."""
    if hasattr(_choice.select_mxfp4_moe_backend, "rocm_fp8_first"):
        return
    for name in ("select_mxfp4_moe_backend", "select_deepseek_v4_mxfp4_moe_backend"):
        replace(_choice, name, _ours_first(getattr(_choice, name)))
    replace(_of_mxfp8, "select_mxfp8_moe_backend", _ours_first_of_mxfp8(_of_mxfp8.select_mxfp8_moe_backend))
    replace(_choice, "backend_to_kernel_cls", _classes_of(_choice.backend_to_kernel_cls))
    for name, stand_in in _STANDS_IN.items():
        replace(_choice, name, _by_stand_in(getattr(_choice, name), stand_in))
    replace(_of_fp8, "convert_to_fp8_moe_kernel_format", _keep_mxfp8(_of_fp8.convert_to_fp8_moe_kernel_format))
    # Scales, biases and the gate's numbers, of blocks of 32.
    of_gates = _by_stand_in(_of_fp8.make_fp8_moe_quant_config, _of_fp8.Fp8MoeBackend.TRITON_MXFP8)
    replace(_of_fp8, "make_fp8_moe_quant_config", of_gates)
    of_inputs = _of_compressed_tensors(CompressedTensorsMoEMethod.get_moe_method)
    CompressedTensorsMoEMethod.get_moe_method = staticmethod(of_inputs)
