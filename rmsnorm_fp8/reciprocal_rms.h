// What a row is multiplied by, on the GPUs.
#pragma once

#include "../common/types.h"

namespace rocm_fp8::rms_norm {

// 1 / sqrt(sum / d + epsilon) within an ulp or two: the chip's estimate and one step of Newton's method, seven
// instructions that all of a row waits for. A division and a square root rounded to the last bit are forty.
template <class Machine>
ROCM_FP8_HD inline float reciprocal_rms(float sum, float reciprocal_d, float epsilon, Machine machine) {
    const float v = sum * reciprocal_d + epsilon;
    if (__builtin_expect(!(v >= 0x1p-100f && v <= 0x1p100f), 0)) return 1.0f / machine.sqrt(v);
    const float estimate = machine.rsqrt(v);
    const float error = machine.fma(-v * estimate, estimate, 1.0f);
    return machine.fma(0.5f * estimate, error, estimate);
}

}  // namespace rocm_fp8::rms_norm
