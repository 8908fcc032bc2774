// How a launch of block_scaled_gemm on CUDA is cut into CTAs: a pure function of the sizes and the chip, without CUDA.
//
// Every form (forms.h) and number of parts of K is estimated; the fastest is taken, unless one was measured for the
// shape. The order of a row's sums depends on the parts of K alone, and these are chosen by the row class.
#pragma once

#include "forms.h"

namespace rocm_fp8::block_scaled_gemm::cuda {

struct ChipCosts {
    tiles::Costs costs;
    double add_cycles;    // of a column of narrow rows: scaling and adding
    double swapped_cost;  // times that where each column has a scale of its own
    double block_cycles;  // of a block and warpgroup beside that

    constexpr tiles::Step step_of(const Form& f) const {
        return {f.narrow * add_cycles * (f.swapped ? swapped_cost : 1) + block_cycles, stages(f)};
    }
};
// Fitted to the times of all forms: docs/journal/block_scaled_gemm-cuda.md.
constexpr ChipCosts kChipCosts[] = {
    // H200, at 59 sizes.
    {.costs = {.read_rate = 4.63e6,
               .write_rate = 3.23e6,
               .l2_rate = 12.3e6,
               .clock = 1850,
               .least_cycles = 189,
               .latency_us = 1.29,
               .store_us = 1.07e-4,
               .start_us = 1.53,
               .split_us = 0.407,
               .part_us = 0.567,
               .overlap = 0.312,
               .tail = 0.408},
     .add_cycles = 1.26,
     .swapped_cost = 3.47,
     .block_cycles = 139},
    // H100 SXM, at 169 sizes, 2026-11-25. What is written costs no more than what the tiles' stores take. 80 clusters of
    // three took two rounds of 88 places, and 40 of 44; 66 of 88 took one.
    {.costs = {.read_rate = 3.54e6,
               .write_rate = 1.74e7,
               .l2_rate = 10.9e6,
               .clock = 1805,
               .least_cycles = 179,
               .latency_us = 1.36,
               .store_us = 1.61e-4,
               .start_us = 1.49,
               .split_us = 1.40,
               .part_us = 0.0955,
               .overlap = 0.377,
               .tail = 0.0105,
               .cluster_fill = 0.875},
     .add_cycles = 2.15,
     .swapped_cost = 3.44,
     .block_cycles = 8.45},
};

constexpr int64_t kMostOfOneWarpgroup = 128;  // rows: up to there the costs were fitted to such forms

// Whether a form may take a row class: swapped forms whose narrow rows are not mostly empty, and few rows fill them once.
constexpr bool suits(const Form& f, int64_t rows, bool general_b) {
    if (!f.swapped) {
        return !general_b && (rows >= f.wide() || (f.wide() <= 128 && f.narrow <= 128)) &&
               (f.warpgroups > 1 || rows <= kMostOfOneWarpgroup);
    }
    return f.narrow == 128 || f.narrow == rows || (f.narrow == 64 && rows < 64 && f.warpgroups == 1);
}

constexpr tiles::Measured kMeasured[] = {
    {tiles::kH200, 16, 1536, 7168, "n16x64", 6, 0},     {tiles::kH200, 16, 2112, 7168, "n16x64", 6, 0},
    {tiles::kH200, 16, 2304, 16384, "n16x64", 6, 0},    {tiles::kH200, 16, 4096, 7168, "n16x64", 3, 0},
    {tiles::kH200, 16, 4096, 14336, "n16x64", 3, 0},    {tiles::kH200, 32, 1536, 7168, "n32x64", 6, 0},
    {tiles::kH200, 32, 2112, 7168, "n32x64", 5, 0},     {tiles::kH200, 32, 2304, 16384, "n32x64", 6, 0},
    {tiles::kH200, 32, 4096, 7168, "n32x64", 3, 0},     {tiles::kH200, 64, 8192, 8192, "t64x32", 1, 0},
    {tiles::kH200, 128, 4096, 7168, "t128x64", 2, 0},   {tiles::kH200, 1024, 512, 7168, "t128x64", 2, 0},
    {tiles::kH200, 6144, 4096, 512, "t256x128", 1, 0},  {tiles::kH200, 6144, 4608, 7168, "t192x128", 1, 0},
    {tiles::kH200, 6144, 7168, 256, "t256x128", 1, 0},  {tiles::kH200, 6144, 7168, 2304, "t192x128", 1, 0},
    {tiles::kH200, 6144, 7168, 2048, "t192x128", 1, 0},
};
static_assert(tiles::all_known(kForms, kMeasured));

// general_b: B's scales differ between the rows of a block and between blocks: swapped forms alone take them.
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, int multiprocessors, tiles::Hopper chip, bool general_b) {
    const ChipCosts& costs = kChipCosts[int(chip)];
    const int64_t rows = row_class(m);
    const auto fits = [&](const Form& f) { return suits(f, rows, general_b); };
    Config config = tiles::pick(kForms, costs.costs, kMeasured, {rows, n, k, multiprocessors}, fits,
                                [&](const Form& f) { return costs.step_of(f); });
    // The class decides on the order of sums; the rows that are there, on the pieces of A.
    if (config.form != tiles::kFallback && !kForms[config.form].swapped) {
        config.pieces = int(tiles::fewest_pieces(kForms[config.form], {m, n, k, multiprocessors}));
    }
    return config;
}

}  // namespace rocm_fp8::block_scaled_gemm::cuda
