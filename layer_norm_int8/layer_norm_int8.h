// LayerNorm quantised to int8, optionally after a residual addition: the contract of every backend's launcher.
//
//     h = round_dtype(x + residual)                       only with a residual; written back to it
//     mean = sum(h) / d,  var = sum((h - mean)^2) / d     float32, in two passes over the row
//     r = 1 / sqrt(var + epsilon)
//     y = round_dtype(((h - mean) * r) * weight + bias)   float32 before it; none fused
//     out = int8(y / scale), or int8(round(y / scale) + zero)   common/int8.h
//
// The scale is given, or computed of a row of y and written. The order of a sum is the backend's: results may differ by
// one step of dtype in y.
#pragma once

#include "../common/int8.h"
#include "../common/types.h"

namespace rocm_fp8::layer_norm_int8 {

struct Args {
    const void* x;       // dtype [rows, d], rows x_stride elements apart
    void* residual;      // dtype [rows, d], rows residual_stride apart; or nullptr
    const void* weight;  // weight_dtype [d]
    const void* bias;    // weight_dtype [d], or nullptr: nothing is added
    int8_t* out;         // int8 [rows, d], rows out_stride apart
    Int8Scale scale;
    int64_t rows, d;
    int64_t x_stride, residual_stride, out_stride;
    DType dtype;         // f16, bf16 or f32
    DType weight_dtype;  // dtype or f32
    float epsilon;
};

// The arguments must be valid as above; no two of x (rows), residual, out, the scales and the zero points overlap.
Status launch(const Args& args, const Executor& on);

}  // namespace rocm_fp8::layer_norm_int8
