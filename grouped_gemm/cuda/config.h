// The compiled forms of the grouped Hopper kernel, and which one takes a size: without CUDA.
//
// Few rows of an expert are the narrow operand, its weights the wide one (swapped); many rows are the wide operand. The
// forms add a row's products in the same order, but for split-K's. The choice is by sizes and expected rows alone.
#pragma once

#include "../../common/gemm/cuda/choice.h"
#include "../grouped_gemm.h"

namespace rocm_fp8::grouped_gemm::cuda {

using tiles::Form;

// clang-format off
constexpr Form kForms[] = {
    {.name = "n16x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 16, .slots = 2, .in_ring = true},
    {.name = "n64x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 64, .slots = 2, .whole_k = true},
    {.name = "t128x128", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 128, .slots = 1, .whole_k = true},
    {.name = "t256x128", .swapped = false, .warpgroups = 2, .tiles = 2, .narrow = 128, .slots = 1, .whole_k = true,
     .passed = 128},
};
// clang-format on
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);
static_assert(names_differ(kForms));

// Rows and columns of the result that are a tile's.
constexpr int rows_of(const Form& f) { return f.swapped ? f.narrow : f.wide(); }
constexpr int columns_of(const Form& f) { return f.swapped ? f.wide() : f.narrow; }

// Rows of A that are gathered one by one as a stage is filled; more are gathered before the launch.
constexpr int kMostOneByOne = 16;
constexpr bool one_by_one(const Form& f) { return rows_of(f) <= kMostOneByOne; }
// Rows that one copy of A brings.
constexpr int kRowsOfCopy = 64;
constexpr int rows_of_copy(const Form& f) { return rows_of(f) < kRowsOfCopy ? rows_of(f) : kRowsOfCopy; }

// A stage's scales of weights: of each tile of 64 wide rows, or one of all narrow ones. Beside those of A's rows.
constexpr int weight_factors(const Form& f) { return f.swapped ? f.wide() / tiles::kWgmmaHeight : 1; }
constexpr int factor_bytes(const Form& f) { return int(ceil_div((rows_of(f) + weight_factors(f)) * 4, 16)) * 16; }
static_assert([] {
    for (const Form& f : kForms) {
        if (f.swapped ? f.narrow > 64 || f.tiles > 1 : gemm::kBlock % f.narrow != 0) return false;
    }
    return true;
}());

// The first forms also have SwiGLU and quantisation in the epilogue. A tile's weights are gates and ups of the same hidden
// values, eight of one and eight of the other in turn, so that a thread has both of a value. A CTA makes all tiles of its
// rows that a group of 128 hidden values has, in turns; gated values wait in shared memory for the last one.
constexpr int kGatedForms = 3;
constexpr int kMostHidden = 128, kEachHalf = 8;
constexpr int turns_of(const Form& f) { return 2 * kMostHidden / columns_of(f); }
// Bytes of a row of gated values, with padding against bank conflicts.
constexpr int kParkedRow = kMostHidden * 2 + 16;
constexpr int parked_bytes(const Form& f) { return rows_of(f) * kParkedRow; }
constexpr bool parked_in_staging(const Form& f) { return parked_bytes(f) <= f.staging_bytes(); }

// Most tiles of rows that m rows of so many experts have, `height` to a tile.
constexpr int64_t most_row_tiles(int64_t m, int64_t groups, int height) {
    return m / height + (groups < m ? groups : m);
}
constexpr int64_t most_tiles(const Form& f, int64_t m, int64_t n, int64_t groups) {
    return most_row_tiles(m, groups, rows_of(f)) * ceil_div(n, columns_of(f));
}

// Few rows of an expert: weights are read once for each tile of rows, so that the form holds what experts have beyond the
// mean (16 and 64 rows: as many as one in a hundred has at 8 and 48; 32 rows, gathered one by one, took up to 1.4 times as
// long as 64: docs/journal/moe.md). Where there are many, the highest is faster on an H100 or as fast from 512 rows an
// expert on, if no multiprocessor is idle then; at 256 it was a tenth slower.
constexpr int pick_form(int64_t m, int64_t n, int64_t groups, int64_t expected, int multiprocessors) {
    constexpr int kMany = 2, kHigh = 3, kHighFrom = 512;
    constexpr int kMostExpected[kMany] = {8, 48};
    for (int i = 0; i < kMany; ++i) {
        if (expected <= kMostExpected[i]) return i;
    }
    const int64_t experts = ceil_div(m, expected) < groups ? ceil_div(m, expected) : groups;
    const int64_t tiles = experts * ceil_div(expected, rows_of(kForms[kHigh])) * ceil_div(n, columns_of(kForms[kHigh]));
    return expected >= kHighFrom && tiles >= 2 * multiprocessors ? kHigh : kMany;
}

// Steps of 128 bytes that a part of K has at least: fewer end before a ring of them is full.
constexpr int64_t kLeastSteps = 8;
// Parts of K, a cluster's CTAs: as many as leave each CTA a multiprocessor of its own, if each row of the class has an
// expert of its own. Two CTAs a multiprocessor share its part of the memory's rate: more parts were slower (H200). k: bytes.
constexpr int pick_splits(int64_t m, int64_t n, int64_t k, int64_t groups, int64_t expected, int multiprocessors) {
    const Form& form = kForms[0];
    const int64_t most = slot_class(m), steps = ceil_div(k, tiles::kStep);
    if (expected > kFewExpected || most == 0) return 1;
    const int64_t row_tiles = (most < groups ? most : groups) * ceil_div(n, columns_of(form));
    int splits = 1;
    for (int more = 2; more <= tiles::kMostSplits && steps >= more * kLeastSteps; ++more) {
        if (row_tiles * more <= multiprocessors) splits = more;
    }
    return splits;
}
static_assert(kForms[0].splits() && pick_form(kFewExpected, 1, 1, kFewExpected, 1) == 0);

// The same, of kGatedForms; -1: SwiGLU is a pass of its own. A CTA's share is a tile's turns: where the last round of them
// would leave more than an eighth of the CTA slots free, single tiles are spread better. So are parts of K. k: bytes.
constexpr int pick_gated(int64_t m, int64_t hidden, int64_t k, int64_t groups, int64_t expected, int multiprocessors) {
    const int form = pick_form(m, 2 * hidden, groups, expected, multiprocessors);
    if (form >= kGatedForms) return -1;
    if (pick_splits(m, 2 * hidden, k, groups, expected, multiprocessors) > 1) return -1;
    const int64_t experts = ceil_div(m, expected) < groups ? ceil_div(m, expected) : groups;
    const int64_t shares = experts * ceil_div(expected, rows_of(kForms[form])) * (hidden / kMostHidden);
    const int64_t room = int64_t(multiprocessors) * kForms[form].slots;
    return ceil_div(shares, room) * room * 7 <= shares * 8 ? form : -1;
}

}  // namespace rocm_fp8::grouped_gemm::cuda
