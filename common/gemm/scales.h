// The one reader of a GEMM's scales and bias, on every backend.
#pragma once

#include "../fp8.h"
#include "../vendor.h"
#include "args.h"
#include "work.h"

namespace rocm_fp8::gemm {
namespace {

// Of scales that are known to be float32, and of rows: what a kernel knows when it is compiled costs it nothing.
ROCM_FP8_DEVICE inline float scale_at(const Scales& scales, int64_t row) {
    return global<float>(scales.data)[row * scales.row_stride];
}
// The same of one group of several, or what the host gave for all.
ROCM_FP8_DEVICE inline float scale_at(const Scales& s, int64_t group, int64_t row) {
    return s.data ? global<float>(s.data)[group * s.group_stride + row * s.row_stride] : s.value;
}

// Any scale of one group in two steps: the bits as they lie in memory, then the number that they are.
ROCM_FP8_DEVICE inline uint32_t scale_bits(const Scales& s, int64_t row, int64_t block) {
    const int64_t at = (s.rows == 1 ? row : int64_t(uint64_t(row) / kBlock)) * s.row_stride + block * s.block_stride;
    return s.dtype == DType::e8m0 ? global<uint8_t>(s.data)[at] : global<uint32_t>(s.data)[at];
}
ROCM_FP8_DEVICE inline float scale_of_bits(bool e8m0, uint32_t bits) {
    return e8m0 ? e8m0_value(bits) : bits_float(bits);
}

// float16 or bfloat16.
ROCM_FP8_DEVICE inline float widened(DType dtype, uint32_t bits) {
    return dtype == DType::f16 ? Pairs<DType::f16>::widen(bits).x : Pairs<DType::bf16>::widen(bits).x;
}

ROCM_FP8_DEVICE inline float bias_at(const Bias& bias, int64_t i) {
    if (!bias.data) return 0;
    const int64_t at = i * bias.stride;
    if (bias.dtype == DType::f32) return global<float>(bias.data)[at];
    return widened(bias.dtype, global<uint16_t>(bias.data)[at]);
}

// The scale and the bias of one column.
struct Column {
    float scale, bias;
    ROCM_FP8_DEVICE Column(const Epilogue& e, int64_t n) : scale(scale_at(e.scale_b, n)), bias(bias_at(e.bias, n)) {}
};

}  // namespace
}  // namespace rocm_fp8::gemm
