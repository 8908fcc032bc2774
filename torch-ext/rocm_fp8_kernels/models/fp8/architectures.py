"""The architectures of transformers whose decoder layers are fused: a row each, and the classes that it makes.

The classes are subclasses of the architecture's own, so whatever looks for a MistralDecoderLayer or LlamaAttention
(hidden states, attentions, device maps) finds them. Without `kernelize` they run on the reference operators: slow, on
any device, and what the kernels' results can be compared with.

Imported when a model is quantised: nothing else of the package needs transformers.
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
from kernels import use_kernel_forward_from_hub
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ... import reference
from ...layers.decoder import decoder_layer, quantizing_linear
from ...layers.residual import ResidualStream, TakesResidual
from ...layers.watching import is_watched
from ..signatures import CACHE, cached, named, parameters
from .linear import Fp8Linear


class Architecture(NamedTuple):
    """What makes a decoder layer fusable: input_layernorm, self_attn (q_proj, k_proj, v_proj, o_proj),
    post_attention_layernorm, mlp (gate_proj, up_proj, down_proj); the residual is added after self_attn and mlp.

    Its classes are <prefix>DecoderLayer, <prefix>Attention, <prefix>MLP and <prefix>Model of the module
    transformers.models.<name>.modeling_<name>.
    """

    name: str
    prefix: str
    head_norms: bool = False  # q_norm and k_norm, of each head, before the rotary embedding
    window: Callable[[torch.nn.Module], int | None] | None = None  # of its attention; None: it passes none on


ARCHITECTURES = (
    Architecture("llama", "Llama"),
    Architecture("mistral", "Mistral", window=lambda attention: attention.config.sliding_window),
    Architecture("qwen2", "Qwen2", window=lambda attention: attention.sliding_window),
    Architecture("qwen3", "Qwen3", window=lambda attention: attention.sliding_window, head_norms=True),
)


class FusedHalf:
    """An attention or an MLP whose linears are joined: name of the joined linear -> those of transformers."""

    JOINED: dict[str, tuple[str, ...]]

    def rows_of_parts(self, name: str) -> list[int]:
        """How many of a joined linear's outputs each of its parts has."""
        parts = self.JOINED[name]
        return [getattr(self, name).out_features // len(parts)] * len(parts)


class _OfConfig:
    """An attribute that is the config's until it is set."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, module, kind=None):
        return self if module is None else getattr(module.config, self._name)


class FusedAttention(FusedHalf):
    JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "o_proj": ("o_proj",)}
    modeling: ModuleType
    architecture: Architecture
    PARAMETERS: tuple[str, ...]  # of transformers' own forward, after the first
    qkv_proj: Fp8Linear
    o_proj: Fp8Linear

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args,
        ops: ModuleType = reference,
        input_scale: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states [batch, length, hidden_size] and input_scale: as in Fp8Linear.forward. The others:
        PARAMETERS."""
        arguments = named(self.PARAMETERS, args, kwargs)
        position_embeddings, mask = arguments.pop("position_embeddings"), arguments.pop("attention_mask", None)
        shape = hidden_states.shape[:-1]
        qkv = self.qkv_proj(hidden_states, ops=ops, scale=input_scale).view(*shape, -1, self.head_dim)
        query, key, value = qkv.split([rows // self.head_dim for rows in self.rows_of_parts("qkv_proj")], dim=-2)
        if self.architecture.head_norms:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        query, key = self.modeling.apply_rotary_pos_emb(query, key, *position_embeddings)
        key, value = cached(arguments, key, value, self.layer_idx)
        if self.architecture.window is not None:
            arguments["sliding_window"] = self.architecture.window(self)

        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, self.modeling.eager_attention_forward
        )
        output, weights = attend(self, query, key, value, mask, dropout=0.0, scaling=self.scaling, **arguments)
        output = output.reshape(*shape, -1)
        return self.o_proj(output, ops=ops), weights

    def rows_of_parts(self, name: str) -> list[int]:
        if name != "qkv_proj":
            return super().rows_of_parts(name)
        return [count * self.head_dim for count in (self.heads, self.kv_heads, self.kv_heads)]

    # Of this rank, where the model is split.
    heads = _OfConfig("num_attention_heads")
    kv_heads = _OfConfig("num_key_value_heads")


class FusedMLP(FusedHalf):
    JOINED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
    gate_up_proj: Fp8Linear
    down_proj: Fp8Linear

    def forward(
        self, x: torch.Tensor, ops: ModuleType = reference, input_scale: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x and input_scale: as in Fp8Linear.forward."""
        gate_up = self.gate_up_proj(x, ops=ops, scale=input_scale)
        if is_watched(self.down_proj) or is_watched(self.act_fn):
            gate, up = gate_up.chunk(2, dim=-1)
            return self.down_proj(self.act_fn(gate) * up, ops=ops)
        scale, kind = self.down_proj.input_scale, self.down_proj.weight.dtype
        if scale is None:
            quantized, scale = ops.swiglu_dynamic_fp8(gate_up, **self.down_proj.input_scaling(), out_dtype=kind)
        else:
            quantized = ops.swiglu_fp8(gate_up, scale, out_dtype=kind)
        return self.down_proj(quantized, ops=ops, scale=scale)


@use_kernel_forward_from_hub("Fp8DecoderLayer")
class Fp8DecoderLayer(TakesResidual):
    PARAMETERS: tuple[str, ...]  # of transformers' own forward, after the first

    def forward(
        self, hidden_states: torch.Tensor, *args, residual_stream: ResidualStream | None = None, **kwargs
    ) -> torch.Tensor:
        """As the architecture's own: args and kwargs are PARAMETERS, and what the attention takes beyond."""
        return decoder_layer(self, reference, hidden_states, residual_stream, args, kwargs)


@use_kernel_forward_from_hub("QuantizingFp8Linear")
class QuantizingFp8Linear(Fp8Linear):
    """In the place of a torch.nn.Linear, where no operator before it quantises its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return quantizing_linear(self, reference, x)


# The halves of a decoder layer, by their names in it.
HALVES: dict[str, type[FusedHalf]] = {"self_attn": FusedAttention, "mlp": FusedMLP}


# Of transformers' forwards, as the fused ones know them.
_PARAMETERS = {
    "Attention": ("hidden_states", "position_embeddings", "attention_mask", CACHE),
    "DecoderLayer": ("hidden_states", "attention_mask", "position_ids", CACHE, "use_cache", "position_embeddings"),
}


class Classes(NamedTuple):
    """An architecture's own, and those that take their place."""

    model: type[torch.nn.Module]
    layer: type[torch.nn.Module]
    halves: dict[str, tuple[type[torch.nn.Module], type[FusedHalf]]]  # name in the layer -> (own, fused)


def _made(row: Architecture) -> Classes:
    modeling = importlib.import_module(f"transformers.models.{row.name}.modeling_{row.name}")

    def own(what: str) -> type[torch.nn.Module]:
        return getattr(modeling, row.prefix + what)

    def made(mixin: type, what: str, **facts) -> type:
        # Found under their names in this module: that is how pickle and copy look for a class.
        name = f"Fp8{row.prefix}{what}"
        globals()[name] = type(name, (mixin, own(what)), {"__module__": __name__} | facts)
        return globals()[name]

    taken = {what: parameters(own(what), known) for what, known in _PARAMETERS.items()}
    parameters(own("MLP"), ("x",), keywords=False)
    facts = dict(modeling=modeling, architecture=row, PARAMETERS=taken["Attention"])
    attention = made(FusedAttention, "Attention", **facts)
    halves = {"self_attn": (own("Attention"), attention), "mlp": (own("MLP"), made(FusedMLP, "MLP"))}
    return Classes(own("Model"), made(Fp8DecoderLayer, "DecoderLayer", PARAMETERS=taken["DecoderLayer"]), halves)


# The architecture's own decoder layer -> what takes its place.
CLASSES: dict[type[torch.nn.Module], Classes] = {made.layer.__bases__[1]: made for made in map(_made, ARCHITECTURES)}
