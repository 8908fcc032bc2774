// The compiled forms of the grouped Hopper kernel, and which one takes a size: without CUDA.
//
// All forms are swapped: rows of B (weights) are the wide operand. Forms add a row's products in the same order, so that
// they give the same bits; the choice is by sizes and expected rows alone.
#pragma once

#include "../../common/gemm/cuda/choice.h"
#include "../grouped_gemm.h"

namespace rocm_fp8::grouped_gemm::cuda {

using tiles::Form;

constexpr int kMostGroups = 1024;

// clang-format off
constexpr Form kForms[] = {
    {.name = "n16x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 16, .slots = 2, .whole_k = true},
    {.name = "n32x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 32, .slots = 2, .whole_k = true},
    {.name = "n64x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 64, .slots = 2, .whole_k = true},
    {.name = "n128x128", .swapped = true, .warpgroups = 2, .tiles = 1, .narrow = 128, .slots = 1, .whole_k = true},
    {.name = "n128x256", .swapped = true, .warpgroups = 2, .tiles = 2, .narrow = 128, .slots = 1, .whole_k = true},
};
// clang-format on
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);
static_assert(gemm::names_differ(kForms));

// Rows of A that are gathered one by one as a stage is filled; more are gathered before the launch.
constexpr int kMostOneByOne = 32;
constexpr bool one_by_one(const Form& f) { return f.narrow <= kMostOneByOne; }
// Rows that one copy of A brings.
constexpr int kRowsOfCopy = 64;
constexpr int rows_of_copy(const Form& f) { return f.narrow < kRowsOfCopy ? f.narrow : kRowsOfCopy; }

// Scales of a stage: of the narrow rows, and of each 64 wide ones.
constexpr int factor_bytes(const Form& f) {
    return int(ceil_div((f.narrow + f.wide() / tiles::kWgmmaHeight) * 4, 16)) * 16;
}

// Most tiles of rows that m rows of so many experts have, `height` to a tile.
constexpr int64_t most_row_tiles(int64_t m, int64_t groups, int height) {
    return m / height + (groups < m ? groups : m);
}
constexpr int64_t most_tiles(const Form& f, int64_t m, int64_t n, int64_t groups) {
    return most_row_tiles(m, groups, f.narrow) * ceil_div(n, f.wide());
}

// The form for few rows of an expert is as high as these; that for many is as wide as leaves no multiprocessor idle.
constexpr int pick_form(int64_t m, int64_t n, int64_t groups, int64_t expected, int multiprocessors) {
    constexpr int kMany = 3;
    const int64_t rows = row_class(expected);
    for (int i = 0; i < kMany; ++i) {
        if (rows <= kForms[i].narrow) return i;
    }
    const int64_t experts = ceil_div(m, expected) < groups ? ceil_div(m, expected) : groups;
    const Form& widest = kForms[kFormCount - 1];
    const int64_t tiles = experts * ceil_div(expected, widest.narrow) * ceil_div(n, widest.wide());
    return tiles >= multiprocessors ? kFormCount - 1 : kMany;
}

}  // namespace rocm_fp8::grouped_gemm::cuda
