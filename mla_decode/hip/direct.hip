// The kernels that load to LDS directly, on gfx950 alone. See direct.h.
#include "../../common/gpu/kernel_at.h"
#include "direct.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

// gfx942, which has no such loads, gets the declaration alone: its code object has no kernel of this name.
#pragma clang diagnostic ignored "-Wundefined-internal"
template <int index, DType type>
__global__ __launch_bounds__((kDirectForms[index].threads()), 1) void mla_decode_direct(Launch)
#if defined(__gfx950__)
{
    constexpr int kWaves = kDirectForms[index].waves * kDirectForms[index].groups;
    __shared__ alignas(256) char lds[kDirectLds<index> + kWaves * (kShared<index> ? 4 : 1) * kWave * 4];
    decode_direct<index, type>(lds);
}
#elif defined(__HIP_DEVICE_COMPILE__)
    ;
#else
{
}
#endif

}  // namespace

const void* direct_kernel(int form, DType type) {
    using Kernel = void (*)(Launch);
    const Kernel kernel = kernel_at<kDirectCount>(form, [=]<int i>() -> Kernel {
        return type == DType::f16 ? mla_decode_direct<i, DType::f16> : mla_decode_direct<i, DType::bf16>;
    });
    return reinterpret_cast<const void*>(kernel);
}

}  // namespace rocm_fp8::mla_decode::hip
