// The kernels of tiles for operands whose rows are contiguous: one of them, or both. See turned.h.
#include "../../common/gpu/kernel_at.h"
#include "pipeline.h"

namespace rocm_fp8::block_scaled_gemm::hip {

const void* turned_kernel(int shape, bool turned_a, bool turned_b) {
    const auto kernel = kernel_at<kTileShapeCount - 1>(shape, [&]<int i>() -> TileKernel {
        if (!turned_a) return block_scaled_gemm_tiles<i, false, false, false, true>;
        if (!turned_b) return block_scaled_gemm_tiles<i, false, false, true, false>;
        return block_scaled_gemm_tiles<i, false, false, true, true>;
    });
    return reinterpret_cast<const void*>(kernel);
}

}  // namespace rocm_fp8::block_scaled_gemm::hip
