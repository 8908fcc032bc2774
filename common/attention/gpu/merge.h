// Sums of softmax that several workgroups have made, each of its own tokens, become one: by their log-sum-exp, in the
// order of the parts.
#pragma once

#include "../../vendor.h"

namespace rocm_fp8::attention {
namespace {

// kColumns columns of a row: of parts' results, each divided by its own sum of exponentials, whose logarithm is its
// lse.
template <int kColumns>
struct MergedRow {
    float largest, sum, values[kColumns];

    // Of no part.
    __device__ static MergedRow nothing() { return {-__builtin_inff(), 0, {}}; }
    // exp(lse - other), 0 of a part without a visible token. NaN stays.
    __device__ static float weight(float lse, float other) {
        constexpr float kNothing = -__builtin_inff();
        return lse == kNothing ? 0.0f : __expf(lse - other);
    }
    // of: of the column. What lies there counts only where the part has a visible token.
    template <class Of>
    __device__ void add(float lse, const Of& of) {
        add(lse, 1.0f, of);
    }
    __device__ void add(const MergedRow& other) {
        add(other.largest, other.sum, [&](int i) { return other.values[i]; });
    }
    // By the sum, times `scale`.
    __device__ float column(int i) const { return sum == 0.0f ? 0.0f : values[i] / sum; }
    __device__ float lse() const { return sum == 0.0f ? -__builtin_inff() : largest + __logf(sum); }

  private:
    template <class Of>
    __device__ void add(float lse, float share, const Of& of) {
        // NaN, once there, stays the largest: no comparison with it holds.
        const float to = lse != lse || lse > largest ? lse : largest;
        const float kept = weight(largest, to), factor = weight(lse, to);
        const bool counts = !(factor == 0.0f);
        sum = sum * kept + (counts ? share * factor : 0.0f);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) values[i] = values[i] * kept + (counts ? factor * of(i) : 0.0f);
        largest = to;
    }
};

}  // namespace
}  // namespace rocm_fp8::attention
