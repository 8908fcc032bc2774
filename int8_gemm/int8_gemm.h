// E = A B^T in int8 with exact int32 sums: the contract of every backend's launcher, for int8_gemm and SmoothQuant's
// five wrappers.
//
//     acc[m, n] = sum over k of a[m, k] * b[n, k]                int32, exact
//     out[m, n] = what epilogue.h makes of it: scales, zero points, an addend, an activation, the result's type
//
// Of each of `batch` matrices, the groups. The sum is exact whatever the order, so every result without a transcendental
// function has the same bytes on all backends, for any number of rows.
#pragma once

#include "../common/gemm/args.h"

namespace rocm_fp8::int8_gemm {

// More products of -128 * -128 do not fit into int32.
constexpr int64_t kMaxK = 131071;

// k_contiguous(). Scales are float32 of rows, or a number of the host.
using gemm::Operand, gemm::Output, gemm::Scales;

// An integer for each row of group g: data[g * group_stride + r * row_stride].
struct Integers {
    int64_t group_stride;
    const int32_t* data;
    int64_t row_stride;
};

// What is added, times beta: a bias or D. Element (m, n) of group g is number g * group_stride + m * row_stride + n.
struct Addend {
    int64_t group_stride;
    const void* data;    // dtype; nullptr: nothing is added
    int64_t row_stride;  // 0 for a row that all rows share
    DType dtype;         // i8, f32, f16 or bf16
    Scales beta;         // one for all
};

enum class Activation : int32_t { none, relu, gelu, gelu_tanh };

struct Epilogue {
    Scales scale_a, scale_b;  // of rows (alpha is one for all), of columns
    Integers zero_a, sum_b;   // zero points of rows, sums of B's rows over k; data is nullptr in both or in neither
    Addend addend;
    Activation activation;
    bool divides;      // only with i8: by scale_out
    Scales scale_out;  // one for all
    Output out;
};

struct Args {
    Operand a, b;
    int64_t batch, m, n, k;  // 1 <= k <= kMaxK
    Epilogue epilogue;
    bool constant_b;  // whatever wrote b, scale_b and sum_b has ended (see docs/numerics.md): they may be read at once
};

// The arguments must be valid as above; out overlaps nothing.
Status launch(const Args& args, const Executor& on);

}  // namespace rocm_fp8::int8_gemm
