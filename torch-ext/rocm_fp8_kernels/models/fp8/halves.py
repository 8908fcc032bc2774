"""The halves of a decoder layer, attention or MLP, whose linears are joined and whose inputs come quantised.

Each class of these is a mixin: architectures.py makes subclasses of transformers' own classes with it.
"""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ...layers.watching import call, is_watched, ours, plain_silu
from ...operators import operators
from ..signatures import cached, named
from .linear import QuantizedLinear


class Architecture(NamedTuple):
    """What makes a decoder layer fusable: input_layernorm, self_attn, post_attention_layernorm, mlp; the residual is
    added after self_attn and mlp. Norms round as rms_norm does.

    Its classes are <prefix>DecoderLayer, <prefix>Attention, <prefix>MLP and <prefix>Model of the module
    transformers.models.<name>.modeling_<name>.
    """

    name: str
    prefix: str
    head_norms: bool = False  # q_norm and k_norm, of each head, before the rotary embedding
    window: Callable[[torch.nn.Module], int | None] | None = None  # of its attention; None: it passes none on
    latent: bool = False  # attention with a latent cache (latent.py), not q_proj, k_proj, v_proj
    experts: "Routing | None" = None  # of layers that have a mixture of experts in the place of an MLP (moe.py)


class Routing(NamedTuple):
    """<prefix><block> has `gate`, a <prefix><router>, `experts` and perhaps `shared_experts`, a <prefix>MLP."""

    block: str
    router: str
    scoring: str = "softmax"  # or "sigmoid", with a correction bias and groups
    rounded: bool = False  # whether weights are rounded to the logits' dtype


class FusedHalf:
    """A half whose linears are joined."""

    # Name of the joined linear -> those of transformers.
    JOINED: dict[str, tuple[str, ...]] = {}
    # Whether the input is wanted in 16 bits, too.
    READS_BOTH = False

    @classmethod
    def joined_of(cls, own: torch.nn.Module) -> dict[str, tuple[str, ...]]:
        """JOINED, for transformers' own module or that which has taken its place."""
        return cls.JOINED

    def rows_of_parts(self, name: str) -> list[int]:
        """How many of a joined linear's outputs each of its parts has."""
        parts = self.joined_of(self)[name]
        return [getattr(self, name).out_features // len(parts)] * len(parts)

    @property
    def first(self) -> torch.nn.Module:
        """What takes the half's input: a QuantizedLinear or Fp8Experts, which say how it is quantised."""
        raise NotImplementedError

    @property
    def last(self) -> torch.nn.Module:
        """What gives its result."""
        raise NotImplementedError


class JoinedPart(torch.nn.Module):
    """In the place of a linear that is joined with others. Whoever looks for it by name, as PEFT does, finds what it
    does not take: with nothing there, an adapter of this linear and of others would be put on the others alone."""

    def __init__(self, joined: str):
        super().__init__()
        self._joined = joined

    def extra_repr(self) -> str:
        return f"of {self._joined}"


class _OfConfig:
    """An attribute that is the config's until it is set."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, module, kind=None):
        return self if module is None else getattr(module.config, self._name)


def _shares_keys(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, arguments: dict) -> bool:
    """Whether transformers would repeat keys and values for the heads that share them, and need not: one new token of
    each sequence, a mask of it that all heads share. Without a mask it repeats none."""
    takes_more = any(arguments.get(name) is not None for name in ("position_bias", "cache"))
    return (
        mask is not None
        and query.shape[2] == 1
        and query.shape[1] > key.shape[1]
        and mask.dim() == 4
        and mask.shape[1:3] == (1, 1)
        and mask.shape[3] == key.shape[2]
        and not (takes_more or arguments.get("output_attentions"))
    )


def attend_in_groups(query, key, value, mask, scaling: float) -> torch.Tensor:
    """SDPA of one token a sequence. The heads of a group are queries of the keys and values that they share, which are
    read once. query [B, heads, 1, d], key and value [B, groups, length, d]. Returns [B, 1, heads, d]."""
    batch, heads, _, d = query.shape
    groups = key.shape[1]
    queries = query.reshape(batch, groups, heads // groups, d)
    output = torch.nn.functional.scaled_dot_product_attention(queries, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(batch, 1, heads, value.shape[3])


class AttentionHalf(FusedHalf):
    """What every attention has. `modeling` is the architecture's module, PARAMETERS those of its own forward after the
    first."""

    modeling: ModuleType
    architecture: Architecture
    PARAMETERS: tuple[str, ...]
    o_proj: QuantizedLinear

    @property
    def last(self) -> torch.nn.Module:
        return self.o_proj

    def attend(self, query, key, value, mask, arguments: dict) -> tuple[torch.Tensor, torch.Tensor | None]:
        """transformers' attention, whichever it has been told to take. query, key, value: [B, heads, length, d]."""
        if self.config._attn_implementation == "sdpa" and _shares_keys(query, key, mask, arguments):
            return attend_in_groups(query, key, value, mask, self.scaling), None
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, self.modeling.eager_attention_forward
        )
        return attention(self, query, key, value, mask, dropout=0.0, scaling=self.scaling, **arguments)


class FusedAttention(AttentionHalf):
    JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "o_proj": ("o_proj",)}
    qkv_proj: QuantizedLinear

    @ours
    def forward(
        self,
        hidden_states: torch.Tensor,
        *args,
        input_scale: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states [batch, length, hidden_size] and input_scale: as in Fp8Linear's or MxLinear's forward. The
        others: PARAMETERS."""
        arguments = named(self.PARAMETERS, args, kwargs)
        position_embeddings, mask = arguments.pop("position_embeddings"), arguments.pop("attention_mask", None)
        shape = hidden_states.shape[:-1]
        qkv = call(self.qkv_proj, hidden_states, more=dict(scale=input_scale)).view(*shape, -1, self.head_dim)
        query, key, value = qkv.split([rows // self.head_dim for rows in self.rows_of_parts("qkv_proj")], dim=-2)
        if self.architecture.head_norms:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        query, key = self.modeling.apply_rotary_pos_emb(query, key, *position_embeddings)
        key, value = cached(arguments, key, value, self.layer_idx)
        if self.architecture.window is not None:
            arguments["sliding_window"] = self.architecture.window(self)
        output, weights = self.attend(query, key, value, mask, arguments)
        return self.o_proj(output.reshape(*shape, -1)), weights

    def rows_of_parts(self, name: str) -> list[int]:
        if name != "qkv_proj":
            return super().rows_of_parts(name)
        return [count * self.head_dim for count in (self.heads, self.kv_heads, self.kv_heads)]

    @property
    def first(self) -> QuantizedLinear:
        return self.qkv_proj

    # Of this rank, where the model is split.
    heads = _OfConfig("num_attention_heads")
    kv_heads = _OfConfig("num_key_value_heads")


class FusedMLP(FusedHalf):
    JOINED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
    gate_up_proj: QuantizedLinear
    down_proj: QuantizedLinear

    @property
    def first(self) -> QuantizedLinear:
        return self.gate_up_proj

    @property
    def last(self) -> QuantizedLinear:
        return self.down_proj

    @ours
    def forward(self, x: torch.Tensor, *, input_scale: torch.Tensor | None = None) -> torch.Tensor:
        """x and input_scale: as in Fp8Linear's or MxLinear's forward."""
        gate_up = call(self.gate_up_proj, x, more=dict(scale=input_scale))
        down = self.down_proj
        plain = isinstance(down, QuantizedLinear) and not is_watched(down) and plain_silu(self.act_fn)
        scaling = down.input_scaling() if plain else None
        if scaling is None:
            gate, up = gate_up.chunk(2, dim=-1)
            return down(self.act_fn(gate) * up)
        ops, scale, kind = operators(), down.input_scale, down.input_dtype
        if scale is None:
            quantized, scale = ops.swiglu_dynamic_fp8(gate_up, **scaling, out_dtype=kind)
        else:
            quantized = ops.swiglu_fp8(gate_up, scale, out_dtype=kind)
        return down(quantized, scale=scale)
