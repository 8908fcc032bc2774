"""A decoder layer on FP8 operators, written once over them: `ops` is this package's operators or its reference.

    h  --rms_norm_fp8--> FP8 --QKV--> attention --> FP8 --O--> a
    a += h               in place, in add_rms_norm_fp8
    a  --the norm------> FP8 --Gate/Up--> swiglu_fp8 --> FP8 --Down--> d

It ends with d += a, in place; with a ResidualStream (residual.py) the next layer begins with a += d, in its norm.

A linear without an input_scale has its input quantised by computed scales, of rows or of groups of 128: by the dynamic
operators of these names.
A half of the layer, attention or MLP, that is not quantised as a whole keeps transformers' module and order; there
each FP8 linear quantises its own input (`quantizing_linear`).
With a communicator (../models/fp8/parallel.py) a and d are one rank's partial sums. The norm behind them adds those of
all ranks: all_reduce_add_rms_norm_fp8, where the residual may be written; else all_reduce comes first.
The residual lives in the linears' results: each is the next one's residual buffer, nothing is allocated
for it, and a layer's input is never written (transformers hands it out as a hidden state).
"""

from types import ModuleType

import torch

from .. import reference
from ..comm import Communicator
from ..models.codes import Codes
from ..models.fp8.linear import Fp8Linear
from ..models.signatures import named
from .residual import ResidualStream
from .watching import call, is_watched, plain_norm, to_write


def decoder_layer(
    layer: torch.nn.Module,
    ops: ModuleType,
    hidden: torch.Tensor,
    residual_stream: ResidualStream | None,
    args: tuple,
    kwargs: dict,
) -> torch.Tensor:
    """`layer` has the modules of a decoder layer of ../models/fp8/architectures.py; hidden: float16 or bfloat16
    [..., d]; args and kwargs: the layer's other arguments, all of which go to its attention."""
    attention, mlp = layer.self_attn, layer.mlp
    arguments = named(layer.PARAMETERS, args, kwargs)
    ranks = getattr(layer, "communicator", None)
    residual = None
    if residual_stream is not None:
        hidden, residual = residual_stream.take(hidden)
    if ranks is not None:
        return _of_ranks(layer, ops, ranks, hidden, residual, residual_stream, arguments)
    if hasattr(attention, "first"):
        if residual is None:
            q, scale = _normalised(ops, layer.input_layernorm, attention, hidden)
        else:
            q, scale = _normalised(ops, layer.input_layernorm, attention, hidden, residual)
            hidden = residual
        residual, _ = call(attention, q, ops=ops, more=dict(input_scale=scale), **arguments)
    else:
        if residual is not None:
            hidden = residual.add_(hidden)
        residual, _ = attention(hidden_states=layer.input_layernorm(hidden), **arguments)
    residual = to_write(residual, attention, attention.o_proj)
    if not hasattr(mlp, "first"):
        residual = residual + hidden
        return residual + mlp(layer.post_attention_layernorm(residual))
    if mlp.READS_BOTH:
        x, quantized = _normalised_both(ops, layer.post_attention_layernorm, mlp, hidden, residual)
        result = call(mlp, x, ops=ops, more=dict(quantized=quantized))
    else:
        q, scale = _normalised(ops, layer.post_attention_layernorm, mlp, hidden, residual)
        result = call(mlp, q, ops=ops, more=dict(input_scale=scale))
    result = to_write(result, mlp, mlp.last)
    if residual_stream is not None and residual_stream.leave(result, residual):
        return result
    return result.add_(residual)


def _of_ranks(
    layer: torch.nn.Module,
    ops: ModuleType,
    ranks: Communicator,
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    residual_stream: ResidualStream | None,
    arguments: dict,
) -> torch.Tensor:
    """decoder_layer of one rank's share. With a residual, `hidden` is this rank's part of the layer's before."""
    attention, mlp = layer.self_attn, layer.mlp
    norm = layer.input_layernorm
    if residual is None:
        q, scale = _normalised(ops, norm, attention, hidden)
    else:
        q, scale = _normalised_sum(ops, norm, attention, hidden, residual, ranks)
        hidden = residual
    part, _ = call(attention, q, ops=ops, more=dict(input_scale=scale), **arguments)
    norm = layer.post_attention_layernorm
    to_add = ranks if residual is not None else None
    if residual is None:  # the layer's own input is not to be written
        residual, part = ranks.all_reduce(part), hidden
    if mlp.READS_BOTH:
        x, quantized = _normalised_both(ops, norm, mlp, part, residual, to_add)
        part = call(mlp, x, ops=ops, more=dict(quantized=quantized))
    else:
        given = ops, norm, mlp, part, residual
        q, scale = _normalised(*given) if to_add is None else _normalised_sum(*given, to_add)
        part = call(mlp, q, ops=ops, more=dict(input_scale=scale))
    if residual_stream is not None and residual_stream.leave(part, residual, of_ranks=True):
        return part
    return ranks.all_reduce(part).add_(residual)


def _normalised_sum(
    ops: ModuleType,
    norm: torch.nn.Module,
    half: torch.nn.Module,
    part: torch.Tensor,
    residual: torch.Tensor,
    ranks: Communicator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """_normalised of the sum of all ranks' parts and the residual."""
    linear = half.first
    if ops is reference or not _is_plain(norm, half):
        return _normalised(ops, norm, half, ranks.all_reduce(part), residual)
    epsilon, kind = norm.variance_epsilon, linear.weight.dtype
    if linear.input_scale is None:
        operator = ranks.all_reduce_add_rms_norm_dynamic_fp8
        return operator(part, residual, norm.weight, epsilon, **linear.input_scaling(), out_dtype=kind)
    operator, scale = ranks.all_reduce_add_rms_norm_fp8, linear.input_scale
    return operator(part, residual, norm.weight, scale, epsilon, out_dtype=kind), scale


def _normalised(
    ops: ModuleType, norm: torch.nn.Module, half: torch.nn.Module, x: torch.Tensor, *residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(q, scale): the norm of x, or of the residual that x is added to, as the input of `half`. Not quantised, and
    None, where somebody watches what takes part: then all modules are called, with what transformers gives them."""
    if not _is_plain(norm, half):
        return norm(residual[0].add_(x).clone() if residual else x), None
    return normalised_for(half.first, ops, norm, x, *residual)


def _is_plain(norm: torch.nn.Module, half: torch.nn.Module) -> bool:
    """Whether nobody watches or has replaced what a norm's result goes through."""
    first = half.first
    return plain_norm(norm) and not is_watched(half) and isinstance(first, Codes) and not is_watched(first)


def normalised_for(
    linear: torch.nn.Module, ops: ModuleType, norm: torch.nn.Module, x: torch.Tensor, *residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q, scale): the norm of x, or of the residual that x is added to, as `linear` takes it."""
    epsilon, kind = norm.variance_epsilon, linear.weight.dtype
    if linear.input_scale is None:
        operator = ops.add_rms_norm_dynamic_fp8 if residual else ops.rms_norm_dynamic_fp8
        return operator(x, *residual, norm.weight, epsilon, **linear.input_scaling(), out_dtype=kind)
    operator = ops.add_rms_norm_fp8 if residual else ops.rms_norm_fp8
    return operator(x, *residual, norm.weight, linear.input_scale, epsilon, out_dtype=kind), linear.input_scale


def _normalised_both(
    ops: ModuleType,
    norm: torch.nn.Module,
    half: torch.nn.Module,
    x: torch.Tensor,
    residual: torch.Tensor,
    ranks: Communicator | None = None,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    """(y, (q, scales)): the norm of the residual that x is added to, in x's dtype and as half.first takes it; None
    where that has a stored scale, or where somebody watches. With ranks x is this rank's part."""
    experts = half.first
    in_16_bits = not _is_plain(norm, half) or experts.input_scale is not None
    if ranks is not None and (in_16_bits or ops is reference):
        x, ranks = ranks.all_reduce(x), None
    if in_16_bits:
        return norm(residual.add_(x).clone()), None
    operator = ops.add_rms_norm_dynamic_fp8 if ranks is None else ranks.all_reduce_add_rms_norm_dynamic_fp8
    y, kind = torch.empty_like(x, memory_format=torch.contiguous_format), experts.weight.dtype
    q, scales = operator(
        x,
        residual,
        norm.weight,
        norm.variance_epsilon,
        **experts.input_scaling(),
        normalized_out=y,
        out_dtype=kind,
    )
    return y, (q, scales)


def quantizing_linear(linear: Fp8Linear, ops: ModuleType, x: torch.Tensor) -> torch.Tensor:
    """x: float16 or bfloat16 [..., in_features]."""
    return Fp8Linear.forward(linear, x, ops=ops)
