// C = A B^T for few rows of A, in FP8 with float32 accumulation: the contract of every backend's launcher.
//
//     c[m, n]   = sum over k of float(a[m, k]) * float(b[n, k])          float32, in a fixed order
//     out[m, n] = round_out((c * scale_a[m]) * scale_b[n] + bias[n])     rounding points: common/gemm/args.h
//
// A row's bits do not depend on the other rows. They do not depend on the number of rows within a row class: all
// numbers on a CPU; 1 to 16 and 17 to 32 on NVIDIA GPUs; 1 to 8, 9 to 16 and 17 to 32 on AMD GPUs. A NaN in a row of A
// or B makes that row or column of the result NaN.
#pragma once

#include "../common/comm/peers.h"
#include "../common/gemm/args.h"

namespace rocm_fp8::skinny_gemm {

// The most rows one launch takes. Above it the weights are no longer what limits the time, and a GEMM
// library does as well.
constexpr int64_t kMaxRows = 32;

struct Args {
    gemm::Operand a, b;  // format [m, k] and [n, k], torch.nn.Linear's weight; k_contiguous()
    int64_t m, n, k;
    gemm::Epilogue epilogue;  // scales, bias and the result
    DType format;             // e4m3fn or e4m3fnuz, of a and b
    bool constant_b;          // whatever wrote b has ended (see docs/numerics.md): it may be read at once
};

// Whether 128-bit loads can take both operands: k and every row's start are multiples of 16 bytes.
inline bool rows_fit(const Args& args) {
    return args.k % 16 == 0 && rows_aligned(args.a.data, args.a.row_stride) &&
           rows_aligned(args.b.data, args.b.row_stride);
}

// The arguments must be valid as above; m <= kMaxRows; out overlaps nothing.
Status launch(const Args& args, const Executor& on);

// GPUs: the same; besides, the result lies densely in this rank's place of the other ranks' memories, sent as it is
// finished, and `what` in their headers. A launch behind it receives (all_reduce/gemm.h). Rows of the result are
// multiples of 16 bytes, and all of it fits into a place.
Status launch_and_send(const Args& args, const comm::Peers& peers, uint32_t what, const Executor& on);

}  // namespace rocm_fp8::skinny_gemm
