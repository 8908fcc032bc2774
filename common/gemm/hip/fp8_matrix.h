// The matrix instructions of FP8: v_mfma_f32_16x16x32_fp8_fp8 and v_mfma_f32_32x32x16_fp8_fp8 on gfx942; on gfx950
// v_mfma_f32_16x16x128_f8f6f4 and v_mfma_f32_32x32x64_f8f6f4, which multiply twice as much in a cycle.
//
// An instruction expects other k of a lane than a fragment of 16-byte chunks has. It gets the chunks' halves in turn:
// that permutes k in the same way in both operands, which changes no dot product.
#pragma once

#include "tile.h"

namespace rocm_fp8::gemm::hip {
namespace {

#if defined(__gfx950__)
constexpr int kChunksAFragment = 2;
constexpr int instructions_on(int chunks) { return chunks / 2; }
#else
constexpr int kChunksAFragment = 1;
constexpr int instructions_on(int chunks) { return 2 * chunks; }
#endif

template <int matrix>
using Sums = float __attribute__((ext_vector_type(matrix == 32 ? 16 : 4)));

// Before vector instructions read sums of matrix instructions. On gfx950 20 wait states have to lie between an instruction
// of 16 passes and a read of its result. clang 22 looks back over 19: where there are just as many, it adds none. It
// does not count those of an asm.
template <class T>
__device__ inline void before_sums_are_read([[maybe_unused]] T& sums) {
#if defined(__gfx950__)
    asm volatile("s_nop 0" : "+v"(sums));
#endif
}

#if defined(__gfx950__)
// Of 32 bytes a lane: e4m3 (0), both, and no scales.
template <int matrix, class Operand>
__device__ inline Sums<matrix> multiply(Operand b, Operand a, Sums<matrix> c) {
    using Words = int __attribute__((ext_vector_type(8)));
    const auto words = [](Operand v) { return __builtin_bit_cast(Words, v); };
    if constexpr (matrix == 32) {
        return __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(words(b), words(a), c, 0, 0, 0, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(words(b), words(a), c, 0, 0, 0, 0, 0, 0);
    }
}
#endif

// The n-th of instructions_on(chunks) instructions on a fragment.
template <int matrix>
__device__ inline Sums<matrix> multiply(const u32x4* b, const u32x4* a, Sums<matrix> c, int n) {
#if defined(__gfx950__)
    const auto two = [&](const u32x4* chunks) {
        return __builtin_shufflevector(chunks[2 * n], chunks[2 * n + 1], 0, 1, 2, 3, 4, 5, 6, 7);
    };
    return multiply<matrix>(two(b), two(a), c);
#else
    const long left = half_of(b[n / 2], n % 2), right = half_of(a[n / 2], n % 2);
    if constexpr (matrix == 32) {
        return __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(left, right, c, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(left, right, c, 0, 0, 0);
    }
#endif
}

}  // namespace
}  // namespace rocm_fp8::gemm::hip
