// The compiled shapes. How the waves of a workgroup divide a tile, and how a stage lies in LDS, is in
// common/gemm/hip/tile.h. A lane has the sums of one row, which have one scale.
#pragma once

#include "../../common/gemm/hip/block_sums.h"
#include "../block_scaled_gemm.h"
#include "config.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

using namespace gemm::hip;

// strided: for operands of any layout, which take more registers.
template <int index, bool strided = false>
struct Shape : LoopShape<kTileShapes[index], kChunksAFragment, strided> {
    static_assert(Shape::columns <= kBlock);
};

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
