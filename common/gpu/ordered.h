// Numbers that have the order of floats, for maxima over lanes.
#pragma once

#include "../fp8.h"

namespace rocm_fp8 {
namespace {

// Unsigned. Those of NaN are above or below all numbers; 0 belongs to no number.
__device__ inline uint32_t ordered(float v) {
    const uint32_t bits = float_bits(v);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ inline float of_ordered(uint32_t v) { return bits_float(v >> 31 ? v & 0x7FFFFFFFu : ~v); }

}  // namespace
}  // namespace rocm_fp8
