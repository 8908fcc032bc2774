// From the float32 sum over k to the result, as args.h defines it: for every backend. The store: for GPUs.
#pragma once

#include "scales.h"

namespace rocm_fp8::gemm {
namespace {

// The result in float32. Every backend is built without contraction, so that nothing is fused here.
ROCM_FP8_DEVICE inline float finished(const Epilogue& e, float c, float scale_a, float scale_b, float bias) {
    float v = c * scale_a * scale_b;
    if (e.bias.data) v += bias;  // without one, -0 stays -0
    return v;
}

#if defined(__HIPCC__) || defined(__CUDACC__)

// Stores the result's number at `at`, in elements from its first one, given the sum c.
__device__ inline void finish_at(const Epilogue& e, int64_t at, const Column& column, float scale_a, float c) {
    const float v = finished(e, c, scale_a, column.scale, column.bias);
    if (e.out.dtype == DType::f32) {
        global<float>(e.out.data)[at] = v;
    } else {
        global<uint16_t>(e.out.data)[at] = uint16_t(
            e.out.dtype == DType::f16 ? Pairs<DType::f16>::round(both(v)) : Pairs<DType::bf16>::round_any_nan(both(v)));
    }
}
// Stores out[m, n].
__device__ inline void finish(const Epilogue& e, int64_t m, int64_t n, const Column& column, float scale_a, float c) {
    finish_at(e, m * e.out.stride + n, column, scale_a, c);
}

#endif

}  // namespace
}  // namespace rocm_fp8::gemm
