// The exponential of every softmax, for the CPU and the GPUs: the same bits on all of them.
#pragma once

#include "fp8.h"

namespace rocm_fp8 {
namespace {

// exp(x) of x <= 0, within 2 ulp; 0 below -87. NaN stays NaN.
ROCM_FP8_HD inline float exp_of_negative(float x) {
    constexpr float kLeast = -87.0f, kInteger = 0x1.8p23f, kLog2E = 1.44269504f;
    constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;  // the high part times an exponent is exact
    const float bounded = x < kLeast ? kLeast : x;
    const float shifted = bounded * kLog2E + kInteger;
    const float n = shifted - kInteger;
    const float r = (bounded - n * kLn2High) - n * kLn2Low;
    // Taylor, |r| <= 0.35.
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const float power = bits_float((float_bits(shifted) - float_bits(kInteger) + 127u) << 23);
    return x < kLeast ? 0.0f : p * power;
}

}  // namespace
}  // namespace rocm_fp8
