// fp8(y / scale) in e4m3fn for a 16-bit y. It gives the same byte as a rounded float32 division and a saturating
// conversion.
//
// The chip converts two numbers an instruction: to nearest even, saturating, NaN kept. A division takes ten
// instructions or more. Here it takes two. Let high be just below 1 / scale, and low just above 1 / scale - high. Then
//
//     q = fma(y, high, y * low)
//
// before its one rounding exceeds y / scale by a relative error of at most 2^-43. The rounded q can differ from the
// rounded quotient only if a midpoint of two float32 numbers lies between the two unrounded values. Its FP8 number can
// differ only if one of those two float32 numbers is itself a midpoint of two FP8 numbers. tests/test_quotients.py
// checks all such cases: with 11 (or 8) bits in y and 24 in scale there is none. An error below the quotient would not
// do: there is one such case, with y a power of two and scale the float32 number before one.
//
// An infinite y stays infinite, because low has high's sign and is never 0. Scales outside [2^-60, 2^60] use the
// division.
#pragma once

#include <cstdint>

#include "../fp8.h"

namespace rocm_fp8 {
namespace {

// The chip's own format. HIP sources use the same name.
constexpr DType kNativeFp8 = DType::e4m3fn;

struct QuantizationScale {
    float scale = 1, high = 1, low = 0;
    bool usual = true;

    __device__ QuantizationScale() {}

    __device__ explicit QuantizationScale(const float* p) : QuantizationScale(*p) {}
    __device__ explicit QuantizationScale(float value) : scale(value), usual(scale >= 0x1p-60f && scale <= 0x1p60f) {
        // The chip's estimate and one step of Newton's method are less than 0.51 ulp off, so that the number before is
        // below 1 / scale, by at most 1.51 ulp.
        float estimate;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(scale));
        const float near = __fmaf_rn(estimate, __fmaf_rn(-scale, estimate, 1.0f), estimate);
        high = bits_float(float_bits(near) - 1);
        // Three roundings and high in place of 1 / scale make the product too small by less than 2^-21 of it.
        low = __fmaf_rn(-scale, high, 1.0f) * high * (1 + 0x1p-21f);
    }
    __device__ void have_now() {}  // HIP computes it by this point
};

// Converts two numbers; `a` goes to the lower byte.
__device__ inline uint32_t two_to_fp8(float a, float b) {
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
    return both;
}

// fp8(y / scale) of eight numbers.
__device__ inline uint2 quantize_eight(const float2 (&y)[4], const QuantizationScale& s) {
    uint32_t q[4];
    if (__builtin_expect(s.usual, 1)) {
        const auto quotient = [&](float v) { return __fmaf_rn(v, s.high, v * s.low); };
#pragma unroll
        for (int i = 0; i < 4; ++i) q[i] = two_to_fp8(quotient(y[i].x), quotient(y[i].y));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) q[i] = two_to_fp8(y[i].x / s.scale, y[i].y / s.scale);
    }
    return {q[0] | q[1] << 16, q[2] | q[3] << 16};
}

// The same of numbers of type `in`: what is said above holds of 16-bit ones, float32 takes the division.
template <DType in>
__device__ inline uint2 quantize_vector(const float2 (&y)[4], QuantizationScale s) {
    if (in == DType::f32) s.usual = false;
    return quantize_eight(y, s);
}

}  // namespace
}  // namespace rocm_fp8
