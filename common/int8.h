// From float32 to int8, and the scales of int8 values: one text for every backend, host and device.
//
//     int8(v)                  round v to nearest even, saturate to [-128, 127]; NaN gives 0
//     symmetric                q = int8(y / scale)                    y ~ scale * q
//     asymmetric               q = int8(round(y / scale) + zero)      y ~ scale * (q - zero)
//
// A scale that is computed of a row's finite values:
//
//     symmetric                scale = max(max |y|, 1e-10) / 127
//     asymmetric               low = min(0, min y), high = max(0, max y)
//                              scale = max(min(high - low, FLT_MAX), 1e-10) / 255
//                              zero  = int8(-128 - low / scale)
//
// All of it in float32, each operation rounded, quotients too. Infinities saturate; they and NaN do not count in a scale.
//
// The namespace is unnamed for the reason that fp8.h gives.
#pragma once

#include <cmath>

#include "fp8.h"

namespace rocm_fp8 {
namespace {

constexpr float kInt8Low = -128.0f, kInt8High = 127.0f, kSmallestRange = 1e-10f, kLargestRange = 0x1.fffffep127f;

// Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits. On a GPU an instruction may do the same.
ROCM_FP8_HD inline int8_t to_int8(float v) {
    constexpr float kInteger = 0x1.8p23f;
    v = v < kInt8Low ? kInt8Low : v;
    v = v > kInt8High ? kInt8High : v;
    return int8_t(v == v ? float_bits(v + kInteger) & 0xFFu : 0u);
}

ROCM_FP8_HD inline int8_t quantize_int8_one(float y, float scale) { return to_int8(y / scale); }

// NaN gives the zero point.
ROCM_FP8_HD inline int8_t quantize_int8_one(float y, float scale, int32_t zero) {
    const float q = rintf(y / scale);
    return to_int8((q == q ? q : 0.0f) + float(zero));
}

// Of values whose largest finite magnitude is amax.
ROCM_FP8_HD inline float int8_scale(float amax) { return (amax > kSmallestRange ? amax : kSmallestRange) / 127.0f; }

struct Int8Range {
    float scale;
    int32_t zero;
};

// Of values whose smallest and largest finite numbers are low and high; 0 belongs to every range.
ROCM_FP8_HD inline Int8Range int8_range(float low, float high) {
    low = low < 0.0f ? low : 0.0f;
    high = high > 0.0f ? high : 0.0f;
    float range = high - low;
    range = range < kLargestRange ? range : kLargestRange;
    const float scale = (range > kSmallestRange ? range : kSmallestRange) / 255.0f;
    return {scale, to_int8(kInt8Low - low / scale)};
}

}  // namespace

// Where the int8 operators with scales of their own find or write them.
struct Int8Scale {
    const float* scale;   // float32 [1]; or nullptr: a scale is computed of each row, and written
    const int32_t* zero;  // int32 [1], with `scale`; or nullptr: symmetric
    // With scale == nullptr. Row r's scale is at scale_out[r * scale_stride].
    float* scale_out;
    int32_t* zero_out;  // or nullptr: symmetric
    int64_t scale_stride, zero_stride;
};

}  // namespace rocm_fp8
