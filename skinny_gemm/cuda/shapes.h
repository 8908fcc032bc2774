// The compiled forms of the CUDA GEMM, and how a launch is cut: data and pure functions without CUDA, for tests on any
// machine. config.h picks a form and a cut for each size.
#pragma once

#include "../../common/form_name.h"
#include "../../common/types.h"

namespace rocm_fp8::skinny_gemm::cuda {

// The most columns of a CTA.
constexpr int kNarrowColumns = 32;           // with long steps
constexpr int kSplitColumns = 48;            // with more than 16 rows and split K, of forms that are not for clusters
constexpr int kWideColumns = 64;             // of forms that take any number of rows
constexpr int kWidestColumns = 112;          // of two CTAs a multiprocessor
constexpr int kWarps = 8, kLargeWarps = 16;  // that multiply: of two CTAs a multiprocessor, or of one large CTA
constexpr int kLongStep = 512;               // k

// The forms of the bulk kernel of one width. Their number of stages follows from shared memory (228 KiB on Hopper).
struct BulkShape {
    FormName name;
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
// clang-format off
constexpr BulkShape kBulkShapes[] = {
    {.name = "b24", .columns = 24, .stages8 = 0, .stages16 = 5, .stages32 = 3},
    {.name = "b32", .columns = 32, .stages8 = 5, .stages16 = 4, .stages32 = 3},
    {.name = "b40", .columns = 40, .stages8 = 0, .stages16 = 7, .stages32 = 5},
    {.name = "b48", .columns = 48, .stages8 = 7, .stages16 = 6, .stages32 = 5},
    {.name = "b56", .columns = 56, .stages8 = 0, .stages16 = 6, .stages32 = 5},
    {.name = "b64", .columns = 64, .stages8 = 6, .stages16 = 5, .stages32 = 4},
    {.name = "b80", .columns = 80, .stages8 = 5, .stages16 = 4, .stages32 = 8},
    {.name = "b96", .columns = 96, .stages8 = 4, .stages16 = 0, .stages32 = 7},
    {.name = "b112", .columns = 112, .stages8 = 3, .stages16 = 3, .stages32 = 6},
    {.name = "b96w16", .columns = 96, .stages8 = 0, .stages16 = 0, .stages32 = 7, .warps = kLargeWarps},
    {.name = "b112w16", .columns = 112, .stages8 = 0, .stages16 = 0, .stages32 = 6, .warps = kLargeWarps},
    {.name = "b128w16", .columns = 128, .stages8 = 0, .stages16 = 0, .stages32 = 5, .warps = kLargeWarps},
    {.name = "b80c", .columns = 80, .stages8 = 0, .stages16 = 0, .stages32 = 7, .warps = kWarps, .clusters = true},
};
// clang-format on
constexpr int kBulkShapeCount = sizeof(kBulkShapes) / sizeof(kBulkShapes[0]);
static_assert(names_differ(kBulkShapes));
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

// Whether they are all columns, once.
constexpr bool covers(const Pieces& pieces, int64_t n) {
    for (int i = 0; i < pieces.count; ++i) {
        const int columns = pieces.first_column(i + 1) - pieces.first_column(i);
        if (columns > pieces.most_columns() || columns < pieces.most_columns() - 1) return false;
    }
    return pieces.first_column(0) == 0 && pieces.first_column(pieces.count) == n;
}
static_assert(covers({1, 1}, 1) && covers({70, 66}, 70) && covers({70, 70}, 70) && covers({4100, 132}, 4100) &&
              covers({13312, 264}, 13312) && covers({28673, 264}, 28673));

struct Config {
    int shape;   // index into kBulkShapes, or kFallback
    int splits;  // of K: the CTAs of a cluster
    int pieces;  // of the columns, each of no more than the shape's; 0 for kFallback
};

}  // namespace rocm_fp8::skinny_gemm::cuda
