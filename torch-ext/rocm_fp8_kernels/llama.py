"""transformers' Llama modules with FP8 linears. Imported when a model is quantised: nothing else needs transformers.

They are subclasses, so whatever looks for a LlamaDecoderLayer or LlamaAttention (hidden states, attentions,
device maps) finds them. Without `kernelize` they run on the reference operators: slow, on any device, and what the
kernels' results can be compared with.
"""

from collections.abc import Callable, Iterable
from types import ModuleType

import torch
from kernels import use_kernel_forward_from_hub
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama

from . import reference
from .layers.decoder import decoder_layer, quantized_input, quantizing_linear
from .linear import Fp8Linear

# Name of the fused linear -> the linears that it joins, of a decoder layer's self_attn and mlp.
ATTENTION_LINEARS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "o_proj": ("o_proj",)}
MLP_LINEARS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


class Fp8LlamaAttention(modeling_llama.LlamaAttention):
    qkv_proj: Fp8Linear
    o_proj: Fp8Linear

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values=None,
        ops: ModuleType = reference,
        input_scale: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states: FP8 [batch, length, hidden_size]; input_scale: its scale, as in Fp8Linear.forward."""
        shape = hidden_states.shape[:-1]
        qkv = self.qkv_proj(hidden_states, ops=ops, scale=input_scale).view(*shape, -1, self.head_dim).transpose(1, 2)
        kv_heads = self.config.num_key_value_heads
        query, key, value = qkv.split([self.config.num_attention_heads, kv_heads, kv_heads], dim=1)
        query, key = modeling_llama.apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)

        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, modeling_llama.eager_attention_forward
        )
        output, weights = attend(self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        output = output.reshape(*shape, -1)
        quantized, scale = quantized_input(self.o_proj, ops, output)
        return self.o_proj(quantized, ops=ops, scale=scale), weights


class Fp8LlamaMLP(modeling_llama.LlamaMLP):
    gate_up_proj: Fp8Linear
    down_proj: Fp8Linear

    def forward(
        self, x: torch.Tensor, ops: ModuleType = reference, input_scale: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x: FP8 [..., hidden_size]; input_scale: its scale, as in Fp8Linear.forward."""
        gate_up = self.gate_up_proj(x, ops=ops, scale=input_scale)
        scale, kind = self.down_proj.input_scale, self.down_proj.weight.dtype
        if scale is None:
            bound = self.down_proj.scale_ub
            quantized, scale = ops.swiglu_dynamic_fp8(gate_up, scaling="row", scale_ub=bound, out_dtype=kind)
        else:
            quantized = ops.swiglu_fp8(gate_up, scale, out_dtype=kind)
        return self.down_proj(quantized, ops=ops, scale=scale)


@use_kernel_forward_from_hub("QuantizingFp8Linear")
class QuantizingFp8Linear(Fp8Linear):
    """In the place of a torch.nn.Linear, where no operator before it quantises its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return quantizing_linear(self, reference, x)


@use_kernel_forward_from_hub("Fp8LlamaDecoderLayer")
class Fp8LlamaDecoderLayer(modeling_llama.LlamaDecoderLayer):
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values=None,
        use_cache: bool | None = False,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs,
    ) -> torch.Tensor:
        return decoder_layer(
            self,
            reference,
            hidden_states,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            position_embeddings=position_embeddings,
            **kwargs,
        )


def decoder_layers(model: torch.nn.Module) -> list[modeling_llama.LlamaDecoderLayer]:
    """The model's decoder layers that can be quantised; ValueError says why there are none."""
    layers = [module for module in model.modules() if type(module) is modeling_llama.LlamaDecoderLayer]
    if any(isinstance(module, Fp8LlamaDecoderLayer) for module in model.modules()):
        raise ValueError("the model is quantised already")
    if not layers:
        raise ValueError(f"{type(model).__name__} holds no LlamaDecoderLayer: only Llama models can be quantised")
    config = layers[0].self_attn.config
    if config.hidden_act != "silu":
        raise ValueError(f"hidden_act is {config.hidden_act!r}; swiglu_fp8 needs 'silu'")
    dtype = layers[0].mlp.down_proj.weight.dtype
    if dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"the model's dtype is {dtype}; needs float16 or bfloat16")
    return layers


# The halves of a decoder layer, each fused as a whole or not at all -> (linears, the class of its module).
HALVES = {"self_attn": (ATTENTION_LINEARS, Fp8LlamaAttention), "mlp": (MLP_LINEARS, Fp8LlamaMLP)}


def linears_of(layer: modeling_llama.LlamaDecoderLayer, halves: Iterable[str] = HALVES):
    """(parent module, name of the fused linear, names of the linears that it joins), in the order of computation."""
    for half in halves:
        for fused, parts in HALVES[half][0].items():
            yield getattr(layer, half), fused, parts


def check_linears(layer: modeling_llama.LlamaDecoderLayer) -> None:
    """ValueError where `Fp8Linear.quantized` would refuse the layer's linears."""
    for parent, _, parts in linears_of(layer):
        linears = {part: getattr(parent, part) for part in parts}
        if len({linear.bias is None for linear in linears.values()}) > 1:
            raise ValueError(f"some, but not all of {', '.join(parts)} have a bias")
        for part, linear in linears.items():
            if not bool(torch.isfinite(linear.weight).all()):
                raise ValueError(f"the weight of {part} holds NaN or infinity")


def convert(
    layer: modeling_llama.LlamaDecoderLayer,
    join: Callable[[list[torch.nn.Linear]], Fp8Linear],
    halves: Iterable[str] = HALVES,
) -> None:
    """Replaces the linears of these halves by what `join` makes of them and turns the layer into its FP8 subclass.

    In place: hooks, hidden-state recorders and references to the layer stay valid.
    """
    for parent, fused, parts in linears_of(layer, halves):
        joined = join([getattr(parent, part) for part in parts])
        for part in parts:
            delattr(parent, part)
        setattr(parent, fused, joined)
    for half in halves:
        getattr(layer, half).__class__ = HALVES[half][1]
        layer.__class__ = Fp8LlamaDecoderLayer


def rows_of_parts(parent: torch.nn.Module, fused: str) -> list[int]:
    """How many of a fused linear's outputs each of its parts has."""
    if fused == "qkv_proj":
        heads, kv_heads = parent.config.num_attention_heads, parent.config.num_key_value_heads
        return [count * parent.head_dim for count in (heads, kv_heads, kv_heads)]
    parts = (ATTENTION_LINEARS | MLP_LINEARS)[fused]
    return [getattr(parent, fused).out_features // len(parts)] * len(parts)
