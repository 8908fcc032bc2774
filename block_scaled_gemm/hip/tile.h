// The compiled shapes, and the matrix instructions: v_mfma_f32_16x16x32_fp8_fp8 and v_mfma_f32_32x32x16_fp8_fp8. How the
// waves of a workgroup divide a tile, and how a stage lies in LDS, is in common/hip/gemm_tile.h. A lane has the sums of
// one row, which have one scale.
#pragma once

#include "../../common/hip/gemm_tile.h"
#include "../block_scaled_gemm.h"
#include "config.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

using namespace gemm_tile;

constexpr bool kByColumns = true;  // turned.h stores so

template <int index>
struct Shape : TileSizes<kTileShapes[index]> {
    using Sizes = TileSizes<kTileShapes[index]>;
    static constexpr bool by_columns = kByColumns;
    static constexpr int stages = kBlock / Sizes::stage;  // of a block: 1 or 2
    // Blocks in a round of the main loop: stages in flight, and with `deep` two sets of fragments, are constants in it.
    static constexpr int in_turn = Sizes::deep && Sizes::ahead % 2 ? 2 * Sizes::ahead : Sizes::ahead;
    static constexpr int unrolled = in_turn > stages ? in_turn / stages : 1;
    static_assert(unrolled * stages % in_turn == 0 && (!Sizes::deep || unrolled * stages % 2 == 0));
    static_assert(Sizes::columns <= kBlock);
};

template <int matrix>
using Sums = float __attribute__((ext_vector_type(matrix == 32 ? 16 : 4)));

// Half `which` of a fragment's k.
template <int matrix>
__device__ inline Sums<matrix> multiply(u32x4 b, u32x4 a, Sums<matrix> c, int which) {
    const auto half = [&](u32x4 v) { return __builtin_bit_cast(long, which ? u32x2{v.z, v.w} : u32x2{v.x, v.y}); };
    if constexpr (matrix == 32) {
        return __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(half(b), half(a), c, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(half(b), half(a), c, 0, 0, 0);
    }
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
