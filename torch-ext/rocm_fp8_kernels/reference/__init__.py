"""The operators in plain PyTorch: what each one computes, rounding point by rounding point.

Slow, on any device, and the oracle of the tests. Signatures are those of the operators. The files are those of ops/.
"""

from .activation import swiglu as swiglu
from .activation import swiglu_dynamic_fp8, swiglu_fp8
from .gemm import block_scaled_gemm, skinny_gemm
from .gemm import fp8_linear as fp8_linear
from .int8 import (
    bmm_ab_i8_e_f32,
    bmm_abe_i8,
    encode_int8,
    int8_gemm,
    layer_norm_int8,
    linear_ab_i8_de_f32,
    linear_abde_i8,
    linear_relu_abde_i8,
    quantize_int8,
    softmax_int8,
)
from .mla import mla_append, mla_decode
from .moe import fused_moe, grouped_gemm, grouped_gemm_gate, grouped_gemm_swiglu_fp8, moe_combine, moe_route, moe_sort
from .mx import moe_gate, quantize_mxfp4
from .norms import add_rms_norm_dynamic_fp8, add_rms_norm_fp8, normalize, rms_norm, rms_norm_dynamic_fp8, rms_norm_fp8
from .quantize import encode_fp8, quantize_fp8

__all__ = [
    "add_rms_norm_dynamic_fp8",
    "add_rms_norm_fp8",
    "block_scaled_gemm",
    "bmm_ab_i8_e_f32",
    "bmm_abe_i8",
    "encode_fp8",
    "encode_int8",
    "fused_moe",
    "grouped_gemm",
    "grouped_gemm_gate",
    "grouped_gemm_swiglu_fp8",
    "int8_gemm",
    "layer_norm_int8",
    "linear_ab_i8_de_f32",
    "linear_abde_i8",
    "linear_relu_abde_i8",
    "mla_append",
    "mla_decode",
    "moe_combine",
    "moe_gate",
    "moe_route",
    "moe_sort",
    "normalize",
    "quantize_fp8",
    "quantize_int8",
    "quantize_mxfp4",
    "rms_norm",
    "rms_norm_dynamic_fp8",
    "rms_norm_fp8",
    "skinny_gemm",
    "softmax_int8",
    "swiglu_dynamic_fp8",
    "swiglu_fp8",
]
