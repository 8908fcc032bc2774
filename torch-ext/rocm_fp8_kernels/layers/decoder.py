"""A Llama decoder layer on FP8 operators, written once over them: `ops` is this package's operators or its reference.

    h  --rms_norm_fp8--> FP8 --QKV--> attention --> FP8 --O--> a
    a += h               in place, in add_rms_norm_fp8
    a  --the norm------> FP8 --Gate/Up--> swiglu_fp8 --> FP8 --Down--> d;  d += a, in place

A linear without an input_scale has its input quantised by scales of the rows: by the dynamic operators of these names.
The residual stream lives in the linears' results: each is the next one's residual buffer, nothing is allocated
for it, and a layer's input is never written (transformers hands it out as a hidden state).
"""

from types import ModuleType

import torch


def decoder_layer(layer: torch.nn.Module, ops: ModuleType, hidden: torch.Tensor, **attention_arguments) -> torch.Tensor:
    """`layer` has LlamaDecoderLayer's modules, quantised (see ../llama.py); hidden: float16 or bfloat16 [..., d]."""
    attention, mlp = layer.self_attn, layer.mlp
    q, scale = _normalised(ops, layer.input_layernorm, attention.qkv_proj, hidden)
    residual, _ = attention(q, ops=ops, input_scale=scale, **attention_arguments)
    q, scale = _normalised(ops, layer.post_attention_layernorm, mlp.gate_up_proj, hidden, residual)
    return mlp(q, ops=ops, input_scale=scale).add_(residual)


def _normalised(
    ops: ModuleType, norm: torch.nn.Module, linear: torch.nn.Module, x: torch.Tensor, *residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q, scale): the norm of x, or of the residual that x is added to, as the input of `linear`."""
    epsilon, kind = norm.variance_epsilon, linear.weight.dtype
    if linear.input_scale is None:
        operator = ops.add_rms_norm_dynamic_fp8 if residual else ops.rms_norm_dynamic_fp8
        return operator(x, *residual, norm.weight, epsilon, scaling="row", out_dtype=kind)
    operator = ops.add_rms_norm_fp8 if residual else ops.rms_norm_fp8
    return operator(x, *residual, norm.weight, linear.input_scale, epsilon, out_dtype=kind), linear.input_scale
