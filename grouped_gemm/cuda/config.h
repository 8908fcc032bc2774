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

// Narrow rows of a tile are loaded and multiplied by 16, by 32, or all.
constexpr int kFewNarrow = 16, kMoreNarrow = 32;
// Rows that one copy of A brings.
constexpr int rows_of_copy(const Form& f) { return f.swapped ? kFewNarrow : 64; }
// Whether rows of A are gathered one by one as a stage is filled; else they are before the launch.
constexpr bool one_by_one(const Form& f) { return rows_of(f) == kFewNarrow; }

// A stage's scales of weights: of each tile of 64 wide rows, or one of all narrow ones. Beside those of A's rows.
constexpr int weight_factors(const Form& f) { return f.swapped ? f.wide() / tiles::kWgmmaHeight : 1; }
constexpr int factor_bytes(const Form& f) { return int(ceil_div((rows_of(f) + weight_factors(f)) * 4, 16)) * 16; }
static_assert([] {
    for (const Form& f : kForms) {
        if (f.swapped ? f.narrow > 64 || f.tiles > 1 : gemm::kBlock % f.narrow != 0) return false;
    }
    return true;
}());

// Most tiles of rows that m rows of so many experts have, `height` to a tile.
constexpr int64_t most_row_tiles(int64_t m, int64_t groups, int height) {
    return m / height + (groups < m ? groups : m);
}
constexpr int64_t most_tiles(const Form& f, int64_t m, int64_t n, int64_t groups) {
    return most_row_tiles(m, groups, rows_of(f)) * ceil_div(n, columns_of(f));
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
static_assert(kForms[0].splits());

// Few rows, most of them of an expert of their own: they are gathered as stages are filled, which saves a launch. More come
// gathered. What is expected is a mean: a tenth of the experts may have a third of the rows, and the form has to be quick
// then, too (docs/journal/moe.md). n64x64 loads and multiplies what a tile has. t128x128 is ahead from 17 expected rows on.
// The highest is faster from 512 on, if no multiprocessor is idle then.
constexpr int pick_form(int64_t m, int64_t n, int64_t k, int64_t groups, int64_t expected, int multiprocessors) {
    constexpr int kOwn = 0, kFew = 1, kMany = 2, kHigh = 3;
    constexpr int64_t kMostOneByOne = 64, kMostFew = 16, kHighFrom = 512;
    const bool own = expected == 1 && m <= kMostOneByOne;
    if (own || pick_splits(m, n, k, groups, expected, multiprocessors) > 1) return kOwn;
    if (expected <= kMostFew) return kFew;
    const int64_t experts = ceil_div(m, expected) < groups ? ceil_div(m, expected) : groups;
    const int64_t tiles = experts * ceil_div(expected, rows_of(kForms[kHigh])) * ceil_div(n, columns_of(kForms[kHigh]));
    return expected >= kHighFrom && tiles >= 2 * multiprocessors ? kHigh : kMany;
}

}  // namespace rocm_fp8::grouped_gemm::cuda
