"""A Llama decoder layer on FP8 operators, written once over them: `ops` is this package's operators or its reference.

    h  --rms_norm_fp8--> FP8 --QKV--> attention --> FP8 --O--> a
    a += h               in place, in add_rms_norm_fp8
    a  --the norm------> FP8 --Gate/Up--> swiglu_fp8 --> FP8 --Down--> d;  d += a, in place

The residual stream lives in the linears' results: each is the next one's residual buffer, nothing is allocated
for it, and a layer's input is never written (transformers hands it out as a hidden state).
"""

from types import ModuleType

import torch


def decoder_layer(layer: torch.nn.Module, ops: ModuleType, hidden: torch.Tensor, **attention_arguments) -> torch.Tensor:
    """`layer` has LlamaDecoderLayer's modules, quantised (see ../llama.py); hidden: float16 or bfloat16 [..., d]."""
    norm, attention = layer.input_layernorm, layer.self_attn
    # A linear's input_scale is what the operator before it divides by.
    q = ops.rms_norm_fp8(
        hidden,
        norm.weight,
        attention.qkv_proj.input_scale,
        norm.variance_epsilon,
        out_dtype=attention.qkv_proj.weight.dtype,
    )
    residual, _ = attention(q, ops=ops, **attention_arguments)

    norm, mlp = layer.post_attention_layernorm, layer.mlp
    q = ops.add_rms_norm_fp8(
        hidden,
        residual,
        norm.weight,
        mlp.gate_up_proj.input_scale,
        norm.variance_epsilon,
        out_dtype=mlp.gate_up_proj.weight.dtype,
    )
    return mlp(q, ops=ops).add_(residual)
