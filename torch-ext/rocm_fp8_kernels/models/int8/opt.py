"""OPT on static int8, as SmoothQuant's real-int8 OPT: every product of a decoder layer multiplies int8.

    x  --LayerNormQ--> int8 --Q, K, V--> int8
    Q, K  --bmm--> float32 --softmax_int8--> int8 --bmm with V--> int8 --out_proj--> float32
    h = that + x
    h  --LayerNormQ--> int8 --fc1, ReLU--> int8 --fc2--> float32, + h

The residual stream, embeddings, the last norm and the head keep the model's dtype. The KV cache holds int8.

The classes are subclasses of transformers' own, so whatever looks for an OPTDecoderLayer finds them. Imported when an
OPT is quantised or loaded: nothing else of the package needs transformers.
"""

from collections.abc import Iterable, Mapping

import torch
from transformers.models.opt.modeling_opt import OPTAttention, OPTDecoderLayer

from ...layers.watching import is_watched, to_write
from ...operators import operators
from ..signatures import CACHE, cached, named, parameters
from .modules import BMM, LayerNormQ, W8A8B8O8Linear, W8A8B8O8LinearReLU, W8A8BFP32OFP32Linear
from .smoothing import observed

__all__ = ["Int8OPTAttention", "Int8OPTDecoderLayer", "check", "empty_layers", "quantize_layers"]

_PROBABILITY = 1 / 127  # the scale of softmax_int8's result


class Int8OPTAttention(OPTAttention):
    """q_proj (with 1 / sqrt(head_dim) in its weight), k_proj, v_proj: W8A8B8O8Linear; out_proj:
    W8A8BFP32OFP32Linear; qk_bmm, pv_bmm: BMM."""

    PARAMETERS = parameters(OPTAttention, ("hidden_states", CACHE, "attention_mask", "output_attentions"))

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, None]:
        """hidden_states: int8 [batch, length, hidden_size]; attention_mask: float, added to the scores, or None.
        Returns: (float32 [batch, length, hidden_size], None)."""
        arguments = named(self.PARAMETERS, args, kwargs)
        batch, length, size = hidden_states.shape

        def heads(linear: torch.nn.Module) -> torch.Tensor:
            return linear(hidden_states).view(batch, -1, self.num_heads, self.head_dim).transpose(1, 2)

        query, key, value = heads(self.q_proj), heads(self.k_proj), heads(self.v_proj)
        key, value = cached(arguments, key, value, self.layer_idx)
        attention_mask = arguments.get("attention_mask")
        scores = self.qk_bmm(query.flatten(0, 1), key.flatten(0, 1)).unflatten(0, (batch, self.num_heads))
        mask = None if attention_mask is None else attention_mask[..., : scores.shape[-1]].float()
        weights = operators().softmax_int8(scores, mask).flatten(0, 1)
        # The product reads both operands along the summed dimension: here the positions.
        result = self.pv_bmm(weights, value.flatten(0, 1).transpose(1, 2).contiguous())
        result = result.unflatten(0, (batch, self.num_heads)).transpose(1, 2).reshape(batch, length, size)
        return self.out_proj(result), None


class Int8OPTDecoderLayer(OPTDecoderLayer):
    """self_attn_layer_norm, final_layer_norm: LayerNormQ; self_attn: Int8OPTAttention; fc1: W8A8B8O8LinearReLU; fc2:
    W8A8BFP32OFP32Linear."""

    PARAMETERS = parameters(OPTDecoderLayer, ("hidden_states", "attention_mask", CACHE, "use_cache", "position_ids"))

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        arguments = named(self.PARAMETERS, args, kwargs)
        attended, _ = self.self_attn(self.self_attn_layer_norm(hidden_states), **arguments)
        # The residual lives in the linear's result: a layer's input, which may be a recorded state, is not written.
        residual = to_write(attended.to(hidden_states.dtype), self.self_attn, self.self_attn.out_proj)
        if is_watched(self.activation_fn):  # fc1 computes it, and gives int8
            raise ValueError("activation_fn is watched, wrapped or another module; an int8 OPT never calls it")
        quantized = self.final_layer_norm(hidden_states, residual=residual)
        return residual.add_(self.fc2(self.fc1(quantized)).to(residual.dtype))


def check(model: torch.nn.Module) -> dict[str, OPTDecoderLayer]:
    """The decoder layers by qualified name. Raises: ValueError that says why the model has none that int8 can take."""
    layers = {name: module for name, module in model.named_modules() if type(module) is OPTDecoderLayer}
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no OPTDecoderLayer; static int8 is for OPT, others take 'dynamic'"
        )
    config = model.config
    if not config.do_layer_norm_before:
        raise ValueError("do_layer_norm_before is False (OPT-350m): static int8 needs the norms before the linears")
    if config.activation_function != "relu":
        raise ValueError(f"activation_function is {config.activation_function!r}; static int8 needs 'relu'")
    if not config.layer_norm_elementwise_affine:
        raise ValueError("layer_norm_elementwise_affine is False: the norms have no weight that could take a scale")
    return layers


@torch.no_grad()
def quantize_layers(model: torch.nn.Module, inputs: Iterable[torch.Tensor | Mapping]) -> torch.nn.Module:
    """In place, with scales that put the largest magnitudes on `inputs` on 127. Raises: ValueError, beforehand."""
    layers = check(model)
    read, written = [], []
    for name in layers:
        read += [f"{name}.self_attn.q_proj", f"{name}.self_attn.out_proj", f"{name}.fc1", f"{name}.fc2"]
        written += [f"{name}.self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj")]
    before, after = observed(model, inputs, read, written)
    scales = [{name: maxima.amax().item() / 127 or 1.0 for name, maxima in place.items()} for place in (before, after)]
    for name, layer in layers.items():
        _quantize_layer(name, layer, *scales)
    _needs_a_mask(model)
    return model.requires_grad_(False)


def _quantize_layer(name: str, layer: OPTDecoderLayer, before: dict[str, float], after: dict[str, float]) -> None:
    attention = layer.self_attn
    given, fc1, fc2 = (before[f"{name}.{part}"] for part in ("self_attn.q_proj", "fc1", "fc2"))
    out = before[f"{name}.self_attn.out_proj"]
    q, k, v = (after[f"{name}.self_attn.{part}"] for part in ("q_proj", "k_proj", "v_proj"))
    device, factor = attention.q_proj.weight.device, attention.scaling
    # Scores are q k / sqrt(head_dim): transformers multiplies q, here its weight and its scale take the factor.
    attention.q_proj = W8A8B8O8Linear.from_float(attention.q_proj, given, q * factor, factor)
    attention.k_proj = W8A8B8O8Linear.from_float(attention.k_proj, given, k)
    attention.v_proj = W8A8B8O8Linear.from_float(attention.v_proj, given, v)
    attention.out_proj = W8A8BFP32OFP32Linear.from_float(attention.out_proj, out)
    attention.qk_bmm = BMM(torch.tensor(q * factor * k, device=device), to_int8=False)
    attention.pv_bmm = BMM(torch.tensor(_PROBABILITY * v / out, device=device), to_int8=True)
    layer.self_attn_layer_norm = LayerNormQ.from_float(layer.self_attn_layer_norm, given)
    layer.final_layer_norm = LayerNormQ.from_float(layer.final_layer_norm, fc1)
    layer.fc1 = W8A8B8O8LinearReLU.from_float(layer.fc1, fc1, fc2)
    layer.fc2 = W8A8BFP32OFP32Linear.from_float(layer.fc2, fc2)
    attention.__class__, layer.__class__ = Int8OPTAttention, Int8OPTDecoderLayer


def empty_layers(model: torch.nn.Module) -> torch.nn.Module:
    """The same modules without numbers, of a model on the device meta; for what a checkpoint holds."""
    for layer in check(model).values():
        attention = layer.self_attn
        for part in ("q_proj", "k_proj", "v_proj"):
            setattr(attention, part, _empty(W8A8B8O8Linear, getattr(attention, part)))
        attention.out_proj = _empty(W8A8BFP32OFP32Linear, attention.out_proj)
        attention.qk_bmm = BMM(torch.empty((), device="meta"), to_int8=False)
        attention.pv_bmm = BMM(torch.empty((), device="meta"), to_int8=True)
        for part in ("self_attn_layer_norm", "final_layer_norm"):
            norm = getattr(layer, part)
            setattr(layer, part, LayerNormQ(norm.weight.numel(), norm.eps, device="meta"))
        layer.fc1, layer.fc2 = _empty(W8A8B8O8LinearReLU, layer.fc1), _empty(W8A8BFP32OFP32Linear, layer.fc2)
        attention.__class__, layer.__class__ = Int8OPTAttention, Int8OPTDecoderLayer
    _needs_a_mask(model)
    return model


def _empty(kind: type, linear: torch.nn.Linear) -> torch.nn.Module:
    return kind(linear.in_features, linear.out_features, device="meta")


def _needs_a_mask(model: torch.nn.Module) -> None:
    """Others leave the causal mask to the attention that they call; this one adds it."""
    model.config._attn_implementation = "eager"
