// RMSNorm, optionally after a residual addition and optionally quantised to FP8: the contract of every
// backend's launcher.
//
//     h = round_dtype(x + residual)             only with a residual; written back to it
//     r = rsqrt(mean(float(h)^2) + epsilon)     float32
//     n = round_dtype(float(h) * r)
//     y = round_dtype(n * weight)               float32 product where the weight is float32
//     out = fp8(float(y) / scale), or y itself where out_dtype is the input's
//
// The scale is given, or computed of y (../common/rows/dynamic_scale.h) and written.
//
// The roundings are those of the unfused modules (transformers' LlamaRMSNorm, then a cast): fusing changes
// a result only where the order of the sum moves r by an ulp.
#pragma once

#include "../common/rows/dynamic_scale.h"
#include "../common/types.h"

namespace rocm_fp8::rms_norm {

struct Args {
    const void* x;       // dtype [rows, d], rows x_stride elements apart
    void* residual;      // dtype [rows, d], rows residual_stride apart; or nullptr
    const void* weight;  // weight_dtype [d]
    const float* scale;  // float32 [1]; or nullptr: `dynamic` says how it is computed. Unused where out_dtype == dtype
    void* out;           // out_dtype [rows, d], rows out_stride apart
    int64_t rows, d;
    int64_t x_stride, residual_stride, out_stride;
    DType dtype;         // f16 or bf16
    DType weight_dtype;  // dtype or f32
    DType out_dtype;     // e4m3fn, e4m3fnuz or dtype
    float epsilon;

    DynamicScale dynamic;
    void* normalized;  // dtype [rows, d], rows normalized_stride apart: y as well; or nullptr. With `dynamic` alone
    int64_t normalized_stride;

    ROCM_FP8_HD bool is_dynamic() const { return is_fp8(out_dtype) && !scale; }
};

// The arguments must be valid as above; no two of x (rows), residual, out, normalized and the scales overlap.
Status launch(const Args& args, const Executor& on);

}  // namespace rocm_fp8::rms_norm
