"""The operators' Python functions: check, allocate what was not given, call the kernel. A file a family of operators.

What they share: arguments (checks), scales (those that operators compute), device (its FP8 format), calls (the
registered operators, with what torch's compiler and autograd need).
"""

from .activation import swiglu_dynamic_fp8, swiglu_fp8
from .device import backend, call_counts, fp8_dtype, reread_environment
from .gemm import SKINNY_GEMM_MAX_ROWS, block_scaled_gemm, skinny_gemm
from .grouped import grouped_gemm, grouped_gemm_gate, grouped_gemm_swiglu_fp8
from .int8 import (
    bmm_ab_i8_e_f32,
    bmm_abe_i8,
    int8_gemm,
    layer_norm_int8,
    linear_ab_i8_de_f32,
    linear_abde_i8,
    linear_relu_abde_i8,
    quantize_int8,
    softmax_int8,
)
from .linear import fp8_linear as fp8_linear  # of models alone
from .mla import mla_append, mla_decode
from .moe import fused_moe, moe_combine, moe_route, moe_sort
from .mx import moe_gate, quantize_mxfp4
from .norms import add_rms_norm_dynamic_fp8, add_rms_norm_fp8, rms_norm, rms_norm_dynamic_fp8, rms_norm_fp8
from .quantize import quantize_fp8

__all__ = [
    "SKINNY_GEMM_MAX_ROWS",
    "add_rms_norm_dynamic_fp8",
    "add_rms_norm_fp8",
    "backend",
    "block_scaled_gemm",
    "bmm_ab_i8_e_f32",
    "bmm_abe_i8",
    "call_counts",
    "fp8_dtype",
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
    "quantize_fp8",
    "quantize_int8",
    "quantize_mxfp4",
    "reread_environment",
    "rms_norm",
    "rms_norm_dynamic_fp8",
    "rms_norm_fp8",
    "skinny_gemm",
    "softmax_int8",
    "swiglu_dynamic_fp8",
    "swiglu_fp8",
]
