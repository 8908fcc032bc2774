// Online softmax of a row, as both kernels for Hopper keep it.
#pragma once

#include "../../common/cuda/vector.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f, kNoScore = -__builtin_inff();

__device__ inline float exp2_of(float v) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v));
    return e;
}

// Takes another score as a row's largest, if it is. Returns what sums so far are multiplied by: of nothing all is kept.
__device__ inline float raise(float& largest, float score) {
    const float before = largest;
    largest = fmaxf(largest, score);
    return before == kNoScore ? 1.0f : exp2_of(before - largest);
}
// What is taken off scores (in units of log2) before their exponentials.
__device__ inline float base_of(float largest, float lift) { return largest == kNoScore ? 0.0f : largest - lift; }

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
