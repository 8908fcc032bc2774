// Softmax over tokens that come tile by tile, in the layout of the matrix instructions: of 16 x 16, lane 16 g + j has
// the scores of row j for tokens 4 g ... + 3; of 32 x 32, lane 32 h + j those for 8 i + 4 h ... + 3. It is what the next
// product takes as its second operand.
//
// Exponentials are of differences to a reference, the largest score when it was taken. It is taken anew only where a
// score lies more than kRoom above: then what has been summed is scaled. Otherwise no lane asks another. Each lane sums
// its own tokens' exponentials; the lanes of a row meet at the end.
#pragma once

#include "../../hip/half_pairs.h"

namespace rocm_fp8::attention {
namespace {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147182f;

// The value of lane ^ other.
__device__ inline float of_lane_xor(float v, int other) {
    constexpr uint32_t kLaneBytes = 4;
    uint32_t thread = threadIdx.x;
    have_computed(thread);  // anew in each turn: this is rare
    const int from = int((thread % kWave ^ uint32_t(other)) * kLaneBytes);
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(from, __builtin_bit_cast(int, v)));
}
template <int matrix>
__device__ inline float largest_of_row(float v) {
    if constexpr (matrix == 16) v = __builtin_fmaxf(v, of_lane_xor(v, 16));
    return __builtin_fmaxf(v, of_lane_xor(v, 32));
}
template <int matrix>
__device__ inline float sum_of_row(float v) {
    if constexpr (matrix == 16) v += of_lane_xor(v, 16);
    return v + of_lane_xor(v, 32);
}

// Scores are logarithms to base 2.
template <DType type, int matrix = 16>
struct OnlineSoftmax {
    // Exponentials are at most 2^(kLift + kRoom); f16 has few exponents below 1, and its largest number is 2^16.
    static constexpr float kRoom = 8, kLift = type == DType::f16 ? 6 : 0;
    static constexpr float kNone = -__FLT_MAX__;  // finite: the difference of -infinity to it is -infinity

    float reference = kNone, sum = 0;

    // Takes the reference anew where the largest of a lane's scores asks for it. rescale(factor): of what has been
    // summed.
    template <class Rescale>
    __device__ void refer_to(float largest, const Rescale& rescale) {
        if (any_lane(largest > reference + kRoom + kLift)) [[unlikely]] {
            keep_branch();
            const float row = largest_of_row<matrix>(largest) - kLift;
            // By this row alone, so that its bits do not depend on the wave's other rows.
            const float to = row > reference + kRoom ? row : reference;
            const float factor = __builtin_amdgcn_exp2f(reference - to);
            sum *= factor, reference = to;
            rescale(factor);
        }
    }
    // Rounded to `type` for the product.
    __device__ u32x2 rounded(f32x4 p) {
        sum += (p.x + p.y) + (p.z + p.w);
        return {Pairs<type>::round(f32x2{p.x, p.y}), Pairs<type>::round(f32x2{p.z, p.w})};
    }
    __device__ float exponential(float score) const { return __builtin_amdgcn_exp2f(score - reference); }
    // The whole row's, in each of its lanes.
    __device__ void meet() { sum = sum_of_row<matrix>(sum); }
    // Of the natural logarithm.
    __device__ float lse() const {
        return sum == 0.0f ? -__builtin_inff() : (reference + __builtin_amdgcn_logf(sum)) * kLn2;
    }
};

}  // namespace
}  // namespace rocm_fp8::attention
