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

// Two neighbours of a result of float16 or bfloat16, by whatever NaN the chip makes.
__device__ inline uint32_t rounded_pair(DType dtype, f32x2 v) {
    return dtype == DType::f16 ? Pairs<DType::f16>::round_any_nan(v) : Pairs<DType::bf16>::round_any_nan(v);
}

// Stores a number of the result, `at` elements from its first one.
__device__ inline void put(const Output& out, int64_t at, float v) {
    if (out.dtype == DType::f32) {
        global<float>(out.data)[at] = v;
    } else {
        global<uint16_t>(out.data)[at] = uint16_t(rounded_pair(out.dtype, both(v)));
    }
}

// Stores out[m, n], given the sum c.
__device__ inline void finish(const Epilogue& e, int64_t m, int64_t n, const Column& column, float scale_a, float c) {
    const float v = finished(e, c, scale_a, column.scale, column.bias);
    put(e.out, m * e.out.row_stride + n, v);
}

#endif

}  // namespace
}  // namespace rocm_fp8::gemm
