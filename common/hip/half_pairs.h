// Arithmetic on pairs of 16-bit floats. Results equal the same operation in float32, rounded to 16 bits afterwards.
//
// float16 has packed instructions on both chips. They round once, which gives the same result: for + and *, rounding to
// 24 bits and then to 11 equals rounding to 11 directly (24 >= 2 * 11 + 2). bfloat16 has no packed instructions. It is
// the upper half of a float32, so widening is a shift. Rounding takes three instructions an element on gfx942, one a
// pair on gfx950.
#pragma once

#include "../types.h"
#include "vector.h"

namespace rocm_fp8 {
namespace {

using f16x2 = _Float16 __attribute__((ext_vector_type(2)));

__device__ inline f32x2 fma(f32x2 a, f32x2 b, f32x2 c) { return __builtin_elementwise_fma(a, b, c); }
__device__ inline f32x2 both(float v) { return f32x2{v, v}; }

// The larger of the low halves and of the high ones, as unsigned numbers.
__device__ inline uint32_t max_halves(uint32_t a, uint32_t b) {
    using u16x2 = uint16_t __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(uint32_t,
                              __builtin_elementwise_max(__builtin_bit_cast(u16x2, a), __builtin_bit_cast(u16x2, b)));
}

template <DType>
struct Pairs;

template <>
struct Pairs<DType::f16> {
    __device__ static f32x2 widen(uint32_t v) { return __builtin_convertvector(__builtin_bit_cast(f16x2, v), f32x2); }
    __device__ static uint32_t round(f32x2 v) {
        return __builtin_bit_cast(uint32_t, __builtin_convertvector(v, f16x2));
    }
    __device__ static uint32_t add(uint32_t a, uint32_t b) {
        return __builtin_bit_cast(uint32_t, __builtin_bit_cast(f16x2, a) + __builtin_bit_cast(f16x2, b));
    }
    __device__ static uint32_t mul(uint32_t a, uint32_t b) {
        return __builtin_bit_cast(uint32_t, __builtin_bit_cast(f16x2, a) * __builtin_bit_cast(f16x2, b));
    }
    __device__ static uint32_t round_any_nan(f32x2 v) { return round(v); }
    // round(widen(v) * r), in two instructions, which widen, multiply and round. The compiler takes six. To the products
    // -0 is added, which leaves a zero its sign. In this order of the operands the compiler, too, lets both follow one
    // another, and what reads the result, without wait states.
    __device__ static uint32_t scaled(uint32_t v, float r) {
        uint32_t product;
        asm("v_fma_mixlo_f16 %0, %1, %2, neg(0) op_sel_hi:[0,1,0]\n\t"
            "v_fma_mixhi_f16 %0, %1, %2, neg(0) op_sel:[0,1,0] op_sel_hi:[0,1,0]"
            : "=&v"(product)
            : "v"(r), "v"(v));
        return product;
    }
    // widen(v)^2 + sum, rounded once.
    __device__ static f32x2 add_squares(uint32_t v, f32x2 sum) {
        asm("v_fma_mix_f32 %0, %1, %1, %0 op_sel_hi:[1,1,0]" : "+v"(sum.x) : "v"(v));
        asm("v_fma_mix_f32 %0, %1, %1, %0 op_sel:[1,1,0] op_sel_hi:[1,1,0]" : "+v"(sum.y) : "v"(v));
        return sum;
    }
};

template <>
struct Pairs<DType::bf16> {
    __device__ static f32x2 widen(uint32_t v) { return __builtin_bit_cast(f32x2, u32x2{v << 16, v & 0xFFFF0000u}); }
    // Rounds to nearest even. On gfx942 a NaN whose lower half is not zero may become a number. NaNs of 16-bit inputs,
    // and those that arithmetic makes of them, have zeros there.
    __device__ static uint32_t round(f32x2 v) {
#if defined(__gfx950__)
        using bf16x2 = __bf16 __attribute__((ext_vector_type(2)));
        return __builtin_bit_cast(uint32_t, __builtin_convertvector(v, bf16x2));
#else
        u32x2 u = __builtin_bit_cast(u32x2, v);
        u += 0x7FFFu + ((u >> 16) & 1u);
        constexpr uint32_t kUpperHalves = 0x07060302u;
        return __builtin_amdgcn_perm(u.y, u.x, kUpperHalves);
#endif
    }
    // The same for any NaN, such as those of float32 weights.
    __device__ static uint32_t round_any_nan(f32x2 v) {
        constexpr float kNan = __builtin_nanf("");
        return round(f32x2{v.x == v.x ? v.x : kNan, v.y == v.y ? v.y : kNan});
    }
    __device__ static uint32_t add(uint32_t a, uint32_t b) { return round(widen(a) + widen(b)); }
    __device__ static uint32_t mul(uint32_t a, uint32_t b) { return round(widen(a) * widen(b)); }
    __device__ static uint32_t scaled(uint32_t v, float r) { return round(widen(v) * r); }
    __device__ static f32x2 add_squares(uint32_t v, f32x2 sum) { return fma(widen(v), widen(v), sum); }
};

}  // namespace
}  // namespace rocm_fp8
