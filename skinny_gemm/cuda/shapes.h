// The compiled forms of the CUDA GEMM, and how a launch is cut: data and pure functions without CUDA, for tests on any
// machine. config.h picks a form and a cut for each size.
#pragma once

#include "../../common/types.h"

namespace rocm_fp8::skinny_gemm::cuda {

// The most columns of a CTA.
constexpr int kNarrowColumns = 32;           // with long steps
constexpr int kSplitColumns = 48;            // with more than 16 rows and split K, of forms that are not for clusters
constexpr int kWideColumns = 64;             // of forms that take any number of rows
constexpr int kWidestColumns = 112;          // of two CTAs a multiprocessor
constexpr int kLargestColumns = 128;         // of all forms
constexpr int kWarps = 8, kLargeWarps = 16;  // that multiply: of two CTAs a multiprocessor, or of one large CTA
constexpr int kLongStep = 512;               // k

// The forms of the bulk kernel of one width. Their number of stages follows from shared memory (228 KiB on Hopper).
struct BulkShape {
    int columns;                      // the most of a CTA
    int stages8, stages16, stages32;  // of the ring, for up to 8, 16 and 32 rows. 0: there is no such form
    int warps = kWarps;               // that multiply
    bool clusters = false;            // has room for the sums of other CTAs, and one stage less

    ROCM_FP8_HD constexpr int stages(int64_t m) const { return m <= 8 ? stages8 : m <= 16 ? stages16 : stages32; }
    // CTA slots of a multiprocessor.
    ROCM_FP8_HD constexpr int slots() const { return 2 * kWarps / warps; }
    // Groups of warps that share a CTA's columns. Two groups of four warps add in another order than one.
    ROCM_FP8_HD constexpr int groups(int64_t m) const {
        return warps > kWarps || (m > 16 && columns > kWideColumns) ? 2 : 1;
    }
    // Whether the form can split K over a cluster. Other wide forms of more than 16 rows use that shared memory for one
    // more stage.
    ROCM_FP8_HD constexpr bool splits(int64_t m) const { return m <= 16 || columns <= kSplitColumns || clusters; }
    // Whether the form has a producer warp, and a warp that paces the ring's first round. Two CTAs of ten warps leave a
    // thread 96 registers. Ten accumulator tiles (16 by 8) or more need more.
    ROCM_FP8_HD constexpr bool produces(int64_t m) const {
        const int rows = m <= 8 ? 8 : m <= 16 ? 16 : 32;
        return columns * rows < 10 * 16 * 8 * groups(m);
    }
    // Whether the form can pace the first round: by that warp, or by one that multiplies. With 17 rows and more the
    // latter has no registers left for it: 8 % slower on an H200.
    ROCM_FP8_HD constexpr bool paces(int64_t m) const { return produces(m) || m <= 16; }
    // k of a stage: 10 to 32 KiB of weights.
    ROCM_FP8_HD constexpr int step(int64_t m) const {
        return columns <= kNarrowColumns ? kLongStep : 32 * warps / groups(m);
    }
};
constexpr BulkShape kBulkShapes[] = {{24, 0, 5, 3},
                                     {32, 5, 4, 3},
                                     {40, 0, 7, 5},
                                     {48, 7, 6, 5},
                                     {56, 0, 6, 5},
                                     {64, 6, 5, 4},
                                     {80, 5, 4, 8},
                                     {96, 4, 0, 7},
                                     {112, 3, 3, 6},
                                     {96, 0, 0, 7, kLargeWarps},
                                     {112, 0, 0, 6, kLargeWarps},
                                     {128, 0, 0, 5, kLargeWarps},
                                     {80, 0, 0, 7, kWarps, true}};
constexpr int kBulkShapeCount = sizeof(kBulkShapes) / sizeof(kBulkShapes[0]);
constexpr int kFallback = -1;
constexpr int kMaxClusterSplits = 8;

// The row class of M, named by its largest M. A row's bits do not depend on M within a class.
constexpr int row_class(int64_t m) { return m <= 16 ? 16 : 32; }

// The first step (of `step` k) of a part of K. Part `splits` gives the number of steps. All forms split K at the same
// k, a multiple of their steps.
ROCM_FP8_HD constexpr int first_bulk_step(int step, int64_t k, int part, int splits) {
    const int64_t units = (k + kLongStep - 1) / kLongStep;
    const int64_t at = units * part / splits * (kLongStep / step), end = (k + step - 1) / step;
    return int(at < end ? at : end);
}

// The columns of the result, cut into pieces that differ by at most one column: a piece a CTA, or a cluster.
struct Pieces {
    int count, columns, larger;  // the first `larger` of them have a column more
    constexpr Pieces(int64_t n, int count) : count(count), columns(int(n / count)), larger(int(n % count)) {}
    // Of the largest piece.
    ROCM_FP8_HD constexpr int most_columns() const { return columns + (larger > 0); }
    // Piece `count` gives the number of columns.
    ROCM_FP8_HD constexpr int first_column(int piece) const {
        return piece * columns + (piece < larger ? piece : larger);
    }
};

struct Config {
    int shape;   // index into kBulkShapes, or kFallback
    int splits;  // of K: the CTAs of a cluster
    int pieces;  // of the columns, each of no more than the shape's; 0 for kFallback
};

}  // namespace rocm_fp8::skinny_gemm::cuda
