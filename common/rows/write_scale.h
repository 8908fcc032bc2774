// Access to the operands of a DynamicScale, on whatever computes it.
#pragma once

#include "dynamic_scale.h"
#include "../vendor.h"

namespace rocm_fp8 {
namespace {

ROCM_FP8_DEVICE inline float upper_bound(const DynamicScale& rule) {
    return rule.upper_bound ? load_scalar(rule.upper_bound) : bits_float(0x7F800000u);
}

ROCM_FP8_DEVICE inline void write_scale(const DynamicScale& to, int64_t row, int64_t group, float scale) {
    const int64_t at = row * to.row_stride + group * to.group_stride;
    if (to.exponents) global<uint8_t>(to.data)[at] = uint8_t(float_bits(scale) >> 23);
    else global<float>(to.data)[at] = scale;
}

}  // namespace
}  // namespace rocm_fp8
