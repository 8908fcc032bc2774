// The matrix instructions of float16 and bfloat16: v_mfma_f32_16x16x16 and v_mfma_f32_32x32x8, of 8 bytes a lane as
// those of FP8 on gfx942. The way of an operand to them counts bytes of k, so that it is the same for both types.
#pragma once

#include "../types.h"
#include "vector.h"

namespace rocm_fp8 {
namespace {

constexpr int kHalfInstructions = 2;  // on a chunk of 16 bytes

// One of them: 8 bytes a lane.
template <int matrix, DType type, class Sums>
__device__ inline Sums multiply_eight_bytes(long left, long right, Sums c) {
    using Bits = short __attribute__((ext_vector_type(4)));
    using Halves = _Float16 __attribute__((ext_vector_type(4)));
    if constexpr (type == DType::f16) {
        const auto x = __builtin_bit_cast(Halves, left), y = __builtin_bit_cast(Halves, right);
        if constexpr (matrix == 32) return __builtin_amdgcn_mfma_f32_32x32x8f16(x, y, c, 0, 0, 0);
        else return __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, c, 0, 0, 0);
    } else {
        const auto x = __builtin_bit_cast(Bits, left), y = __builtin_bit_cast(Bits, right);
        if constexpr (matrix == 32) return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(x, y, c, 0, 0, 0);
        else return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, c, 0, 0, 0);
    }
}

// The n-th on a chunk.
template <int matrix, DType type, class Sums>
__device__ inline Sums multiply_half(const u32x4& b, const u32x4& a, Sums c, int n) {
    return multiply_eight_bytes<matrix, type>(half_of(b, n), half_of(a, n), c);
}

// Chunks of 16 bytes a lane are multiplied by so many instructions. On gfx950 by one, of twice the k:
// v_mfma_f32_16x16x32 and v_mfma_f32_32x32x16. It adds the products of a chunk at once, so its sums differ from gfx942's
// in their last bits.
#if defined(__gfx950__)
constexpr int kInstructionsOnChunks = 1;
#else
constexpr int kInstructionsOnChunks = kHalfInstructions;
#endif

// The n-th of them, for others to lie between.
template <int matrix, DType type, class Sums>
__device__ inline Sums multiply_part(const u32x4& left, const u32x4& right, Sums c, [[maybe_unused]] int n) {
#if defined(__gfx950__)
    using Bits = __bf16 __attribute__((ext_vector_type(8)));
    using Halves = _Float16 __attribute__((ext_vector_type(8)));
    if constexpr (type == DType::f16) {
        const auto x = __builtin_bit_cast(Halves, left), y = __builtin_bit_cast(Halves, right);
        if constexpr (matrix == 32) return __builtin_amdgcn_mfma_f32_32x32x16_f16(x, y, c, 0, 0, 0);
        else return __builtin_amdgcn_mfma_f32_16x16x32_f16(x, y, c, 0, 0, 0);
    } else {
        const auto x = __builtin_bit_cast(Bits, left), y = __builtin_bit_cast(Bits, right);
        if constexpr (matrix == 32) return __builtin_amdgcn_mfma_f32_32x32x16_bf16(x, y, c, 0, 0, 0);
        else return __builtin_amdgcn_mfma_f32_16x16x32_bf16(x, y, c, 0, 0, 0);
    }
#else
    return multiply_half<matrix, type>(left, right, c, n);
#endif
}
template <int matrix, DType type, class Sums>
__device__ inline Sums multiply_chunks(const u32x4& left, const u32x4& right, Sums c) {
#pragma unroll
    for (int n = 0; n < kInstructionsOnChunks; ++n) c = multiply_part<matrix, type>(left, right, c, n);
    return c;
}

}  // namespace
}  // namespace rocm_fp8
