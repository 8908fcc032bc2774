// What is the same in the SwiGLU kernels for AMD and NVIDIA GPUs: the careful one.
#pragma once

#include "../common/fp8.h"
#include "../common/vendor.h"
#include "silu.h"
#include "swiglu_fp8.h"

namespace rocm_fp8::swiglu {
namespace {

// Whether the fast kernel can take it: d is a multiple of `elements`; rows of x start at multiples of 16 bytes, those of the
// result of `fp8_bytes`.
inline bool rows_fit(const Args& a, int elements, int fp8_bytes) {
    return a.d % elements == 0 && rows_aligned(a.x, a.x_stride * 2) && rows_aligned(a.out, a.out_stride, fp8_bytes);
}

// By all blocks of kThreads together, element by element: any d, strides and alignment of the element's own, either FP8
// format.
template <DType in, int kThreads, class Machine>
__device__ inline void swiglu_elements(const Args& a, float scale, Machine machine) {
    const int64_t count = a.rows * a.d, step = int64_t(gridDim.x) * kThreads;
    for (int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x; n < count; n += step) {
        const int64_t row = n / a.d, column = n % a.d;
        const auto* x = global<uint16_t>(a.x) + row * a.x_stride + column;
        const float g = silu_any(Pairs<in>::widen(x[0]).x, machine);
        const uint32_t y = Pairs<in>::mul(Pairs<in>::round(both(g)), x[a.d]);
        global<uint8_t>(a.out)[row * a.out_stride + column] =
            quantize_one(Pairs<in>::widen(y).x, scale, a.out_dtype == DType::e4m3fnuz);
    }
}

}  // namespace
}  // namespace rocm_fp8::swiglu
