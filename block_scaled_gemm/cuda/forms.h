// The compiled forms of the Hopper kernel, without CUDA: the launcher, the configuration and the tests read them.
//
// Forms that are not swapped multiply rows of A by columns of the result that share scales of B. Swapped ones take any
// scales of B.
#pragma once

#include "../../common/gemm/cuda/choice.h"
#include "../block_scaled_gemm.h"

namespace rocm_fp8::block_scaled_gemm::cuda {

using tiles::Config;
using tiles::Form;
using tiles::Tiling;
static_assert(tiles::kStep == kBlock);

// A tile of narrow rows may lie in two of their blocks of 128.
constexpr bool two_blocks(const Form& f) { return !f.swapped && kBlock % f.narrow != 0; }
// Scales of narrow rows in a stage: theirs, or of the one or two blocks in which they lie.
constexpr int narrow_factors(const Form& f) { return f.swapped ? f.narrow : 2; }
constexpr int factor_bytes(const Form& f) { return (f.wide() + narrow_factors(f)) * 4; }
constexpr int stages(const Form& f) { return f.stages(factor_bytes(f)); }

// clang-format off
constexpr Form kForms[] = {
    {.name = "t256x128", .swapped = false, .warpgroups = 2, .tiles = 2, .narrow = 128, .slots = 1},
    {.name = "t256x112", .swapped = false, .warpgroups = 2, .tiles = 2, .narrow = 112, .slots = 1},
    {.name = "t192x128", .swapped = false, .warpgroups = 3, .tiles = 1, .narrow = 128, .slots = 1, .whole_k = true,
     .passed = 128},
    {.name = "t128x192", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 192, .slots = 1},
    {.name = "t128x144", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 144, .slots = 1},
    {.name = "t128x128", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 128, .slots = 1},
    {.name = "t128x96", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 96, .slots = 1},
    {.name = "t128x64", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 64, .slots = 1},
    {.name = "t64x128", .swapped = false, .warpgroups = 1, .tiles = 1, .narrow = 128, .slots = 1},
    {.name = "t64x64", .swapped = false, .warpgroups = 1, .tiles = 1, .narrow = 64, .slots = 2},
    {.name = "t64x32", .swapped = false, .warpgroups = 1, .tiles = 1, .narrow = 32, .slots = 2},
    {.name = "n16x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 16, .slots = 2},
    {.name = "n16x128", .swapped = true, .warpgroups = 2, .tiles = 1, .narrow = 16, .slots = 1},
    {.name = "n32x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 32, .slots = 2},
    {.name = "n32x128", .swapped = true, .warpgroups = 2, .tiles = 1, .narrow = 32, .slots = 1},
    {.name = "n64x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 64, .slots = 2},
    {.name = "n64x128", .swapped = true, .warpgroups = 2, .tiles = 1, .narrow = 64, .slots = 1},
    {.name = "n128x128", .swapped = true, .warpgroups = 2, .tiles = 1, .narrow = 128, .slots = 1},
};
// clang-format on
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);
static_assert(names_differ(kForms));
static_assert(tiles::stages_are_enough(kForms, stages));

}  // namespace rocm_fp8::block_scaled_gemm::cuda
