// Arithmetic on pairs of 16-bit floats. Results equal the same operation in float32, rounded to 16 bits afterwards.
//
// The packed instructions round once, which gives the same result. For + and *, rounding to 24 bits and then to 11 (or
// 8) equals rounding to 11 (or 8) directly, because 24 >= 2 * 11 + 2.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "../types.h"

namespace rocm_fp8 {
namespace {

using f32x2 = float2;

__device__ inline f32x2 both(float v) { return {v, v}; }
__device__ inline f32x2 operator*(f32x2 a, f32x2 b) { return {a.x * b.x, a.y * b.y}; }
__device__ inline f32x2 operator*(f32x2 a, float b) { return {a.x * b, a.y * b}; }
__device__ inline f32x2 fma(f32x2 a, f32x2 b, f32x2 c) { return {__fmaf_rn(a.x, b.x, c.x), __fmaf_rn(a.y, b.y, c.y)}; }

// CUDA's pair types are not trivially copyable.
template <class Pair>
__device__ inline Pair pair(uint32_t bits) {
    return *reinterpret_cast<const Pair*>(&bits);
}
template <class Pair>
__device__ inline uint32_t bits(const Pair& pair) {
    return *reinterpret_cast<const uint32_t*>(&pair);
}

// Pair: __half2 or __nv_bfloat162.
template <class Pair>
struct PackedPairs {
    static __device__ uint32_t add(uint32_t a, uint32_t b) { return bits(__hadd2_rn(pair<Pair>(a), pair<Pair>(b))); }
    static __device__ uint32_t mul(uint32_t a, uint32_t b) { return bits(__hmul2_rn(pair<Pair>(a), pair<Pair>(b))); }
    // If one operand is NaN, the other one.
    static __device__ uint32_t min(uint32_t a, uint32_t b) { return bits(__hmin2(pair<Pair>(a), pair<Pair>(b))); }
    static __device__ uint32_t max(uint32_t a, uint32_t b) { return bits(__hmax2(pair<Pair>(a), pair<Pair>(b))); }
};

// The larger of the low halves and of the high ones, as unsigned numbers.
__device__ inline uint32_t max_halves(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }

template <DType>
struct Pairs;

template <>
struct Pairs<DType::f16> : PackedPairs<__half2> {
    static __device__ f32x2 widen(uint32_t v) { return __half22float2(pair<__half2>(v)); }
    static __device__ uint32_t round(f32x2 v) { return bits(__floats2half2_rn(v.x, v.y)); }
    static __device__ uint32_t round_any_nan(f32x2 v) { return round(v); }
    static __device__ uint32_t scaled(uint32_t v, float r) { return round(widen(v) * r); }
    static __device__ f32x2 add_squares(uint32_t v, f32x2 sum) { return fma(widen(v), widen(v), sum); }
};

template <>
struct Pairs<DType::bf16> : PackedPairs<__nv_bfloat162> {
    static __device__ f32x2 widen(uint32_t v) { return {__uint_as_float(v << 16), __uint_as_float(v & 0xFFFF0000u)}; }
    static __device__ uint32_t round(f32x2 v) { return bits(__floats2bfloat162_rn(v.x, v.y)); }
    static __device__ uint32_t round_any_nan(f32x2 v) { return round(v); }
    static __device__ uint32_t scaled(uint32_t v, float r) { return round(widen(v) * r); }
    static __device__ f32x2 add_squares(uint32_t v, f32x2 sum) { return fma(widen(v), widen(v), sum); }
};

}  // namespace
}  // namespace rocm_fp8
