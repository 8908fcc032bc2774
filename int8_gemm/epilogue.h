// From the int32 sum over k to the result: the rounding points, one text for CPU, CUDA and HIP.
//
//     p = float(acc - zero_a[m] * sum_b[n])      integers without overflow, rounded once
//     v = (p * scale_a[m]) * scale_b[n]
//     v = v + beta * addend[m, n]                only with an addend; a bias has beta = 1
//     v = activation(v)
//     v = v / scale_out                          only where it is given, which int8 results may have
//     out = round_out(v)                         int8: to nearest even, saturated, NaN gives 0. Others: NaN is 0x7FC0...
//
// float32; each operation rounds, and none are fused: every backend is built without contraction. A kernel may read
// scales and addends as it likes, and must call these functions, or do the same operations in the same order.
#pragma once

#include "../common/gemm/scales.h"
#include "../common/int8.h"
#include "../common/vendor.h"
#include "int8_gemm.h"

namespace rocm_fp8::int8_gemm {
namespace {

// --- arithmetic: host and device ---

ROCM_FP8_HD inline float product(int32_t acc) { return float(acc); }
ROCM_FP8_HD inline float product(int32_t acc, int32_t zero, int32_t sum) {
    return float(int64_t(acc) - int64_t(zero) * int64_t(sum));
}

ROCM_FP8_HD inline float scaled(float p, float scale_a, float scale_b) { return p * scale_a * scale_b; }

ROCM_FP8_HD inline float added(float v, float beta, float addend) {
    const float d = beta * addend;
    return v + d;
}

// GELU's two forms are within 1e-6 of their exact value, relative to 1 + |v|; the others are exact.
ROCM_FP8_HD constexpr bool bends(Activation activation) {
    return activation == Activation::gelu || activation == Activation::gelu_tanh;
}
// may_bend: false leaves out the text of those for which bends() holds.
template <bool may_bend = true>
ROCM_FP8_HD inline float activated(Activation activation, float v) {
    if constexpr (!may_bend) return activation == Activation::relu && v < 0.0f ? 0.0f : v;
    switch (activation) {
        case Activation::none: return v;
        case Activation::relu: return v < 0.0f ? 0.0f : v;  // -0 and NaN stay
        case Activation::gelu: return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
        case Activation::gelu_tanh: {
            const float inner = 0.79788456080286536f * (v + 0.044715f * (v * v * v));
            return 0.5f * v * (1.0f + tanhf(inner));
        }
    }
    return v;
}

// NaN of any sign and payload as one: what instructions make of it differs.
ROCM_FP8_HD inline float one_nan(float v) { return v == v ? v : bits_float(0x7FC00000u); }

// --- readers: for a GPU on the device alone ---

using gemm::scale_at;

ROCM_FP8_DEVICE inline int32_t integer_at(const Integers& s, int64_t batch, int64_t i) {
    return s.data ? global<int32_t>(s.data)[batch * s.group_stride + i * s.row_stride] : 0;
}
ROCM_FP8_DEVICE inline float addend_at(const Addend& d, int64_t batch, int64_t m, int64_t n) {
    if (!d.data) return 0;
    const int64_t at = batch * d.group_stride + m * d.row_stride + n;
    if (d.dtype == DType::f32) return global<float>(d.data)[at];
    if (d.dtype == DType::i8) return float(global<int8_t>(d.data)[at]);
    return gemm::widened(d.dtype, global<uint16_t>(d.data)[at]);
}

// What one row, or one column, brings.
struct Row {
    float scale;
    int32_t zero;
    ROCM_FP8_DEVICE Row(const Epilogue& e, int64_t batch, int64_t m)
        : scale(scale_at(e.scale_a, batch, m)), zero(integer_at(e.zero_a, batch, m)) {}
    ROCM_FP8_DEVICE Row(float scale, int32_t zero) : scale(scale), zero(zero) {}
};
struct Column {
    float scale;
    int32_t sum;
    ROCM_FP8_DEVICE Column(const Epilogue& e, int64_t batch, int64_t n)
        : scale(scale_at(e.scale_b, batch, n)), sum(integer_at(e.sum_b, batch, n)) {}
    ROCM_FP8_DEVICE Column(float scale, int32_t sum) : scale(scale), sum(sum) {}
};

// The result before its type. beta and scale_out: scale_at(e.addend.beta, 0, 0) and scale_at(e.scale_out, 0, 0).
template <bool may_bend = true>
ROCM_FP8_HD inline float finished(const Epilogue& e, int32_t acc, const Row& row, const Column& column, float addend,
                                  float beta, float scale_out) {
    const float p = e.zero_a.data ? product(acc, row.zero, column.sum) : product(acc);
    float v = scaled(p, row.scale, column.scale);
    if (e.addend.data) v = added(v, beta, addend);
    v = activated<may_bend>(e.activation, v);
    return e.divides ? v / scale_out : v;
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm
