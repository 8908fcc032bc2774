"""A decoder layer on FP8 operators.

    h  --rms_norm_fp8--> FP8 --QKV--> attention --> FP8 --O--> a
    a += h               in place, in add_rms_norm_fp8
    a  --the norm------> FP8 --Gate/Up--> swiglu_fp8 --> FP8 --Down--> d

It ends with d += a, in place; with a ResidualStream (residual.py) the next layer begins with a += d, in its norm.

A linear without an input_scale has its input quantised by computed scales, of rows or of groups: by the dynamic
operators of these names. One on MX weights that takes no FP8 gets rms_norm's 16 bits, and before Down transformers'
activation.
A half of the layer, attention or MLP, that is not quantised as a whole keeps transformers' module and order; there
each FP8 linear quantises its own input.
With a communicator (parallel.py) a and d are one rank's partial sums. The norm behind them adds those of
all ranks: all_reduce_add_rms_norm_fp8, where the residual may be written; else all_reduce comes first.
The residual lives in the linears' results: each is the next one's residual buffer, nothing is allocated
for it, and a layer's input is never written (transformers hands it out as a hidden state).
"""

import torch

from ...comm import Communicator
from ...layers.watching import call, is_watched, ours, plain_norm, to_write
from ...operators import operators
from ..codes import Codes
from ..signatures import named
from .residual import ResidualStream, TakesResidual


class Fp8DecoderLayer(TakesResidual):
    """Mixed into an architecture's own (architectures.py), whose modules it has: input_layernorm, self_attn,
    post_attention_layernorm, mlp."""

    PARAMETERS: tuple[str, ...]  # of transformers' own forward, after the first

    @ours
    def forward(
        self, hidden_states: torch.Tensor, *args, residual_stream: ResidualStream | None = None, **kwargs
    ) -> torch.Tensor:
        """As the architecture's own. hidden_states: float16 or bfloat16 [..., d]; args and kwargs: PARAMETERS, and
        what the attention takes beyond."""
        attention, mlp = self.self_attn, self.mlp
        arguments = named(self.PARAMETERS, args, kwargs)
        ranks = getattr(self, "communicator", None)
        hidden, residual = hidden_states, None
        if residual_stream is not None:
            hidden, residual = residual_stream.take(hidden)
        if ranks is not None:
            return _of_ranks(self, ranks, hidden, residual, residual_stream, arguments)
        if hasattr(attention, "first"):
            if residual is None:
                q, scale = _normalised(self.input_layernorm, attention, hidden)
            else:
                q, scale = _normalised(self.input_layernorm, attention, hidden, residual)
                hidden = residual
            residual, _ = call(attention, q, more=dict(input_scale=scale), **arguments)
        else:
            if residual is not None:
                hidden = residual.add_(hidden)
            residual, _ = attention(hidden_states=self.input_layernorm(hidden), **arguments)
        residual = to_write(residual, attention, attention.o_proj)
        if not hasattr(mlp, "first"):
            residual = residual + hidden
            return residual + mlp(self.post_attention_layernorm(residual))
        if mlp.READS_BOTH:
            x, quantized = _normalised_both(self.post_attention_layernorm, mlp, hidden, residual)
            result = call(mlp, x, more=dict(quantized=quantized))
        else:
            q, scale = _normalised(self.post_attention_layernorm, mlp, hidden, residual)
            result = call(mlp, q, more=dict(input_scale=scale))
        result = to_write(result, mlp, mlp.last)
        if residual_stream is not None and residual_stream.leave(result, residual):
            return result
        return result.add_(residual)


def _of_ranks(
    layer: torch.nn.Module,
    ranks: Communicator,
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    residual_stream: ResidualStream | None,
    arguments: dict,
) -> torch.Tensor:
    """The forward of one rank's share. With a residual, `hidden` is this rank's part of the layer's before."""
    attention, mlp = layer.self_attn, layer.mlp
    norm = layer.input_layernorm
    if residual is None:
        q, scale = _normalised(norm, attention, hidden)
    else:
        q, scale = _normalised_sum(norm, attention, hidden, residual, ranks)
        hidden = residual
    part, _ = call(attention, q, more=dict(input_scale=scale), **arguments)
    norm = layer.post_attention_layernorm
    to_add = ranks if residual is not None else None
    if residual is None:  # the layer's own input is not to be written
        residual, part = ranks.all_reduce(part), hidden
    if mlp.READS_BOTH:
        x, quantized = _normalised_both(norm, mlp, part, residual, to_add)
        part = call(mlp, x, more=dict(quantized=quantized))
    else:
        given = norm, mlp, part, residual
        q, scale = _normalised(*given) if to_add is None else _normalised_sum(*given, to_add)
        part = call(mlp, q, more=dict(input_scale=scale))
    if residual_stream is not None and residual_stream.leave(part, residual, of_ranks=True):
        return part
    return ranks.all_reduce(part).add_(residual)


def _normalised_sum(
    norm: torch.nn.Module,
    half: torch.nn.Module,
    part: torch.Tensor,
    residual: torch.Tensor,
    ranks: Communicator,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """_normalised of the sum of all ranks' parts and the residual."""
    linear = half.first
    scaling = linear.input_scaling() if _is_plain(norm, half) else None
    if scaling is None:
        return _normalised(norm, half, ranks.all_reduce(part), residual)
    epsilon, kind, scale = norm.variance_epsilon, linear.input_dtype, linear.input_scale
    if scale is None:
        operator = ranks.all_reduce_add_rms_norm_dynamic_fp8
        return operator(part, residual, norm.weight, epsilon, **scaling, out_dtype=kind)
    operator = ranks.all_reduce_add_rms_norm_fp8
    return operator(part, residual, norm.weight, scale, epsilon, out_dtype=kind), scale


def _normalised(
    norm: torch.nn.Module, half: torch.nn.Module, x: torch.Tensor, *residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(q, scale): the norm of x, or of the residual that x is added to, as the input of `half`. Not quantised, and
    None, where somebody watches what takes part: then all modules are called, with what transformers gives them."""
    if not _is_plain(norm, half):
        return norm(residual[0].add_(x).clone() if residual else x), None
    return normalised_for(half.first, norm, x, *residual)


def _is_plain(norm: torch.nn.Module, half: torch.nn.Module) -> bool:
    """Whether nobody watches or has replaced what a norm's result goes through."""
    first = half.first
    return plain_norm(norm) and not is_watched(half) and isinstance(first, Codes) and not is_watched(first)


def normalised_for(
    linear: torch.nn.Module, norm: torch.nn.Module, x: torch.Tensor, *residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(q, scale): the norm of x, or of the residual that x is added to, as `linear` takes it. In x's dtype, and None,
    where it takes no FP8."""
    ops, epsilon, kind = operators(), norm.variance_epsilon, linear.input_dtype
    if linear.input_scale is not None:
        operator = ops.add_rms_norm_fp8 if residual else ops.rms_norm_fp8
        return operator(x, *residual, norm.weight, linear.input_scale, epsilon, out_dtype=kind), linear.input_scale
    if (scaling := linear.input_scaling()) is None:
        return ops.rms_norm(residual[0].add_(x) if residual else x, norm.weight, epsilon), None
    operator = ops.add_rms_norm_dynamic_fp8 if residual else ops.rms_norm_dynamic_fp8
    return operator(x, *residual, norm.weight, epsilon, **scaling, out_dtype=kind)


def _normalised_both(
    norm: torch.nn.Module,
    half: torch.nn.Module,
    x: torch.Tensor,
    residual: torch.Tensor,
    ranks: Communicator | None = None,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    """(y, (q, scales)): the norm of the residual that x is added to, in x's dtype and as half.first takes it; None
    where that computes no scales, or where somebody watches. With ranks x is this rank's part."""
    experts, plain = half.first, _is_plain(norm, half)
    scaling = experts.input_scaling() if plain else None
    if scaling is None:
        residual.add_(x if ranks is None else ranks.all_reduce(x))
        if plain:
            return operators().rms_norm(residual, norm.weight, norm.variance_epsilon), None
        return norm(residual.clone()), None
    operator = operators().add_rms_norm_dynamic_fp8 if ranks is None else ranks.all_reduce_add_rms_norm_dynamic_fp8
    y, kind = torch.empty_like(x, memory_format=torch.contiguous_format), experts.input_dtype
    q, scales = operator(
        x,
        residual,
        norm.weight,
        norm.variance_epsilon,
        **scaling,
        normalized_out=y,
        out_dtype=kind,
    )
    return y, (q, scales)
