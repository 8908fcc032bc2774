// Shapes at compile time, and matrix instructions.
#pragma once

#include "../../common/gemm/hip/tile.h"
#include "config.h"

namespace rocm_fp8::int8_gemm::hip {
namespace {

using namespace gemm::hip;

constexpr int kPanel = 32;  // columns that pass LDS together in the epilogue

template <int index>
struct Shape : TileSizes<kTileShapes[index]> {
    using Sizes = TileSizes<kTileShapes[index]>;
    static constexpr bool by_columns = false;
    static constexpr int stages = 1;  // of what the main loop counts
    // A wave's part of LDS in the epilogue: a panel of a subtile's rows; with waves_k the next one, too.
    static constexpr int panel_bytes = Sizes::matrix * kPanel * int(sizeof(int32_t)),
                         region_bytes = Sizes::waves_k * panel_bytes;
    // Stages in a round of the main loop: stages in flight, buffers and sets of fragments are constants in it.
    static constexpr int unrolled = Sizes::ahead % 2 ? 2 * Sizes::ahead : Sizes::ahead;
    static_assert(kBlock % Sizes::stage == 0);
};

template <int matrix>
using Sums = int __attribute__((ext_vector_type(matrix == 32 ? 16 : 4)));

template <class S>
using TileSums = Sums<S::matrix>[S::sub_m][S::sub_n];

// The n-th instruction on a fragment: gfx950's take all of it, gfx942's one of its halves.
#if defined(__gfx950__)
constexpr int kInstructionsAFragment = 1;

template <int matrix>
__device__ inline Sums<matrix> multiply(const u32x4* b, const u32x4* a, Sums<matrix> c, int) {
    const auto whole = [](const u32x4* fragment) { return __builtin_bit_cast(i32x4, *fragment); };
    if constexpr (matrix == 32) {
        return __builtin_amdgcn_mfma_i32_32x32x32_i8(whole(b), whole(a), c, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_i32_16x16x64_i8(whole(b), whole(a), c, 0, 0, 0);
    }
}
#else
constexpr int kInstructionsAFragment = 2;

template <int matrix>
__device__ inline Sums<matrix> multiply(const u32x4* b, const u32x4* a, Sums<matrix> c, int n) {
    if constexpr (matrix == 32) {
        return __builtin_amdgcn_mfma_i32_32x32x16_i8(half_of(*b, n), half_of(*a, n), c, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_i32_16x16x32_i8(half_of(*b, n), half_of(*a, n), c, 0, 0, 0);
    }
}
#endif

}  // namespace
}  // namespace rocm_fp8::int8_gemm::hip
