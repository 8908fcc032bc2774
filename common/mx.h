// The OCP microscaling formats: blocks of 32 numbers with a common power of two.
//
// MXFP4: e2m1 codes of 4 bits (a sign, magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6), two a byte, the even one in the low half. Code
// 8 is -0. MXFP8: e4m3, of a device that has e4m3fnuz that. Scales: e8m0, a byte s a block: 2^(s - 127); 255 is NaN.
#pragma once

#include "fp8.h"

namespace rocm_fp8 {

constexpr int kMxBlock = 32;

namespace {

ROCM_FP8_HD constexpr uint32_t e2m1_bits(uint32_t code) {
    const uint32_t exponent = code >> 1 & 3, mantissa = code & 1;
    const uint32_t magnitude = exponent ? (exponent + 126) << 23 | mantissa << 22 : mantissa ? 126u << 23 : 0;
    return (code & 8) << 28 | magnitude;
}
// The number of the low four bits.
ROCM_FP8_HD inline float e2m1_value(uint32_t code) { return bits_float(e2m1_bits(code)); }

}  // namespace
}  // namespace rocm_fp8
