// fp8(y / scale) in e4m3fn, to the byte what a rounded float32 division followed by a saturating conversion gives, for a y
// that is a 16-bit float.
//
// The chip converts two numbers an instruction: to nearest even, saturating, NaN kept. A division is ten instructions or
// more. Here it is two: with high just below 1 / scale and low just above what that lacks,
//
//     q = fma(y, high, y * low)
//
// is y / scale, at most 2^-43 of itself larger, before its one rounding. That can be another number than the rounded
// quotient only where the middle between two float32 numbers lies between the two, and another FP8 number only where one
// of those is itself in the middle between two FP8 numbers. tests/test_quotients.py goes through all such cases: with 11
// (or 8) bits in y and 24 in scale there is none. (Below the quotient there is one, y a power of two and scale the float32
// before one: hence "larger".)
//
// An infinite y stays infinite because low is never 0 (it is at least 2^-64 of high) and has high's sign. Scales outside
// [2^-60, 2^60] take the division.
#pragma once

#include <cstdint>

#include "../fp8.h"

namespace rocm_fp8 {
namespace {

struct QuantizationScale {
    float scale = 1, high = 1, low = 0;
    bool usual = true;

    __device__ QuantizationScale() {}

    __device__ explicit QuantizationScale(const float* p) : scale(*p), usual(scale >= 0x1p-60f && scale <= 0x1p60f) {
        high = __frcp_rz(scale);
        // The remainder is exact, its quotient right within 2^-22, and so too large with 2^-21 added.
        const float remainder = __fmaf_rn(-scale, high, 1.0f);
        low = fmaxf(remainder * high * (1 + 0x1p-21f), high * 0x1p-64f);
    }
};

// Two numbers; `a` in the lower byte.
__device__ inline uint32_t two_to_fp8(float a, float b) {
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
    return both;
}

// fp8(y / scale) of eight numbers.
__device__ inline uint2 quantize(const float2 (&y)[4], const QuantizationScale& s) {
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

}  // namespace
}  // namespace rocm_fp8
