// The kernels of tiles for operands whose rows are contiguous: one of them, or both. See
// common/gemm/hip/loaders.h.
#include "../../common/gpu/kernel_at.h"
#include "tiles.h"

namespace rocm_fp8::block_scaled_gemm::hip {

const void* transposed_kernel(int shape, bool transposed_a, bool transposed_b) {
    const auto kernel = kernel_at<kTileShapeCount - 1>(shape, [&]<int i>() -> TileKernel {
        if (!transposed_a) return block_scaled_gemm_tiles<i, false, false, false, true>;
        if (!transposed_b) return block_scaled_gemm_tiles<i, false, false, true, false>;
        return block_scaled_gemm_tiles<i, false, false, true, true>;
    });
    return reinterpret_cast<const void*>(kernel);
}

}  // namespace rocm_fp8::block_scaled_gemm::hip
