// Products of sorted rows with the matrix of their expert: the contract of every backend's launchers.
//
//     for i in [offsets[e], offsets[e + 1]):   c[i] = A[source(i)] B[e]^T       source(i) = i, or rows[i] / slots
//
// FP8: sums and scales as in ../block_scaled_gemm/block_scaled_gemm.h, A's scales by source(i). float16 and bfloat16: one
// float32 sum over k, no scales. Then + bias[e], and one rounding to out's type. Rows from offsets[groups] on are not
// written.
//
// offsets and rows are on the device: launches depend on sizes alone, so that one captured graph serves every routing.
// Offsets must not fall and must lie in [0, m], sources in [0, a_rows). Otherwise the result is undefined, but nothing
// outside of the operands is accessed.
//
// A row's bits depend on its row of A and its expert. On a GPU they also depend on whether an expert is expected to have
// more than kFewExpected rows and, if not, on slot_class(m). They never depend on how many it has.
#pragma once

#include "../common/divider.h"
#include "../common/gemm/args.h"
#include "../common/gemm/work.h"
#include "../swiglu_fp8/swiglu_fp8.h"

namespace rocm_fp8::grouped_gemm {

constexpr int kMostGroups = 1024, kFewExpected = 4;

// Few rows of the result leave much of a GPU idle: their forms, and parts of K, are chosen for as many tiles as they may
// have. They are a function of the class, so that a token has the same bits in every batch of its class. Of one or two
// tokens with one to ten experts each.
constexpr int kSlotClasses[] = {2, 4, 8, 10, 20};
// The most rows of m's class; 0: K is not split for so many.
constexpr int slot_class(int64_t m) {
    for (const int most : kSlotClasses) {
        if (m <= most) return most;
    }
    return 0;
}

struct Args {
    gemm::Operand a;                  // [a_rows, k], strides in bytes, k contiguous
    gemm::Operand b;                  // [groups][n, k], the same
    int64_t a_rows, m, n, k, groups;  // m: rows of the result; k: elements
    gemm::Scales scale_a, scale_b;    // of FP8
    gemm::Bias bias;                  // [groups][n]
    int64_t bias_group_stride;
    gemm::Output out;        // [m, n]
    DType format;            // of a and b: e4m3fn, e4m3fnuz, bf16 or f16
    const int32_t* offsets;  // [groups + 1]
    const int32_t* rows;     // [m] or nullptr
    Divider slots;           // of a row of A; 1 where there are no rows
    int64_t expected;        // rows of a group, at least 1

    ROCM_FP8_HD int element_bytes() const { return is_fp8(format) ? 1 : 2; }
};

Status launch(const Args& args, const Executor& on);

// swiglu of the product, rounded to gated.dtype: n = 2 gated.d, gates first. args.out is unused; of `gated`, x and
// x_stride. Scales are given, or of rows or groups; those of rows from offsets[groups] on, and these rows, are not written.
// On a GPU a kernel of its own where its tiles fit (FP8 weights, d a multiple of 128, no scales of rows); else the
// product's kernel, then a pass. The bytes are the same.
Status launch_swiglu(const Args& args, const swiglu::Args& gated, const Executor& on);

}  // namespace rocm_fp8::grouped_gemm
