// A scale that is computed from the values that it quantises: its definition, and where it is written. For every
// backend and every operator that has such scales.
//
//     amax  = max |y| over the finite values of a tensor, a row, or a group of a row
//     amax  = max(min(amax, upper_bound), 1e-10)
//     scale = amax / fp8_max                     a rounded float32 quotient
//     scale = the least power of two >= scale    with power_of_two
//     q     = fp8(y / scale)                     by the scale that is written
#pragma once

#include "../fp8.h"

namespace rocm_fp8 {

struct DynamicScale {
    static constexpr int kRow = 0, kTensor = -1;  // of `group`

    void* data;                        // float32, or float8_e8m0fnu (a byte: exponent + 127) with `exponents`
    int64_t row_stride, group_stride;  // in elements of data
    const float* upper_bound;          // float32 [1] or nullptr
    float fp8_max, reciprocal_max;     // fp8_max is at least 2; its exact_reciprocal
    int group;                         // 32, 64 or 128 elements, kRow or kTensor
    bool power_of_two, exponents;      // exponents: power_of_two, too

    ROCM_FP8_HD int64_t groups(int64_t d) const { return group > 0 ? (d + group - 1) / group : 1; }
};

namespace {

// 1 / v, rounded, if a quotient by v is right by way of it (see divided_by_max); else 0. It is for numbers of few bits: with at
// most 16, of a 24-bit number, a quotient lies at least 2^-17 ulp from the middle of two float32 numbers.
inline float exact_reciprocal(float v) { return float_bits(v) & 0xFFu ? 0.0f : 1.0f / v; }

// amax / fp8_max, rounded. On a GPU a division takes some ten instructions. The product with the reciprocal, corrected by
// the remainder, is off by less than 2^-22 ulp before its last rounding.
ROCM_FP8_HD inline float divided_by_max(float amax, const DynamicScale& rule) {
#if defined(__HIP_DEVICE_COMPILE__) || defined(__CUDA_ARCH__)
    if (rule.reciprocal_max != 0.0f) {
        const float q = amax * rule.reciprocal_max;
        return fmaf(fmaf(-q, rule.fp8_max, amax), rule.reciprocal_max, q);
    }
#endif
    return amax / rule.fp8_max;
}

// The scale of values whose largest finite magnitude is `amax`.
ROCM_FP8_HD inline float scale_of(float amax, const DynamicScale& rule, float upper_bound) {
    constexpr float kSmallest = 1e-10f;
    amax = amax < upper_bound ? amax : upper_bound;
    const float scale = divided_by_max(amax > kSmallest ? amax : kSmallest, rule);
    // Scales are normal numbers: adding all mantissa bits carries into the exponent unless they are 0.
    return rule.power_of_two ? bits_float((float_bits(scale) + 0x7FFFFFu) & 0x7F800000u) : scale;
}

}  // namespace
}  // namespace rocm_fp8
