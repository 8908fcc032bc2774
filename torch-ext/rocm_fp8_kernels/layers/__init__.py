"""Modules whose forward `kernels.kernelize` puts in place of a model's own.

    kernel = kernels.get_kernel("rocm-fp8-kernels/rocm-fp8-kernels", version=1)
    with kernels.use_kernel_mapping(kernel.layers.mapping()):
        model = kernels.kernelize(model, mode=kernels.Mode.INFERENCE)

    RMSNorm              for transformers' layers of that name, float16 and bfloat16, that round as LlamaRMSNorm does
    Fp8DecoderLayer      for the fused decoder layers of a model that `quantization` has quantised or loaded
    QuantizingFp8Linear  for its linears that quantise their own input: those of whatever is not fused
    Fp8Experts           for its mixtures of experts
    MoeRouter            for the routers of its fused layers

`register_experts` puts fused_moe in the place of transformers' experts, in float16, bfloat16 or FP8, with no kernelize.

`LatentAttention` is what lies between the projections of multi-head latent attention in a decode step. `latent_cache`
makes the cache with which a quantised DeepSeek-V3 decodes by it.

They are for inference: the operators have no backward.
"""

import torch

from .. import ops as _ops
from .decoder import decoder_layer as _decoder_layer
from .decoder import quantizing_linear as _quantizing_linear
from .mla import LatentAttention, mla_softmax_scale, rotate
from .moe import route as _route
from .norms import rounds_as_rms_norm as _rounds_as_rms_norm
from .residual import ResidualStream as _ResidualStream
from .watching import ours as _ours

__all__ = [
    "Fp8DecoderLayer",
    "Fp8Experts",
    "LatentAttention",
    "LoadedLayer",
    "MoeRouter",
    "QuantizingFp8Linear",
    "RMSNorm",
    "latent_cache",
    "mapping",
    "mla_softmax_scale",
    "register_experts",
    "rotate",
]


class RMSNorm(torch.nn.Module):
    """`rms_norm` with the module's `weight` and `variance_epsilon`. What the operator does not compute, the module's
    own forward does: other dtypes, classes that round elsewhere (norms.py), gradients."""

    can_torch_compile = True
    has_backward = False
    weight: torch.Tensor
    variance_epsilon: float

    @_ours
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        same = hidden_states.dtype in (torch.float16, torch.bfloat16) and weight.dtype == hidden_states.dtype
        lost = torch.is_grad_enabled() and (hidden_states.requires_grad or weight.requires_grad)
        if same and not lost and _rounds_as_rms_norm(type(self)):
            return _ops.rms_norm(hidden_states, weight, self.variance_epsilon)
        return type(self).forward(self, hidden_states)


class Fp8DecoderLayer(torch.nn.Module):
    """A decoder layer with its norms, SwiGLU and linears on the FP8 operators."""

    can_torch_compile = True
    has_backward = False

    @_ours
    def forward(
        self, hidden_states: torch.Tensor, *args, residual_stream: _ResidualStream | None = None, **kwargs
    ) -> torch.Tensor:
        return _decoder_layer(self, _ops, hidden_states, residual_stream, args, kwargs)


class QuantizingFp8Linear(torch.nn.Module):
    """An FP8 linear that quantises its own input, which is float16 or bfloat16."""

    can_torch_compile = True
    has_backward = False

    @_ours
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _quantizing_linear(self, _ops, x)


class Fp8Experts(torch.nn.Module):
    """A mixture of FP8 experts on fused_moe."""

    can_torch_compile = True
    has_backward = False

    @_ours
    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        return self.multiply(_ops, hidden_states, top_k_index, top_k_weights)


class MoeRouter(torch.nn.Module):
    """A router of a mixture of experts on moe_route."""

    can_torch_compile = True
    has_backward = False

    @_ours
    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return _route(self, _ops, hidden_states)


def latent_cache(config, max_length: int | None = None, *, fp8: bool = False):
    """A cache of DeepSeek-V3's latent vectors: with it a model of `quantization` decodes by mla_decode.

        model.generate(**inputs, past_key_values=kernel.layers.latent_cache(model.config))

    It holds 576 numbers a token and layer, in the model's dtype or, with `fp8`, most of them in FP8. Prompts of unlike
    lengths may be padded on either side. A prompt goes through transformers' attention; tokens behind it through
    mla_decode, any number at once.

    Args:
        config: the model's, with kv_lora_rank 512 and qk_rope_head_dim 64.
        max_length: how many tokens a sequence has at most, padding included: then memory is allocated once, nothing
            is read on the host, and decode steps can be compiled or recorded in a graph. A token beyond is an
            IndexError, on a GPU and in compiled steps an assertion on the device. None: it grows.
        fp8: 656 bytes a token and layer for 1152: 512 e4m3fn codes with four scales, as DeepSeek lays them out. Steps
            read it faster, and are less exact (docs/numerics.md).

    Returns: a transformers Cache. Its attention_mask is two-dimensional, or what transformers makes of it: causal, and
        of tokens that the cache holds what it was. It is copied, and pickled, with what it holds.
    Raises: ValueError that names the argument.
    """
    from ..models.fp8.latent_cache import LatentCache

    return LatentCache(config, max_length, fp8)


def register_experts(name: str = "rocm-fp8-kernels") -> str:
    """Makes `name` an experts_implementation of transformers, for float16, bfloat16 and block-scaled FP8 experts.

        kernel.layers.register_experts()
        model = AutoModelForCausalLM.from_pretrained(path, experts_implementation="rocm-fp8-kernels")

    Returns: name.
    Raises: ImportError where transformers has no interface for experts.
    """
    from .experts import register

    return register(name)


class LoadedLayer:
    """A repository for `kernels.use_kernel_mapping` that hands out a layer of this, already loaded, kernel.

    `kernels.LayerRepository` does as well where the Hub is at hand and the machine's GPU decides the variant. It
    passes no backend on, so it cannot ask for the CPU variant under a CUDA or ROCm build of torch.
    """

    def __init__(self, layer: type[torch.nn.Module]):
        self.layer_name = layer.__name__
        self._layer = layer

    def load(self) -> type[torch.nn.Module]:
        return self._layer

    def __eq__(self, other) -> bool:
        return isinstance(other, LoadedLayer) and self._layer is other._layer

    def __hash__(self) -> int:
        return hash(self._layer)

    # use_kernel_mapping copies mappings deeply; a class is not to be copied.
    def __deepcopy__(self, memo) -> "LoadedLayer":
        return self

    def __str__(self) -> str:
        return f"layer `{self.layer_name}` of {self._layer.__module__}"


_LAYERS = (RMSNorm, Fp8DecoderLayer, QuantizingFp8Linear, Fp8Experts, MoeRouter)


def mapping(device: str | None = None) -> dict[str, dict[str, LoadedLayer]]:
    """The layers under the names that models ask for, for `kernels.use_kernel_mapping`.

    Args:
        device: "cpu", "cuda" or "rocm", as `kernels` names them; that of this build if None.
    """
    if device is None:
        device = _ops.backend()
    return {layer.__name__: {device: LoadedLayer(layer)} for layer in _LAYERS}
