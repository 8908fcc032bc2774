// From a sum over all of K to the result, on every GPU.
#pragma once

#include "../gpu/vendor.h"
#include "../../skinny_gemm/skinny_gemm.h"

namespace rocm_fp8 {
namespace {

__device__ inline float load_as_float(const void* p, int64_t i, DType type) {
    if (type == DType::f32) return global<float>(p)[i];
    const uint32_t bits = global<uint16_t>(p)[i];
    return type == DType::f16 ? Pairs<DType::f16>::widen(bits).x : Pairs<DType::bf16>::widen(bits).x;
}

__device__ inline float scale_of_row(const skinny_gemm::Args& a, int64_t m) { return global<float>(a.scale_a)[m * a.scale_a_stride]; }

// What the results of one column need beside their sums and their rows' scales.
struct Column {
    int64_t n;
    float scale, bias;
    __device__ Column(const skinny_gemm::Args& a, int64_t n)
        : n(n),
          scale(global<float>(a.scale_b)[n * a.scale_b_stride]),
          bias(a.bias ? load_as_float(a.bias, n * a.bias_stride, a.bias_dtype) : 0) {}
};

// out[m, n] from the sum c.
__device__ inline void finish(const skinny_gemm::Args& a, int64_t m, const Column& column, float scale_a, float c) {
    float v = c * scale_a * column.scale;
    if (a.bias) v += column.bias;
    const int64_t at = m * a.out_stride + column.n;
    if (a.out_dtype == DType::f32) {
        global<float>(a.out)[at] = v;
    } else {
        global<uint16_t>(a.out)[at] = uint16_t(a.out_dtype == DType::f16 ? Pairs<DType::f16>::round(both(v))
                                                                         : Pairs<DType::bf16>::round_any_nan(both(v)));
    }
}

}  // namespace
}  // namespace rocm_fp8
