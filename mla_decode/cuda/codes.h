// FP8 numbers of the cache, and those of DeepSeek's layout, as 16-bit ones.
#pragma once

#include "../../common/cuda/half_pairs.h"
#include "../../common/cuda/mma.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

// Four matrices of 8 by 8 16-bit numbers, transposed: register i has matrix i's. `row`: the lane's address, of row
// lane % 8 of matrix lane / 8.
__device__ inline void read_transposed(uint32_t (&v)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(row)
                 : "memory");
}

// Two e4m3fn numbers times `scales`, rounded to `type`. float16 has every e4m3fn number; one of bfloat16 needs no
// rounding where the scale is 1.
template <DType type>
__device__ inline uint32_t scaled_pair(uint32_t pair_of_f16, float2 scales) {
    const float2 v = __half22float2(pair<__half2>(pair_of_f16));
    return Pairs<type>::round({v.x * scales.x, v.y * scales.y});
}
template <DType type, bool scales>
__device__ inline uint2 decoded(uint32_t four, float scale) {
    const Four w = widen(four);
    if constexpr (type == DType::f16 && !scales) return {w.low, w.high};
    else return {scaled_pair<type>(w.low, {scale, scale}), scaled_pair<type>(w.high, {scale, scale})};
}

// Eight bfloat16 as eight numbers of `type`.
template <DType type>
__device__ inline uint4 from_bf16(uint4 v) {
    if constexpr (type == DType::f16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) set_word(v, i, Pairs<type>::round(Pairs<DType::bf16>::widen(word(v, i))));
    }
    return v;
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
