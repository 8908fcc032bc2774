// The kernels that load to LDS directly, on gfx950 alone. See direct.h.
#include "../../common/gpu/kernel_at.h"
#include "direct.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

// gfx942, which has no such loads, gets the declaration alone: its code object has no kernel of this name.
#pragma clang diagnostic ignored "-Wundefined-internal"
template <int index>
__global__ __launch_bounds__(DirectShape<index>::threads, DirectShape<index>::waves_per_simd)
__attribute__((amdgpu_num_vgpr(256))) void block_scaled_gemm_direct(Launch)
#if defined(__gfx950__)
{
    using S = DirectShape<index>;
    using T = DirectTile<S>;
    __shared__ typename T::Lds lds;
    make_items<S, Launch, T>(lds);
}
#elif defined(__HIP_DEVICE_COMPILE__)
    ;
#else
{
}
#endif

}  // namespace

const void* direct_kernel(int shape) {
    const auto kernel =
        kernel_at<kDirectShapeCount>(shape, []<int i>() -> TileKernel { return block_scaled_gemm_direct<i>; });
    return reinterpret_cast<const void*>(kernel);
}

}  // namespace rocm_fp8::block_scaled_gemm::hip
