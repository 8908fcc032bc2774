// The one reader of a GEMM's scales and bias, on every backend.
#pragma once

#include "../vendor.h"
#include "args.h"

namespace rocm_fp8::gemm {
namespace {

ROCM_FP8_DEVICE inline float scale_at(const Scales& scales, int64_t i) {
    return global<float>(scales.data)[i * scales.stride];
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

// bias_at in two steps: the bits as they lie in memory (0 without a bias), which nothing waits for yet; then the number.
ROCM_FP8_DEVICE inline uint32_t bias_bits(const Bias& bias, int64_t i) {
    if (!bias.data) return 0;
    const int64_t at = i * bias.stride;
    return bias.dtype == DType::f32 ? global<uint32_t>(bias.data)[at] : global<uint16_t>(bias.data)[at];
}
ROCM_FP8_DEVICE inline float bias_of_bits(DType dtype, uint32_t bits) {
    return dtype == DType::f32 ? bits_float(bits) : widened(dtype, bits);
}

// The scale and the bias of one column.
struct Column {
    float scale, bias;
    ROCM_FP8_DEVICE Column(const Epilogue& e, int64_t n) : scale(scale_at(e.scale_b, n)), bias(bias_at(e.bias, n)) {}
};

}  // namespace
}  // namespace rocm_fp8::gemm
