// The arguments that describe a GEMM's operands, scales and result, on all backends.
//
//     out[m, n] = round_out((c[m, n] * scale_a[m]) * scale_b[n] + bias[n])
//
// c is the float32 sum over k. Each of the three operations rounds to float32, in this order; none are fused. Without
// a bias nothing is added. The last step rounds to out's type. Operators with other scales or another end say which.
//
// A launch may have several matrices: groups. A stride of 0 is that of what all rows, blocks or groups share. Strides of
// groups come first: what a kernel of one group reads of a struct lies together, so that one scalar load brings it.
#pragma once

#include "../types.h"

namespace rocm_fp8::gemm {

// 8-bit [rows, k]: element (r, k) of group g is byte g * group_stride + r * row_stride + k * k_stride. k_stride is 1, or
// row_stride is (column-major). No alignment is promised; no stride is negative.
struct Operand {
    int64_t group_stride;
    const uint8_t* data;
    int64_t row_stride, k_stride;

    ROCM_FP8_HD bool k_contiguous() const { return k_stride == 1; }
};

// Dequantisation scales of an operand: of row r, block j of 128 k and group g element
// (r / rows) * row_stride + j * block_stride + g * group_stride.
struct Scales {
    int64_t group_stride;
    const void* data;  // nullptr: `value` is the scale of all. Only where the operator says so
    int64_t row_stride, block_stride;
    int32_t rows;  // that share a scale: 1, or a block's 128
    DType dtype;   // f32, or e8m0: 2^(byte - 127), 255 is NaN
    float value;
};

struct Bias {
    const void* data;  // dtype [n], stride elements apart; nullptr: no bias
    int64_t stride;
    DType dtype;  // f32, f16 or bf16
};

// Element (m, n) of group g is number g * group_stride + m * row_stride + n; rows do not overlap.
struct Output {
    int64_t group_stride;
    void* data;
    int64_t row_stride;
    DType dtype;  // f32, f16, bf16 or, of int8 operands, i8
};

// Of operators whose scales are float32, of rows, and whose operands are one group.
struct Epilogue {
    Scales scale_a, scale_b;
    Bias bias;
    Output out;
};

}  // namespace rocm_fp8::gemm
