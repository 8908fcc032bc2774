// The compiled forms of the Hopper kernel, without CUDA: the launcher, the configuration and the tests read them.
//
// Forms that are not swapped multiply rows of A by columns of the result that share scales of B. Swapped ones take any
// scales of B.
#pragma once

#include "../../common/gemm/cuda/choice.h"
#include "../block_scaled_gemm.h"

namespace rocm_fp8::block_scaled_gemm::cuda {

using tiles::ceil_div;
using tiles::Config;
using tiles::Cut;
using tiles::Form;
static_assert(tiles::kStep == kBlock);

// A tile of narrow rows may lie in two of their blocks of 128.
constexpr bool two_blocks(const Form& f) { return !f.swapped && kBlock % f.narrow != 0; }
// Scales of narrow rows in a stage: theirs, or of the one or two blocks in which they lie.
constexpr int narrow_factors(const Form& f) { return f.swapped ? f.narrow : 2; }
constexpr int factor_bytes(const Form& f) { return (f.wide() + narrow_factors(f)) * 4; }
constexpr int stages(const Form& f) { return f.stages(factor_bytes(f)); }

constexpr Form kForms[] = {
    {false, 2, 2, 128, 1}, {false, 2, 2, 112, 1}, {false, 2, 1, 192, 1}, {false, 2, 1, 144, 1}, {false, 2, 1, 128, 1},
    {false, 2, 1, 96, 1},  {false, 2, 1, 64, 1},  {false, 1, 1, 128, 1}, {false, 1, 1, 64, 2},  {false, 1, 1, 32, 2},
    {true, 1, 1, 16, 2},   {true, 2, 1, 16, 1},   {true, 1, 1, 32, 2},   {true, 2, 1, 32, 1},   {true, 1, 1, 64, 2},
    {true, 2, 1, 64, 1},   {true, 2, 1, 128, 1},
};
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);

}  // namespace rocm_fp8::block_scaled_gemm::cuda
