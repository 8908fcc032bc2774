// SwiGLU of eight elements on AMD GPUs: silu's machine functions, and the choice of its form.
#pragma once

#include "../../common/rows/gpu/eight.h"
#include "../silu.h"

namespace rocm_fp8::swiglu {
namespace {

struct Machine {
    __device__ static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
    __device__ static f32x2 fma(f32x2 a, f32x2 b, f32x2 c) { return __builtin_elementwise_fma(a, b, c); }
    __device__ static f32x2 fma(f32x2 a, float b, f32x2 c) { return fma(a, both(b), c); }
    __device__ static float exp2(float v) { return __builtin_amdgcn_exp2f(v); }
    __device__ static float rcp(float v) { return __builtin_amdgcn_rcpf(v); }
    __device__ static f32x2 exp2(f32x2 v) { return f32x2{exp2(v.x), exp2(v.y)}; }
    __device__ static f32x2 rcp(f32x2 v) { return f32x2{rcp(v.x), rcp(v.y)}; }
};

// Whether a gate lies outside of [kSiluLow, kSiluHigh] or is NaN, by its bits: those of numbers of one sign have the
// order of their magnitudes. Not by v_min3_f32 and v_max3_f32: of a signalling NaN they make a quiet one, and then
// forget the numbers that they held.
template <DType in>
__device__ inline bool any_unusual(u32x4 gate) {
    using i16x2 = int16_t __attribute__((ext_vector_type(2)));
    using u16x2 = uint16_t __attribute__((ext_vector_type(2)));
    constexpr i16x2 kHigh = int16_t(bits16<in>(kSiluHigh));
    constexpr u16x2 kLow = bits16<in>(kSiluLow);
    i16x2 largest = kHigh;       // positive numbers, and NaN, stand above all negative ones
    u16x2 most_negative = kLow;  // negative ones, and NaN, above all positive ones
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i) {
        const uint32_t word = gate[i];  // clang 22 takes the bits of gate[0] for those of any element of a vector
        largest = __builtin_elementwise_max(largest, __builtin_bit_cast(i16x2, word));
        most_negative = __builtin_elementwise_max(most_negative, __builtin_bit_cast(u16x2, word));
    }
    const auto differs = [](auto a, auto b) {
        return __builtin_bit_cast(uint32_t, a) != __builtin_bit_cast(uint32_t, b);
    };
    return differs(largest, kHigh) || differs(most_negative, kLow);
}

// round(round(silu(gate)) * up)
template <DType in>
__device__ inline u32x4 gated(u32x4 gate, u32x4 up) {
    f32x2 v[kEight / 2];
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i) v[i] = Pairs<in>::widen(gate[i]);
    if (any_lane(any_unusual<in>(gate))) [[unlikely]] {
#pragma unroll
        for (int i = 0; i < kEight / 2; ++i) v[i] = f32x2{silu_any(v[i].x, Machine()), silu_any(v[i].y, Machine())};
    } else {
#pragma unroll
        for (int i = 0; i < kEight / 2; ++i) v[i] = silu_usual(v[i], Machine());
    }
    u32x4 y;
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i) y[i] = Pairs<in>::mul(Pairs<in>::round(v[i]), up[i]);
    return y;
}

}  // namespace
}  // namespace rocm_fp8::swiglu
