// Products of 16 rows of A by 16 rows of B over 32 k of 16-bit numbers, by mma.sync: with B as the wide operand
// (common/cuda/mma.h).
#pragma once

#include "../../common/cuda/mma.h"

namespace rocm_fp8::mx_gemm {
namespace {

template <DType type>
struct Products {
    static constexpr int kSums = 8;
    // Of the lane's sum e.
    static __device__ int row(int e) { return e / 4 * 8 + int(threadIdx.x) % 4 * 2 + e % 2; }
    static __device__ int column(int e) { return int(threadIdx.x) % kWarp / 4 + e / 2 % 2 * 8; }

    // a, b: in shared memory, rows `stride` bytes apart.
    static __device__ void multiply(float (&sums)[kSums], const char* a, const char* b, int stride) {
        const int lane = int(threadIdx.x) % kWarp, at = lane / 4 * stride + lane % 4 * kChunk;
        const auto chunk = [&](const char* from, int row) {
            return *reinterpret_cast<const uint4*>(from + row * stride + at);
        };
        const uint4 wide[2] = {chunk(b, 0), chunk(b, 8)}, narrow[2] = {chunk(a, 0), chunk(a, 8)};
        const auto two = [](const uint4& v, int w) { return Four{word(v, w), word(v, w + 1)}; };
        Sums of[2] = {};
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                if constexpr (type == DType::bf16)
                    multiply_bf16(of[n], two(wide[0], w), two(wide[1], w), two(narrow[n], w));
                else rocm_fp8::multiply(of[n], two(wide[0], w), two(wide[1], w), two(narrow[n], w));
            }
        }
#pragma unroll
        for (int e = 0; e < kSums; ++e) sums[e] = of[e / 4][e % 4];
    }
};

}  // namespace
}  // namespace rocm_fp8::mx_gemm
