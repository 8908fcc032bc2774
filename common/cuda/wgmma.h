// wgmma (Hopper): a warpgroup of 128 threads multiplies tiles in shared memory, asynchronously.
//
//     d[n / 8][4] += a [64, 32] * b [n, 32]^T     both K-major; d: of 64 rows by n columns
//
// FP8 with sums in float32, and int8 with sums in int32; bfloat16 and float16 of k 16, the same bytes, in float32.
//
// Thread 32 w + 4 g + t of the warpgroup holds rows 16 w + g (d[i][0], d[i][1]) and 16 w + g + 8 (d[i][2], d[i][3]) of
// columns 8 i + 2 t and 8 i + 2 t + 1.
//
// Sums in float32 have fewer bits. Before it adds them, the instruction aligns the products and the sum to the
// largest of them and keeps 13 bits behind its leading one. So each sum is added up over few k, and then in float32.
#pragma once

#include <cstdint>

#include "cluster.h"

namespace rocm_fp8 {
namespace {

// Only sm_90a has the instructions: other architectures compile to nothing.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ROCM_FP8_WGMMA(...) asm volatile(__VA_ARGS__)
#else
#define ROCM_FP8_WGMMA(...)
#endif

constexpr int kWarpgroup = 128, kWgmmaRows = 64, kWgmmaK = 32;

// The lower half of the descriptor of rows of 128 bytes with TMA's 128-byte swizzle, in groups of 8 rows; the upper half
// is the same for all. The address is a multiple of 1024, or that and a multiple of 32 below 128: k further on. One
// 32-bit addition then makes a descriptor from another: 64-bit ones delay the multiplications.
constexpr uint32_t kSwizzle128 = 1 << 30, kGroupBytes = 1024, kUpperDescriptor = kSwizzle128 | kGroupBytes >> 4;
__device__ inline uint32_t swizzled_rows(const void* p) { return 1 << 16 | (shared_address(p) & 0x3FFFF) >> 4; }
// Of a tile whose k are its rows: groups of 8 of them as above; of each, 64 16-bit numbers that are the operand's columns.
// `apart`: bytes from these columns to the next 64.
__device__ inline uint32_t swizzled_columns(const void* p, uint32_t apart) {
    return apart >> 4 << 16 | (shared_address(p) & 0x3FFFF) >> 4;
}
// The same, `bytes` further on: a multiple of 16.
__device__ constexpr uint32_t further(uint32_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }
__device__ inline uint64_t whole_descriptor(uint32_t lower) { return uint64_t(kUpperDescriptor) << 32 | lower; }

// Before the first multiplication, and after its registers were written by other instructions.
__device__ inline void begin_multiplications() { ROCM_FP8_WGMMA("wgmma.fence.sync.aligned;" :: : "memory"); }
__device__ inline void commit_multiplications() { ROCM_FP8_WGMMA("wgmma.commit_group.sync.aligned;" :: : "memory"); }
// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ inline void wait_for_multiplications() {
    ROCM_FP8_WGMMA("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A barrier of one warpgroup. id: 1 to 15; 0 is __syncthreads()'s.
__device__ inline void warpgroup_meets(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kWarpgroup) : "memory");
}

// The same of several warpgroups.
template <int kThreads>
__device__ inline void warpgroups_meet(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// Registers of a warpgroup's threads: those that load need few, and leave them to those that multiply.
template <int kCount>
__device__ inline void take_registers() {
    ROCM_FP8_WGMMA("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void leave_registers() {
    ROCM_FP8_WGMMA("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// A barrier of several warpgroups.
__device__ inline void warpgroups_meet(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Of the same barrier: this warpgroup does not wait. `threads`: of all, also of those that wait.
__device__ inline void warpgroup_arrives(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers of so many groups of 8 columns in the instruction's text, and as its operands. `type` is "+f" or "+r".
// clang-format off
#define ROCM_FP8_NAMES1 "%0, %1, %2, %3"
#define ROCM_FP8_NAMES2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define ROCM_FP8_NAMES4 ROCM_FP8_NAMES2 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define ROCM_FP8_NAMES8 ROCM_FP8_NAMES4 ", " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ROCM_FP8_NAMES12 ROCM_FP8_NAMES8 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define ROCM_FP8_NAMES14 ROCM_FP8_NAMES12 ", " "%48, %49, %50, %51, %52, %53, %54, %55"
#define ROCM_FP8_NAMES16 ROCM_FP8_NAMES14 ", " "%56, %57, %58, %59, %60, %61, %62, %63"
#define ROCM_FP8_NAMES18 ROCM_FP8_NAMES16 ", " "%64, %65, %66, %67, %68, %69, %70, %71"
#define ROCM_FP8_NAMES24 ROCM_FP8_NAMES18 ", " \
    "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87" ", " \
    "%88, %89, %90, %91, %92, %93, %94, %95"
#define ROCM_FP8_NAMES32 ROCM_FP8_NAMES24 ", " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" ", " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ROCM_FP8_GROUP(type, i) type(d[i][0]), type(d[i][1]), type(d[i][2]), type(d[i][3])
#define ROCM_FP8_PAIR(type, i) ROCM_FP8_GROUP(type, i), ROCM_FP8_GROUP(type, i + 1)
#define ROCM_FP8_SUMS1(type) ROCM_FP8_GROUP(type, 0)
#define ROCM_FP8_SUMS2(type) ROCM_FP8_PAIR(type, 0)
#define ROCM_FP8_SUMS4(type) ROCM_FP8_SUMS2(type), ROCM_FP8_PAIR(type, 2)
#define ROCM_FP8_SUMS8(type) ROCM_FP8_SUMS4(type), ROCM_FP8_PAIR(type, 4), ROCM_FP8_PAIR(type, 6)
#define ROCM_FP8_SUMS12(type) ROCM_FP8_SUMS8(type), ROCM_FP8_PAIR(type, 8), ROCM_FP8_PAIR(type, 10)
#define ROCM_FP8_SUMS14(type) ROCM_FP8_SUMS12(type), ROCM_FP8_PAIR(type, 12)
#define ROCM_FP8_SUMS16(type) ROCM_FP8_SUMS14(type), ROCM_FP8_PAIR(type, 14)
#define ROCM_FP8_SUMS18(type) ROCM_FP8_SUMS16(type), ROCM_FP8_PAIR(type, 16)
#define ROCM_FP8_SUMS24(type) \
    ROCM_FP8_SUMS18(type), ROCM_FP8_PAIR(type, 18), ROCM_FP8_PAIR(type, 20), ROCM_FP8_PAIR(type, 22)
#define ROCM_FP8_SUMS32(type) \
    ROCM_FP8_SUMS24(type), ROCM_FP8_PAIR(type, 24), ROCM_FP8_PAIR(type, 26), ROCM_FP8_PAIR(type, 28), \
    ROCM_FP8_PAIR(type, 30)
// a, b, add: the places of these operands in the text.
#define ROCM_FP8_MULTIPLY(groups, type, k, form, n, a_, b_, add_, more)                                           \
    ROCM_FP8_WGMMA("{\n .reg .pred p;\n setp.ne.b32 p, " add_ ", 0;\n"                                            \
                   " wgmma.mma_async.sync.aligned.m64n" n k "." form " {" ROCM_FP8_NAMES##groups "}, " a_ ", " b_   \
                   ", p" more ";\n}"                                                                              \
                   : ROCM_FP8_SUMS##groups(type)                                                                   \
                   : "l"(whole_descriptor(a)), "l"(whole_descriptor(b)), "r"(int(add)))
#define ROCM_FP8_BOTH_TYPES(groups, n, a_, b_, add_)                                                              \
    __device__ inline void multiply_async(float (&d)[groups][4], uint32_t a, uint32_t b, bool add) {              \
        ROCM_FP8_MULTIPLY(groups, "+f", "k32", "f32.e4m3.e4m3", n, a_, b_, add_, ", 1, 1");                              \
    }                                                                                                             \
    __device__ inline void multiply_async(int32_t (&d)[groups][4], uint32_t a, uint32_t b, bool add) {            \
        ROCM_FP8_MULTIPLY(groups, "+r", "k32", "s32.s8.s8", n, a_, b_, add_, "");                                 \
    }                                                                                                             \
    __device__ inline void multiply_bf16_async(float (&d)[groups][4], uint32_t a, uint32_t b, bool add) {         \
        ROCM_FP8_MULTIPLY(groups, "+f", "k16", "f32.bf16.bf16", n, a_, b_, add_, ", 1, 1, 0, 0");                 \
    }                                                                                                             \
    __device__ inline void multiply_f16_async(float (&d)[groups][4], uint32_t a, uint32_t b, bool add) {          \
        ROCM_FP8_MULTIPLY(groups, "+f", "k16", "f32.f16.f16", n, a_, b_, add_, ", 1, 1, 0, 0");                   \
    }

// add: false starts from zero.
ROCM_FP8_BOTH_TYPES(2, "16", "%8", "%9", "%10")
ROCM_FP8_BOTH_TYPES(4, "32", "%16", "%17", "%18")
ROCM_FP8_BOTH_TYPES(8, "64", "%32", "%33", "%34")
ROCM_FP8_BOTH_TYPES(12, "96", "%48", "%49", "%50")
ROCM_FP8_BOTH_TYPES(14, "112", "%56", "%57", "%58")
ROCM_FP8_BOTH_TYPES(16, "128", "%64", "%65", "%66")
ROCM_FP8_BOTH_TYPES(18, "144", "%72", "%73", "%74")
ROCM_FP8_BOTH_TYPES(24, "192", "%96", "%97", "%98")
ROCM_FP8_BOTH_TYPES(32, "256", "%128", "%129", "%130")

// d += a [64, 16] * b [n, 16]^T, b K-major. a in registers, as below.
#define ROCM_FP8_BY_ROWS(name, type, groups, n, a0, a1, a2, a3, b_, add_)                                         \
    __device__ inline void name(float (&d)[groups][4], const uint32_t (&a)[4], uint32_t b, bool add) {            \
        ROCM_FP8_WGMMA("{\n .reg .pred p;\n setp.ne.b32 p, " add_ ", 0;\n"                                       \
                       " wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" ROCM_FP8_NAMES##groups \
                       "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b_ ", p, 1, 1, 0;\n}"                              \
                       : ROCM_FP8_SUMS##groups("+f")                                                              \
                       : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(whole_descriptor(b)), "r"(int(add)));    \
    }
#define ROCM_FP8_BOTH_BY_ROWS(...)                                     \
    ROCM_FP8_BY_ROWS(multiply_f16_async, "f16", __VA_ARGS__)           \
    ROCM_FP8_BY_ROWS(multiply_bf16_async, "bf16", __VA_ARGS__)
ROCM_FP8_BOTH_BY_ROWS(1, "8", "%4", "%5", "%6", "%7", "%8", "%9")
ROCM_FP8_BOTH_BY_ROWS(2, "16", "%8", "%9", "%10", "%11", "%12", "%13")
ROCM_FP8_BOTH_BY_ROWS(4, "32", "%16", "%17", "%18", "%19", "%20", "%21")
ROCM_FP8_BOTH_BY_ROWS(8, "64", "%32", "%33", "%34", "%35", "%36", "%37")
ROCM_FP8_BOTH_BY_ROWS(16, "128", "%64", "%65", "%66", "%67", "%68", "%69")

// FP8, k 32. a: of rows 16 w + g and 16 w + g + 8 four numbers from k 4 t on, then both of k 4 t + 16.
#define ROCM_FP8_BY_ROWS_OF_FP8(name, type)                                                                        \
    __device__ inline void name(float (&d)[4][4], const uint32_t (&a)[4], uint32_t b, bool add) {                 \
        ROCM_FP8_WGMMA("{\n .reg .pred p;\n setp.ne.b32 p, %21, 0;\n"                                             \
                       " wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3." type " {" ROCM_FP8_NAMES4              \
                       "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}"                                                \
                       : ROCM_FP8_SUMS4("+f")                                                                     \
                       : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(whole_descriptor(b)), "r"(int(add)));    \
    }
ROCM_FP8_BY_ROWS_OF_FP8(multiply_async, "e4m3")
ROCM_FP8_BY_ROWS_OF_FP8(multiply_e5m2_async, "e5m2")

// d[32][4] += a [64, 16] * b [16, 256], b as swizzled_columns has it. a: in registers, in pairs of neighbours in k: rows
// 16 w + g and 16 w + g + 8 of k 2 t, then both of k 2 t + 8; or in shared memory, K-major.
#define ROCM_FP8_BY_COLUMNS(name, type)                                                                           \
    __device__ inline void name(float (&d)[32][4], const uint32_t (&a)[4], uint32_t b) {                          \
        ROCM_FP8_WGMMA("wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" ROCM_FP8_NAMES32         \
                       "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"                                           \
                       : ROCM_FP8_SUMS32("+f")                                                                    \
                       : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(whole_descriptor(b)));                   \
    }                                                                                                             \
    __device__ inline void name(float (&d)[32][4], uint32_t a, uint32_t b) {                                      \
        ROCM_FP8_WGMMA("wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" ROCM_FP8_NAMES32         \
                       "}, %128, %129, 1, 1, 1, 0, 1;"                                                            \
                       : ROCM_FP8_SUMS32("+f")                                                                    \
                       : "l"(whole_descriptor(a)), "l"(whole_descriptor(b)));                                     \
    }
ROCM_FP8_BY_COLUMNS(multiply_bf16_by_columns, "bf16")
ROCM_FP8_BY_COLUMNS(multiply_f16_by_columns, "f16")
// clang-format on

}  // namespace
}  // namespace rocm_fp8
