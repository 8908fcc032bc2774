"""Norms and activations of a loaded vLLM model that quantise for the linear behind them.

A decoder layer's norm becomes (add +) RMSNorm + FP8, its activation SwiGLU + FP8: their modules change class and know
the linear that they feed. What they return is vLLM's own QuantizedActivation, which its linears take. With several
tensor-parallel workers a norm is given a PartialSum (`tensor_parallel`) and forms the sum, too.
"""

import functools
import logging
from typing import NamedTuple

import torch
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.fusion.quant_activation import QuantizedActivation
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.model_loader import base_loader
from vllm.platforms import current_platform

from . import latent, routing, tensor_parallel
from .block_linear import BlockScaledFp8Linear
from .kernel import kernel
from .linear import FewRowsFp8Linear
from .tensor_parallel import PartialSum, whole

__all__ = ["fuse", "install"]

_log = logging.getLogger("vllm.rocm_fp8_kernels")

# A module of a decoder layer -> the linear that it feeds, where the layer has both. In mixtures of experts the router
# reads what the norm before them returns, which stays vLLM's.
_DENSE = {
    "input_layernorm": "self_attn.qkv_proj",
    "post_attention_layernorm": "mlp.gate_up_proj",
    "mlp.act_fn": "mlp.down_proj",
}
_LATENT = {
    "input_layernorm": "self_attn.mla_attn.fused_qkv_a_proj",
    "self_attn.mla_attn.q_a_layernorm": "self_attn.mla_attn.q_b_proj",
    "post_attention_layernorm": "mlp.gate_up_proj",
    "mlp.act_fn": "mlp.down_proj",
    "mlp.shared_experts.act_fn": "mlp.shared_experts.down_proj",
}
# Decoder layers whose norms and activations feed these linears and nothing else, by vLLM's module and class. Each class
# is meant exactly: one that is derived may do more with the hidden state.
_LAYERS = {
    ("llama", "LlamaDecoderLayer"): _DENSE,
    ("mistral", "MistralDecoderLayer"): _DENSE,
    ("qwen2", "Qwen2DecoderLayer"): _DENSE,
    ("qwen3", "Qwen3DecoderLayer"): _DENSE,
    ("mixtral", "MixtralDecoderLayer"): _DENSE,
    ("qwen3_moe", "Qwen3MoeDecoderLayer"): _DENSE,
    ("deepseek_v2", "DeepseekV2DecoderLayer"): _LATENT,
}


class _Fed(NamedTuple):
    """The linear behind a norm or an activation, by its place: vLLM puts a LoRA's module there, whose adapter needs
    numbers that are not quantised."""

    parent: torch.nn.Module
    name: str

    def takes_fp8(self) -> bool:
        """By the module's own attributes: a LoRA's module hands other look-ups on to the linear that it wraps."""
        return "rocm_fp8_linear" in getattr(self.parent, self.name).__dict__

    def scales(self) -> tuple[FewRowsFp8Linear | BlockScaledFp8Linear, torch.Tensor | None, dict]:
        """(the linear, its inputs' static scale, what a dynamic operator is told where there is none)"""
        layer = getattr(self.parent, self.name)
        return layer.rocm_fp8_linear, *layer.rocm_fp8_linear.input_scaling(layer)


class QuantizingRMSNorm(RMSNorm):
    """The residual is updated in place, rounded to its dtype before its variance is taken, as transformers does."""

    def forward(
        self, x: torch.Tensor | PartialSum, residual: torch.Tensor | None = None
    ) -> QuantizedActivation | tuple[QuantizedActivation, torch.Tensor]:
        if not self.rocm_fp8_feeds.takes_fp8():
            return super().forward(whole(x), residual)
        linear, scale, scaling = self.rocm_fp8_feeds.scales()
        # A sum that was formed between the linear and this norm may have been changed since.
        adds = isinstance(x, PartialSum) and residual is not None and not x.is_formed
        if adds:
            x, operators, name = x.part, tensor_parallel.operators, "all_reduce_add_rms_norm"
        else:
            x, operators, name = whole(x), kernel, "rms_norm" if residual is None else "add_rms_norm"
        inputs = (x, self.weight) if residual is None else (x, residual, self.weight)
        kind = linear.fp8_dtype
        if scale is None:
            operator = getattr(operators, f"{name}_dynamic_fp8")
            q, scale = operator(*inputs, self.variance_epsilon, **scaling, out_dtype=kind)
        else:
            q = getattr(operators, f"{name}_fp8")(*inputs, scale, self.variance_epsilon, out_dtype=kind)
        given = linear.activation(q, scale, x.dtype)
        return given if residual is None else (given, residual)


class QuantizingSiluAndMul(SiluAndMul):
    def forward(self, x: torch.Tensor) -> QuantizedActivation:
        if not self.rocm_fp8_feeds.takes_fp8():
            return super().forward(x)
        linear, scale, scaling = self.rocm_fp8_feeds.scales()
        if scale is None:
            q, scale = kernel.swiglu_dynamic_fp8(x, **scaling, out_dtype=linear.fp8_dtype)
        else:
            q = kernel.swiglu_fp8(x, scale, out_dtype=linear.fp8_dtype)
        return linear.activation(q, scale, x.dtype)


_QUANTIZING = {RMSNorm: QuantizingRMSNorm, SiluAndMul: QuantizingSiluAndMul}


def fuse(model: torch.nn.Module) -> None:
    """Of a model whose weights are loaded, in place: whatever `_LAYERS` names and a linear of ours stands behind."""
    linears = sum(hasattr(module, "rocm_fp8_linear") for module in model.modules())
    mixtures = routing.connect(model)
    fused, layers = 0, []
    for layer in model.modules():
        kind = type(layer)
        feeds = _LAYERS.get((kind.__module__.rpartition(".")[2], kind.__name__))
        if feeds is None:
            continue
        layers.append(layer)
        for name, fed in feeds.items():
            module, linear = _part(layer, name), _part(layer, fed)
            if _can_quantize(module, linear) and not _reads_more(layer, name):
                module.__class__ = _QUANTIZING[type(module)]
                parent, _, last = fed.rpartition(".")
                module.rocm_fp8_feeds = _Fed(layer.get_submodule(parent), last)  # in a tuple, so no submodule
                fused += 1
    if linears or mixtures:
        if current_platform.is_cpu():
            latent.connect(model)
        _log.info(
            "rocm-fp8-kernels: %d FP8 linears, %s%d norms and activations that quantise for them",
            linears,
            "".join(f"{count} mixtures of {kind} experts, " for kind, count in mixtures.items()),
            fused,
        )
    tensor_parallel.connect(model, layers)


def _part(layer: torch.nn.Module, name: str) -> torch.nn.Module | None:
    try:
        return layer.get_submodule(name)
    except AttributeError:
        return None


def _reads_more(layer: torch.nn.Module, name: str) -> bool:
    """Whether what this norm returns goes elsewhere than into one linear: it is multiplied by a factor of the time
    (Voxtral's), gathered from other workers, or read by latent attention for more."""
    if name == "post_attention_layernorm" and getattr(layer, "ada_rms_norm_t_cond", None) is not None:
        return True
    if name == "input_layernorm" and getattr(layer, "use_sequence_parallel_moe", False):
        return True
    latent = getattr(layer.self_attn, "mla_attn", None)
    if latent is None or name not in ("input_layernorm", "self_attn.mla_attn.q_a_layernorm"):
        return False
    return latent.indexer is not None or latent.g_proj is not None or latent.fuse_qkv_rmsnorm


def _can_quantize(module: torch.nn.Module | None, linear: torch.nn.Module | None) -> bool:
    if type(module) not in _QUANTIZING or not hasattr(linear, "rocm_fp8_linear"):
        return False
    if getattr(getattr(linear, "quant_method", None), "input_tfms", None):  # compressed-tensors': rotated first
        return False
    if isinstance(module, RMSNorm):
        dtype = linear.rocm_fp8_linear.config.input_dtype
        return module.has_weight and module.weight.dtype == dtype and module.variance_size_override is None
    return True


def install() -> None:
    """Each model is fused as soon as its weights are ready, before it is compiled."""
    ready = base_loader.process_weights_after_loading
    if hasattr(ready, "rocm_fp8_fuses"):
        return

    @functools.wraps(ready)
    def process_weights_after_loading(model: torch.nn.Module, *arguments, **keywords):
        result = ready(model, *arguments, **keywords)
        fuse(model)
        return result

    process_weights_after_loading.rocm_fp8_fuses = True
    base_loader.process_weights_after_loading = process_weights_after_loading
