// The matrix instructions of a wave's rows: keys x queries, values x exponentials. Of 16 rows they are builtins.
//
// Of 32 they are assembly: of builtins the compiler takes all results to the same kind of registers, and moves scores to
// and fro. It sees no wait states of assembly. Keys and queries come from memory, and need none. Values that vector
// instructions turn need two, which are in here; so do exponentials. Those before results are read are in settle().
#pragma once

#include <type_traits>

#include "../../common/gpu/overlap.h"
#include "../../common/hip/half_matrix.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

using f32x16 = float __attribute__((ext_vector_type(16)));

// What an instruction of so many rows adds to.
template <int rows>
using SumOf = std::conditional_t<rows == 32, f32x16, f32x4>;

// This sum is made before later reads of LDS: more of those in flight would take registers that there are not. Assembly
// says so itself.
__device__ inline void made_first(f32x4& sum) { asm volatile("" : "+v"(sum)::"memory"); }
__device__ inline void made_first(f32x16& sum) { asm volatile("" : "+a"(sum)::"memory"); }

// What instructions before have given may be read. states: fewer where others lie between.
template <int states = 15>
__device__ inline void settle() {
    keep_order();
    asm volatile("s_nop %0" ::"n"(states) : "memory");
    keep_order();
}
// Of vector instructions to a matrix instruction.
__device__ inline void settle_operand(u32x4& v) { asm volatile("s_nop 1" : "+v"(v)::"memory"); }

// before: wait states. k: the instruction's. sum: with its kind of registers.
#define ROCM_FP8_WIDE(before, k, sum, added)                                                                           \
    if constexpr (type == DType::f16)                                                                                  \
        asm volatile(before "v_mfma_f32_32x32x" k "_f16 %0, %1, %2, " added : sum : "v"(left), "v"(right) : "memory"); \
    else asm volatile(before "v_mfma_f32_32x32x" k "_bf16 %0, %1, %2, " added : sum : "v"(left), "v"(right) : "memory")

// Keys x queries: instruction n on a chunk, of kInstructionsOnChunks. The first one of all makes the sum: one of zeros
// would be kept in registers for it.
template <DType type>
__device__ inline void multiply_keys(f32x4& scores, u32x4 keys, u32x4 queries, int n, bool first) {
    scores = multiply_part<16, type>(keys, queries, first ? f32x4(0) : scores, n);
    if (n + 1 == kInstructionsOnChunks) made_first(scores);
}
template <DType type>
__device__ inline void multiply_keys(f32x16& scores, u32x4 keys, u32x4 queries, [[maybe_unused]] int n, bool first) {
#if defined(__gfx950__)
#define ROCM_FP8_K "16"
    const u32x4 left = keys, right = queries;
#else
#define ROCM_FP8_K "8"
    const long left = half_of(keys, n), right = half_of(queries, n);
#endif
    if (first) ROCM_FP8_WIDE("", ROCM_FP8_K, "=&v"(scores), "0");
    else ROCM_FP8_WIDE("", ROCM_FP8_K, "+v"(scores), "%0");
#undef ROCM_FP8_K
}

// Values x exponentials: of four tokens a lane, turned in registers, or of eight that come turned from LDS.
template <DType type>
__device__ inline void multiply_values(f32x4& sum, u32x2 left, u32x2 right) {
    sum = multiply_eight_bytes<16, type>(__builtin_bit_cast(long, left), __builtin_bit_cast(long, right), sum);
}
template <DType type>
__device__ inline void multiply_values(f32x4& sum, u32x4 left, u32x4 right) {
    sum = multiply_chunks<16, type>(left, right, sum);
    made_first(sum);
}
template <DType type>
__device__ inline void multiply_values(f32x16& sum, u32x2 left, u32x2 right) {
    ROCM_FP8_WIDE("s_nop 1\n\t", "8", "+a"(sum), "%0");
}
#if defined(__gfx950__)
template <DType type>
__device__ inline void multiply_values(f32x16& sum, u32x4 left, u32x4 right) {
    ROCM_FP8_WIDE("", "16", "+a"(sum), "%0");
}
#endif
#undef ROCM_FP8_WIDE

__device__ inline void clear(f32x4& sum) { sum = f32x4(0); }
// Of 0 * 0 + 0: as numbers of C++ they would be in the other registers first.
__device__ inline void clear(f32x16& sum) {
    asm volatile("s_nop 1\n\tv_mfma_f32_32x32x8_f16 %0, %1, %1, 0" : "=a"(sum) : "v"(0l));
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
