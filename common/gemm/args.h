// The arguments that describe a GEMM's result, on all backends.
//
//     out[m, n] = round_out((c[m, n] * scale_a[m]) * scale_b[n] + bias[n])
//
// c is the float32 sum over k. Each of the three operations rounds to float32, in this order; none are fused. Without
// a bias nothing is added. The last step rounds to out's type.
#pragma once

#include "../types.h"

namespace rocm_fp8::gemm {

// float32 dequantisation scales of the rows of an operand.
struct Scales {
    const float* data;  // float32 [1] or [rows]; element i is at data[i * stride]
    int64_t stride;     // 0: one scale for all rows
};

struct Bias {
    const void* data;  // dtype [n], stride elements apart; nullptr: no bias
    int64_t stride;
    DType dtype;  // f16, bf16 or f32
};

struct Output {
    void* data;      // dtype [m, n], rows stride elements apart
    int64_t stride;  // elements
    DType dtype;     // f16, bf16 or f32
};

struct Epilogue {
    Scales scale_a, scale_b;
    Bias bias;
    Output out;
};

}  // namespace rocm_fp8::gemm
