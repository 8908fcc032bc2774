// Division of indices on chips that have no integer division.
#pragma once

#include "types.h"

namespace rocm_fp8 {

// n / divisor for 0 <= n < 2^31 by one multiplication and a shift (Granlund and Montgomery, 1994).
struct Divider {
    uint32_t divisor, factor, shift;
};
constexpr Divider divider_by(uint32_t divisor) {
    uint32_t bits = 0;  // 2^bits >= divisor
    while ((uint64_t(1) << bits) < divisor) ++bits;
    const uint64_t factor = ((uint64_t(1) << (31 + bits)) + divisor - 1) / divisor;
    return {divisor, uint32_t(factor), bits};
}
ROCM_FP8_HD constexpr uint32_t divide(uint32_t n, Divider by) {
    return uint32_t((uint64_t(n) * by.factor) >> 31 >> by.shift);
}

}  // namespace rocm_fp8
