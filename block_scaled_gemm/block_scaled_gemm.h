// C = A B^T in FP8 with scales for blocks of 128 k: the contract of every backend's launcher.
//
//     p[m, n, j] = sum over the k of block j of float(a[m, k]) * float(b[n, k])      float32
//     c[m, n]    = sum over blocks j of (scale_a[m, j] * scale_b[n, j]) * p[m, n, j]  float32, in a fixed order
//     out[m, n]  = round_out(c + bias[n])
//
// No float32 sum of unscaled products is longer than a block. A scale that is the same for all blocks of a row may be
// multiplied in after the sum over blocks. Scales may be negative. A NaN in a row of A or B, or in its scales, makes that
// row or column of the result NaN.
//
// A row's bits do not depend on the other rows. They depend on the number of rows through row_class alone, on a CPU not
// at all. They do not depend on the layout of operands and scales.
#pragma once

#include "../common/gemm/args.h"
#include "../common/gemm/work.h"

namespace rocm_fp8::block_scaled_gemm {

using gemm::blocks_of, gemm::kBlock;
using gemm::Operand, gemm::Scales;

struct Args {
    Operand a, b;
    int64_t m, n, k;
    Scales scale_a, scale_b;
    gemm::Bias bias;
    gemm::Output out;
    DType format;     // e4m3fn or e4m3fnuz, of a and b
    bool constant_b;  // whatever wrote b and scale_b has ended (see docs/numerics.md): they may be read at once
};

// On a GPU numbers of rows with the same class get the same bits of a row. Beyond 64: those that fill as many blocks of
// rows.
ROCM_FP8_HD constexpr int64_t row_class(int64_t m) {
    return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : blocks_of(m) * kBlock;
}

// Of a launch that is a part of a larger GEMM, and runs beside other kernels.
struct Portion {
    int64_t m = 0, n = 0;  // the whole's: bits are those of its launch. 0: this launch is all
    int spare_units = 0;   // compute units (multiprocessors) that its persistent workgroups leave to others
};

// The arguments must be valid as above; out overlaps nothing.
Status launch(const Args& args, const Executor& on, const Portion& part = {});

}  // namespace rocm_fp8::block_scaled_gemm
