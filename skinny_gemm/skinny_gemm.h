// C = A B^T for few rows of A, in FP8 with float32 accumulation: the contract of every backend's launcher.
//
//     c[m, n]   = sum over k of float(a[m, k]) * float(b[n, k])     float32, in a fixed order
//     out[m, n] = round_out(c * scale_a[m] * scale_b[n] + bias[n])
//
// A row's bits do not depend on the other rows, nor on their number where one configuration serves those: on a CPU all, on
// NVIDIA GPUs 1 to 16 and 17 to 32 (often all: docs/numerics.md), on AMD GPUs 1 to 8, 9 to 16 and 17 to 32. A NaN in a row of A
// or B makes that row or column of the result NaN.
#pragma once

#include "../common/types.h"

namespace rocm_fp8::skinny_gemm {

// The most rows one launch takes. Above it the weights are no longer what limits the time, and a GEMM
// library does as well.
constexpr int64_t kMaxRows = 32;

struct Args {
    const uint8_t* a;         // format [m, k], rows a_stride bytes apart
    const uint8_t* b;         // format [n, k], rows b_stride bytes apart: torch.nn.Linear's weight
    const float* scale_a;     // float32 [1], scale_a_stride 0; or [m], scale_a_stride elements apart
    const float* scale_b;     // float32 [1], scale_b_stride 0; or [n], scale_b_stride elements apart
    const void* bias;         // bias_dtype [n], bias_stride elements apart; or nullptr
    void* out;                // out_dtype [m, n], rows out_stride elements apart
    int64_t m, n, k;
    int64_t a_stride, b_stride, out_stride;
    int64_t scale_a_stride, scale_b_stride, bias_stride;
    DType format;             // e4m3fn or e4m3fnuz, of a and b
    DType out_dtype;          // f16, bf16 or f32
    DType bias_dtype;         // f16, bf16 or f32
    bool constant_b;          // whatever wrote b has ended (see docs/numerics.md): it may be read at once
};

// The arguments must be valid as above; m <= kMaxRows; out overlaps nothing.
Status launch(const Args& args, const Executor& on);

}  // namespace rocm_fp8::skinny_gemm
