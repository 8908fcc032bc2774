"""FP8 kernels for LLM inference: RMSNorm, SwiGLU, skinny and block-scaled GEMM, for ROCm, CUDA and the CPU; and the
int8 operators of SmoothQuant and W8A8 checkpoints.

FP8 is float8_e4m3fn or, on MI300X (gfx942), float8_e4m3fnuz. A scale is the dequantisation scale: a float32
tensor with `value = float(fp8) * scale` and `fp8 = round(value / scale)`, on the operands' device.

`reference` holds the same operators in plain PyTorch, `layers` the modules for `kernels.kernelize`,
`quantization` what turns a bfloat16 model, or an FP8 checkpoint, into a model that runs on these operators;
`smoothquant` the same for int8. Under `by_reference` such a model runs on the reference.
"""

from pathlib import Path as _Path

from .intact import check_files as _check_files

_check_files(_Path(__file__).parent)  # before the library is loaded

from . import comm, layers, reference  # noqa: E402
from .models import fp8 as quantization  # noqa: E402
from .models import int8 as smoothquant  # noqa: E402
from .models.fp8.linear import to_fnuz  # noqa: E402
from .operators import by_reference  # noqa: E402
from .ops import (  # noqa: E402
    SKINNY_GEMM_MAX_ROWS,
    add_rms_norm_dynamic_fp8,
    add_rms_norm_fp8,
    block_scaled_gemm,
    bmm_ab_i8_e_f32,
    bmm_abe_i8,
    call_counts,
    fp8_dtype,
    fused_moe,
    grouped_gemm,
    grouped_gemm_gate,
    grouped_gemm_swiglu_fp8,
    int8_gemm,
    layer_norm_int8,
    linear_ab_i8_de_f32,
    linear_abde_i8,
    linear_relu_abde_i8,
    mla_append,
    mla_decode,
    moe_combine,
    moe_gate,
    moe_route,
    moe_sort,
    quantize_fp8,
    quantize_int8,
    quantize_mxfp4,
    reread_environment,
    rms_norm,
    rms_norm_dynamic_fp8,
    rms_norm_fp8,
    skinny_gemm,
    softmax_int8,
    swiglu_dynamic_fp8,
    swiglu_fp8,
)

__all__ = [
    "SKINNY_GEMM_MAX_ROWS",
    "add_rms_norm_dynamic_fp8",
    "add_rms_norm_fp8",
    "block_scaled_gemm",
    "bmm_ab_i8_e_f32",
    "bmm_abe_i8",
    "by_reference",
    "call_counts",
    "comm",
    "fp8_dtype",
    "fused_moe",
    "grouped_gemm",
    "grouped_gemm_gate",
    "grouped_gemm_swiglu_fp8",
    "int8_gemm",
    "layer_norm_int8",
    "layers",
    "linear_ab_i8_de_f32",
    "linear_abde_i8",
    "linear_relu_abde_i8",
    "mla_append",
    "mla_decode",
    "moe_combine",
    "moe_gate",
    "moe_route",
    "moe_sort",
    "quantization",
    "quantize_fp8",
    "quantize_int8",
    "quantize_mxfp4",
    "reference",
    "reread_environment",
    "rms_norm",
    "rms_norm_dynamic_fp8",
    "rms_norm_fp8",
    "skinny_gemm",
    "smoothquant",
    "softmax_int8",
    "swiglu_dynamic_fp8",
    "swiglu_fp8",
    "to_fnuz",
]
