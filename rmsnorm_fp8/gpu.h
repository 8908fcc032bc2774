// Common parts of the RMSNorm kernels for AMD and NVIDIA GPUs: the order of a vector's sum, an element's arithmetic,
// the element-by-element kernel, the choice by types.
#pragma once

#include "../common/fp8.h"
#include "../common/vendor.h"
#include "reciprocal_rms.h"
#include "rmsnorm_fp8.h"

namespace rocm_fp8::rms_norm {
namespace {

// h^2 summed over a vector, in the one order that all kernels use.
template <int kPairs>
__device__ inline float sum_of_squares(const f32x2 (&h)[kPairs]) {
    f32x2 s = h[0] * h[0];
#pragma unroll
    for (int i = 1; i < kPairs; ++i) s = fma(h[i], h[i], s);
    return s.x + s.y;
}

// Two elements: round(round(h * r) * weight). The weights are a pair of the type, or of float32.
template <DType in>
__device__ inline uint32_t normalize(uint32_t h, float r, uint32_t weights) {
    return Pairs<in>::mul(Pairs<in>::round(Pairs<in>::widen(h) * r), weights);
}
template <DType in>
__device__ inline uint32_t normalize(uint32_t h, float r, f32x2 weights) {
    const uint32_t n = Pairs<in>::round(Pairs<in>::widen(h) * r);
    return Pairs<in>::round_any_nan(Pairs<in>::widen(n) * weights);
}

// A vector of 8 weights as it lies in memory.
template <DType weight_type>
struct WeightVector {
    static constexpr int kLoads = weight_type == DType::f32 ? 2 : 1;
    Vector128 bits[kLoads];
    __device__ void load_from(const void* weight, VectorIndex vector) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) bits[i] = load_vector(weight, (vector * kLoads + i) * 16);
    }
    // Two of them, as normalize takes them.
    __device__ auto pair(int i) const {
        if constexpr (weight_type == DType::f32) {
            return f32x2{bits_float(word(bits[i / 2], i % 2 * 2)), bits_float(word(bits[i / 2], i % 2 * 2 + 1))};
        } else {
            return word(bits[0], i);
        }
    }
};

// Whether the fast kernels can take the arguments. d must be a multiple of `elements`. Rows of all tensors must start
// at multiples of 16 bytes, rows of an FP8 result at multiples of `fp8_bytes`.
inline bool rows_fit(const Args& a, int elements, int fp8_bytes) {
    const bool out =
        is_fp8(a.out_dtype) ? rows_aligned(a.out, a.out_stride, fp8_bytes) : rows_aligned(a.out, a.out_stride * 2);
    return a.d % elements == 0 && out && rows_aligned(a.x, a.x_stride * 2) && rows_aligned(a.weight, 0) &&
           (!a.residual || rows_aligned(a.residual, a.residual_stride * 2));
}

// One row per CTA or workgroup of Rows::kThreads, element by element. It takes any d, any stride, the element's own
// alignment and either FP8 format. It reads h again from memory.
//
// Rows has kVector, kSlots and sum_of_slots(slots, used) of the fast kernels, so that the order of the sum is theirs,
// and Machine.
template <class Rows, DType in>
__device__ inline void rms_norm_row(const Args& a, int64_t row) {
    constexpr int kVector = Rows::kVector, kSlots = Rows::kSlots, kThreads = Rows::kThreads;
    const auto* x = global<uint16_t>(offset(a.x, row * a.x_stride * 2));
    auto* residual = global<uint16_t>(a.residual ? offset(a.residual, row * a.residual_stride * 2) : nullptr);
    __shared__ float slots[kSlots];
    for (int i = threadIdx.x; i < kSlots; i += kThreads) slots[i] = 0;
    // Closes: the zeros are added to below, by lanes that did not write them.
    __syncthreads();

    const int lane = threadIdx.x % kLanes, wave = uniform(threadIdx.x / kLanes);
    constexpr int kWaves = kThreads / kLanes, kGroup = kLanes * kVector;
    const int64_t groups = (a.d + kGroup - 1) / kGroup;
    for (int64_t group = wave; group < groups; group += kWaves) {
        const int64_t first = group * kGroup + lane * kVector;
        f32x2 wide[kVector / 2];
        for (int i = 0; i < kVector / 2; ++i) {
            uint32_t two = 0;
            for (int k = 0; k < 2; ++k) {
                const int64_t at = first + 2 * i + k;
                if (at >= a.d) continue;
                uint32_t h = x[at];
                if (a.residual) {
                    h = Pairs<in>::add(h, residual[at]) & 0xFFFFu;
                    residual[at] = uint16_t(h);
                }
                two |= h << (16 * k);
            }
            wide[i] = Pairs<in>::widen(two);
        }
        const float sum = sum_over_lanes(sum_of_squares(wide));
        // A slot belongs to one wave: kSlots is a multiple of the number of waves.
        static_assert(kSlots % kWaves == 0);
        if (lane == kLaneOfSum) slots[group % kSlots] += sum;
    }
    // Closes: the slots, and the residual's elements, are read below by lanes that did not write them.
    __syncthreads();
    const float r =
        reciprocal_rms(Rows::sum_of_slots(slots, kSlots), 1.0f / float(a.d), a.epsilon, typename Rows::Machine());

    const float scale = a.out_dtype == in ? 1.0f : *global<float>(a.scale);
    for (int64_t i = threadIdx.x; i < a.d; i += kThreads) {
        const uint32_t h = a.residual ? residual[i] : x[i];
        const uint32_t y =
            0xFFFFu & (a.weight_dtype == DType::f32 ? normalize<in>(h, r, f32x2{global<float>(a.weight)[i], 0.0f})
                                                    : normalize<in>(h, r, uint32_t(global<uint16_t>(a.weight)[i])));
        if (a.out_dtype == in) {
            global<uint16_t>(a.out)[row * a.out_stride + i] = uint16_t(y);
        } else {
            global<uint8_t>(a.out)[row * a.out_stride + i] =
                quantize_one(Pairs<in>::widen(y).x, scale, a.out_dtype == DType::e4m3fnuz);
        }
    }
}

// pick.operator()<in, weight, to_fp8, with_residual>() for the arguments' types.
template <DType in, DType weight, class Pick>
auto by_out(const Args& a, const Pick& pick) {
    if (!is_fp8(a.out_dtype)) return pick.template operator()<in, weight, false, false>();
    return a.residual ? pick.template operator()<in, weight, true, true>()
                      : pick.template operator()<in, weight, true, false>();
}
template <DType in, class Pick>
auto by_weight(const Args& a, const Pick& pick) {
    return a.weight_dtype == DType::f32 ? by_out<in, DType::f32>(a, pick) : by_out<in, in>(a, pick);
}
template <class Pick>
auto by_types(const Args& a, const Pick& pick) {
    return a.dtype == DType::f16 ? by_weight<DType::f16>(a, pick) : by_weight<DType::bf16>(a, pick);
}

}  // namespace
}  // namespace rocm_fp8::rms_norm
