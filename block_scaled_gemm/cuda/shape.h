// A form at compile time, with the scales that a stage has beside its operands.
#pragma once

#include "../../common/gemm/cuda/ring.h"
#include "forms.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

using namespace tiles;

// Of the loading warpgroup, warps 1 and 2 bring the scales of wide rows, and warp 3 those of narrow rows.
constexpr int kWideThreads = 2 * kWarp;

template <int index>
struct FactorsOf {
    float wide[kForms[index].wide()], narrow[narrow_factors(kForms[index])];
};

template <int index>
struct Shape : tiles::Ring<kForms[index], FactorsOf<index>, factor_bytes(kForms[index]), 1 + kHelperThreads> {
    static constexpr bool kTwoBlocks = two_blocks(kForms[index]);
    static constexpr int kNarrowFactors = narrow_factors(kForms[index]);
};
template <class S>
using TileSums = float[S::kTiles][S::kGroups][4];

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
