// The compiled shapes. How the waves of a workgroup divide a tile, and how a stage lies in LDS, is in
// common/gemm/hip/tile.h. A lane has the sums of one row, which have one scale.
#pragma once

#include "../../common/gemm/hip/fp8_matrix.h"
#include "../block_scaled_gemm.h"
#include "config.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

using namespace gemm::hip;

// strided: for operands of any layout, which take more registers.
template <int index, bool strided = false>
struct Shape : TileSizes<kTileShapes[index], kChunksAFragment> {
    using Sizes = TileSizes<kTileShapes[index], kChunksAFragment>;
    static constexpr bool by_columns = true;              // transposed operands are stored so
    static constexpr int stages = kBlock / Sizes::stage;  // of a block: 1 or 2
    // A wave's part of LDS in the epilogue: the stages' place, or more.
    static constexpr int of_stages = 2 * Sizes::stage_bytes / Sizes::waves, least = Sizes::matrix * Sizes::matrix * 4,
                         region_bytes = of_stages > least ? of_stages : least;
    static constexpr int ahead = strided && Sizes::deep ? 1 : Sizes::ahead;
    // Blocks in a round of the main loop: stages in flight, and with `deep` two sets of fragments, are constants in it.
    static constexpr int in_turn = Sizes::deep && ahead % 2 ? 2 * ahead : ahead;
    static constexpr int unrolled = in_turn > stages ? in_turn / stages : 1;
    static_assert(unrolled * stages % in_turn == 0 && (!Sizes::deep || unrolled * stages % 2 == 0));
    static_assert(Sizes::columns <= kBlock);
};

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
