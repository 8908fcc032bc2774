// Products of 16 rows of A by 16 rows of B over 32 k of 16-bit numbers, by v_mfma_f32_16x16x16, on gfx950
// v_mfma_f32_16x16x32. Lane 16 g + j has 8 k from 8 g of row j of either, and sums of A's row j for B's rows 4 g ... + 3.
#pragma once

#include "../../common/hip/half_matrix.h"

namespace rocm_fp8::mx_gemm {
namespace {

template <DType type>
struct Products {
    static constexpr int kSums = 4;
    // Of the lane's sum e.
    static __device__ int row(int) { return int(threadIdx.x) % 16; }
    static __device__ int column(int e) { return int(threadIdx.x) % kWave / 16 * 4 + e; }

    // a, b: in LDS, rows `stride` bytes apart.
    static __device__ void multiply(float (&sums)[kSums], const char* a, const char* b, int stride) {
        const int lane = int(threadIdx.x) % kWave, at = lane % 16 * stride + lane / 16 * 16;
        const auto chunk = [&](const char* from) { return *reinterpret_cast<const u32x4*>(from + at); };
        const f32x4 of = multiply_chunks<16, type>(chunk(b), chunk(a), f32x4(0));
#pragma unroll
        for (int e = 0; e < kSums; ++e) sums[e] = of[e];
    }
};

}  // namespace
}  // namespace rocm_fp8::mx_gemm
