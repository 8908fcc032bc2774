// How a launch of block_scaled_gemm on CUDA is cut into CTAs: a pure function of the sizes and the chip, without CUDA.
//
// Every form (forms.h) and number of parts of K is estimated; the fastest is taken, unless one was measured for the
// shape. The order of a row's sums depends on the parts of K alone, and these are chosen by the row class.
#pragma once

#include "../../common/gemm/cuda/costs.h"
#include "forms.h"

namespace rocm_fp8::block_scaled_gemm::cuda {

constexpr const tiles::Costs& costs_of(tiles::Hopper chip) {
    return chip == tiles::Hopper::h200 ? tiles::costs::h200 : tiles::costs::h100;
}

constexpr tiles::Measured kMeasured[] = {
    {tiles::kH200, 16, 1536, 7168, "n16x64", 6, 0},     {tiles::kH200, 16, 2304, 16384, "n16x64", 6, 0},
    {tiles::kH200, 16, 4096, 7168, "n16x128", 3, 37},   {tiles::kH200, 16, 24576, 1536, "n16x64", 1, 439},
    {tiles::kH200, 16, 7168, 2048, "n16x64", 1, 0},     {tiles::kH200, 32, 1536, 7168, "n32x64", 6, 0},
    {tiles::kH200, 32, 2112, 7168, "n32x64", 5, 0},     {tiles::kH200, 64, 7168, 2048, "t64x32", 1, 0},
    {tiles::kH200, 64, 7168, 16384, "t64x64", 2, 0},    {tiles::kH200, 64, 8192, 8192, "t64x32", 1, 0},
    {tiles::kH200, 1024, 576, 7168, "t128x96", 2, 0},   {tiles::kH200, 6144, 7168, 256, "t256x128", 1, 0},
    {tiles::kH200, 6144, 7168, 2048, "t192x128", 1, 0}, {tiles::kH200, 6144, 7168, 2304, "t192x128", 1, 0},
};
static_assert(tiles::all_known(kForms, kMeasured));

// general_b: B's scales differ between the rows of a block and between blocks: swapped forms alone take them.
inline Config pick_config(int64_t m, int64_t n, int64_t k, int multiprocessors, tiles::Hopper chip, bool general_b) {
    const int64_t rows = row_class(m);
    const auto suits = [&](const Form& f) { return f.swapped || !general_b; };
    const tiles::Size size{rows, n, k, multiprocessors};
    Config config = tiles::remembered(size, 2 * int(chip) + general_b, [&] {
        return tiles::pick(kForms, costs_of(chip), kMeasured, size, suits, stages);
    });
    // The class decides on the order of sums; the rows that are there, on the pieces of A.
    if (config.form != tiles::kFallback && !kForms[config.form].swapped) {
        config.pieces = int(tiles::fewest_pieces(kForms[config.form], {m, n, k, multiprocessors}));
    }
    return config;
}

}  // namespace rocm_fp8::block_scaled_gemm::cuda
