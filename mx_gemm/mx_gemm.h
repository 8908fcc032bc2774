// Products with weights in MXFP4 or MXFP8 (../common/mx.h), of one matrix or of an expert's: the contract of every backend's
// launchers.
//
//     for i in [offsets[e], offsets[e + 1]):                     source(i) = i, or rows[i] / slots
//     p[i, n, j] = sum over the 32 k of block j of a[source(i), k] * b[e, n, k]                         float32
//     c[i, n]    = sum over blocks j of (scale_a[source(i), j] * scale_b[e, n, j]) * p[i, n, j]         float32
//     out[i, n]  = round_out(c * scale_a[source(i)] + bias[e, n])
//
// With a gate out is [m, n / 2] in 16 bits: moe_gate (../moe_gate/moe_gate.h) of what it would be in float32.
//
// A is float16 or bfloat16 without scales, FP8 with a scale a row or one for all (which multiplies the whole sum), or MXFP8
// or MXFP4 with scales of blocks. Products of a block are added in any order: unscaled, or scaled where their numbers stay
// normal, so that no exponent is lost. (On NVIDIA GPUs MXFP8, and rows with scales of blocks, may be rounded to a multiple of
// 2^-125 below it.) What is beyond float32 is infinite, what is below it is rounded. A NaN of A, or a scale 255, makes its
// row's or its column's results NaN, and no others.
//
// offsets and rows are on the device, as in ../grouped_gemm/grouped_gemm.h. Without offsets all rows are of one matrix.
// A row's bits depend on its row of A, its matrix, their layout and formats. How many rows there are matters on Hopper alone,
// without offsets: up to 8, 16, 32, 64, 128, 256, or more.
#pragma once

#include "../common/divider.h"
#include "../common/gemm/args.h"
#include "../common/mx.h"
#include "../moe_gate/moe_gate.h"

namespace rocm_fp8::mx_gemm {

constexpr int kMostGroups = 1024;

struct Args {
    gemm::Operand a, b;               // strides in bytes, k contiguous: [a_rows, k] and [groups][n, k]
    DType format_a, format_b;         // bf16, f16, FP8, e2m1; FP8, e2m1
    int64_t a_rows, m, n, k, groups;  // m: rows of the result. k: numbers, a multiple of 32
    gemm::Scales scale_a, scale_b;    // block_stride: of blocks of 32. Of rows of A: 0, float32
    gemm::Bias bias;                  // [groups][n]
    int64_t bias_group_stride;
    gemm::Output out;        // [m, n]
    const int32_t* offsets;  // [groups + 1], or nullptr
    const int32_t* rows;     // [m] or nullptr
    Divider slots;           // of a row of A; 1 where there are no rows
    int64_t expected;        // rows of a group, at least 1
    moe_gate::Gate gate;     // where it is gated
    bool gated;              // n is even, gates(args)

    ROCM_FP8_HD int64_t bytes_of(DType format) const {
        return format == DType::e2m1 ? k / 2 : is_fp8(format) ? k : 2 * k;
    }
};

// Whether gates are the first half of B's columns, ups the second. (Interleaved they are neighbours.)
ROCM_FP8_HD constexpr bool of_halves(const Args& a) { return a.gated && !a.gate.interleaved; }

// Whether A's scales are of blocks; else they multiply the sum, or there are none.
ROCM_FP8_HD constexpr bool of_blocks(const gemm::Scales& scale_a) {
    return scale_a.data && scale_a.dtype == DType::e8m0;
}

Status launch(const Args& args, const Executor& on);

// Whether this backend gates these operands' products before they are stored.
bool gates(const Args& args);

}  // namespace rocm_fp8::mx_gemm
