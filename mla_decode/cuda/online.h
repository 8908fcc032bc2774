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

// Of a row, in a thread that has some of its tokens.
struct RowState {
    float reference = kNoScore, sum = 0;  // of its exponentials; in units of log2

    // A tile's largest score becomes what exponentials refer to, if it is more than `slack` above. Returns what sums so
    // far are multiplied by.
    __device__ float refer_to(float largest, float slack) {
        const float factor = raise(reference, largest > reference + slack ? largest : reference);
        sum *= factor;
        return factor;
    }
};

// Over the four lanes that have a row.
__device__ inline float max_of_row(float v) {
    v = fmaxf(v, __shfl_xor_sync(kWholeWarp, v, 1));
    return fmaxf(v, __shfl_xor_sync(kWholeWarp, v, 2));
}
__device__ inline float sum_of_row(float v) {
    v += __shfl_xor_sync(kWholeWarp, v, 1);
    return v + __shfl_xor_sync(kWholeWarp, v, 2);
}

// What is taken off scores (in units of log2) before their exponentials.
__device__ inline float base_of(float largest, float lift) { return largest == kNoScore ? 0.0f : largest - lift; }

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
