// wgmma (Hopper): a warpgroup of 128 threads multiplies tiles in shared memory, asynchronously.
//
//     d[n / 8][4] += a [64, 32] * b [n, 32]^T     FP8, both K-major; d: float32, of 64 rows by n columns
//
// Thread 32 w + 4 g + t of the warpgroup holds rows 16 w + g (d[i][0], d[i][1]) and 16 w + g + 8 (d[i][2], d[i][3]) of
// columns 8 i + 2 t and 8 i + 2 t + 1.
//
// The sums have fewer bits than float32. Before it adds them, the instruction aligns the products and the sum to the
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
#define ROCM_FP8_SUMS(v) "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])

constexpr int kWarpgroup = 128, kWgmmaRows = 64, kWgmmaK = 32;

// The lower half of the descriptor of rows of 128 bytes with TMA's 128-byte swizzle, in groups of 8 rows; the upper half
// is the same for all. The address is a multiple of 1024, or that and a multiple of 32 below 128: k further on. One
// 32-bit addition then makes a descriptor from another: 64-bit ones delay the multiplications.
constexpr uint32_t kSwizzle128 = 1 << 30, kGroupBytes = 1024, kUpperDescriptor = kSwizzle128 | kGroupBytes >> 4;
__device__ inline uint32_t swizzled_rows(const void* p) { return 1 << 16 | (shared_address(p) & 0x3FFFF) >> 4; }
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

// Registers of a warpgroup's threads: those that load need few, and leave them to those that multiply.
template <int kCount>
__device__ inline void take_registers() {
    ROCM_FP8_WGMMA("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void leave_registers() {
    ROCM_FP8_WGMMA("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// add: false starts from zero.
__device__ inline void multiply_async(float (&d)[2][4], uint32_t a, uint32_t b, bool add) {
    ROCM_FP8_WGMMA(
        "{\n .reg .pred p;\n setp.ne.b32 p, %10, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7}"
        ", %8, %9, p, 1, 1;\n}" : ROCM_FP8_SUMS(d[0]),
        ROCM_FP8_SUMS(d[1]) : "l"(whole_descriptor(a)), "l"(whole_descriptor(b)), "r"(int(add)));
}

__device__ inline void multiply_async(float (&d)[4][4], uint32_t a, uint32_t b, bool add) {
    ROCM_FP8_WGMMA(
        "{\n .reg .pred p;\n setp.ne.b32 p, %18, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
        ", %16, %17, p, 1, 1;\n}" : ROCM_FP8_SUMS(d[0]),
        ROCM_FP8_SUMS(d[1]), ROCM_FP8_SUMS(d[2]), ROCM_FP8_SUMS(d[3]) : "l"(whole_descriptor(a)),
        "l"(whole_descriptor(b)), "r"(int(add)));
}

__device__ inline void multiply_async(float (&d)[8][4], uint32_t a, uint32_t b, bool add) {
    ROCM_FP8_WGMMA(
        "{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
        ", %32, %33, p, 1, 1;\n}" : ROCM_FP8_SUMS(d[0]),
        ROCM_FP8_SUMS(d[1]), ROCM_FP8_SUMS(d[2]), ROCM_FP8_SUMS(d[3]), ROCM_FP8_SUMS(d[4]), ROCM_FP8_SUMS(d[5]),
        ROCM_FP8_SUMS(d[6]), ROCM_FP8_SUMS(d[7]) : "l"(whole_descriptor(a)), "l"(whole_descriptor(b)), "r"(int(add)));
}

__device__ inline void multiply_async(float (&d)[12][4], uint32_t a, uint32_t b, bool add) {
    ROCM_FP8_WGMMA(
        "{\n .reg .pred p;\n setp.ne.b32 p, %50, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}"
        ", %48, %49, p, 1, 1;\n}" : ROCM_FP8_SUMS(d[0]),
        ROCM_FP8_SUMS(d[1]), ROCM_FP8_SUMS(d[2]), ROCM_FP8_SUMS(d[3]), ROCM_FP8_SUMS(d[4]), ROCM_FP8_SUMS(d[5]),
        ROCM_FP8_SUMS(d[6]), ROCM_FP8_SUMS(d[7]), ROCM_FP8_SUMS(d[8]), ROCM_FP8_SUMS(d[9]), ROCM_FP8_SUMS(d[10]),
        ROCM_FP8_SUMS(d[11]) : "l"(whole_descriptor(a)), "l"(whole_descriptor(b)), "r"(int(add)));
}

__device__ inline void multiply_async(float (&d)[14][4], uint32_t a, uint32_t b, bool add) {
    ROCM_FP8_WGMMA(
        "{\n .reg .pred p;\n setp.ne.b32 p, %58, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n112k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55}"
        ", %56, %57, p, 1, 1;\n}" : ROCM_FP8_SUMS(d[0]),
        ROCM_FP8_SUMS(d[1]), ROCM_FP8_SUMS(d[2]), ROCM_FP8_SUMS(d[3]), ROCM_FP8_SUMS(d[4]), ROCM_FP8_SUMS(d[5]),
        ROCM_FP8_SUMS(d[6]), ROCM_FP8_SUMS(d[7]), ROCM_FP8_SUMS(d[8]), ROCM_FP8_SUMS(d[9]), ROCM_FP8_SUMS(d[10]),
        ROCM_FP8_SUMS(d[11]), ROCM_FP8_SUMS(d[12]), ROCM_FP8_SUMS(d[13]) : "l"(whole_descriptor(a)),
        "l"(whole_descriptor(b)), "r"(int(add)));
}

__device__ inline void multiply_async(float (&d)[16][4], uint32_t a, uint32_t b, bool add) {
    ROCM_FP8_WGMMA(
        "{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
        ", %64, %65, p, 1, 1;\n}" : ROCM_FP8_SUMS(d[0]),
        ROCM_FP8_SUMS(d[1]), ROCM_FP8_SUMS(d[2]), ROCM_FP8_SUMS(d[3]), ROCM_FP8_SUMS(d[4]), ROCM_FP8_SUMS(d[5]),
        ROCM_FP8_SUMS(d[6]), ROCM_FP8_SUMS(d[7]), ROCM_FP8_SUMS(d[8]), ROCM_FP8_SUMS(d[9]), ROCM_FP8_SUMS(d[10]),
        ROCM_FP8_SUMS(d[11]), ROCM_FP8_SUMS(d[12]), ROCM_FP8_SUMS(d[13]), ROCM_FP8_SUMS(d[14]),
        ROCM_FP8_SUMS(d[15]) : "l"(whole_descriptor(a)), "l"(whole_descriptor(b)), "r"(int(add)));
}

__device__ inline void multiply_async(float (&d)[18][4], uint32_t a, uint32_t b, bool add) {
    ROCM_FP8_WGMMA(
        "{\n .reg .pred p;\n setp.ne.b32 p, %74, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n144k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71}"
        ", %72, %73, p, 1, 1;\n}" : ROCM_FP8_SUMS(d[0]),
        ROCM_FP8_SUMS(d[1]), ROCM_FP8_SUMS(d[2]), ROCM_FP8_SUMS(d[3]), ROCM_FP8_SUMS(d[4]), ROCM_FP8_SUMS(d[5]),
        ROCM_FP8_SUMS(d[6]), ROCM_FP8_SUMS(d[7]), ROCM_FP8_SUMS(d[8]), ROCM_FP8_SUMS(d[9]), ROCM_FP8_SUMS(d[10]),
        ROCM_FP8_SUMS(d[11]), ROCM_FP8_SUMS(d[12]), ROCM_FP8_SUMS(d[13]), ROCM_FP8_SUMS(d[14]), ROCM_FP8_SUMS(d[15]),
        ROCM_FP8_SUMS(d[16]), ROCM_FP8_SUMS(d[17]) : "l"(whole_descriptor(a)), "l"(whole_descriptor(b)), "r"(int(add)));
}

__device__ inline void multiply_async(float (&d)[24][4], uint32_t a, uint32_t b, bool add) {
    ROCM_FP8_WGMMA(
        "{\n .reg .pred p;\n setp.ne.b32 p, %98, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}"
        ", %96, %97, p, 1, 1;\n}" : ROCM_FP8_SUMS(d[0]),
        ROCM_FP8_SUMS(d[1]), ROCM_FP8_SUMS(d[2]), ROCM_FP8_SUMS(d[3]), ROCM_FP8_SUMS(d[4]), ROCM_FP8_SUMS(d[5]),
        ROCM_FP8_SUMS(d[6]), ROCM_FP8_SUMS(d[7]), ROCM_FP8_SUMS(d[8]), ROCM_FP8_SUMS(d[9]), ROCM_FP8_SUMS(d[10]),
        ROCM_FP8_SUMS(d[11]), ROCM_FP8_SUMS(d[12]), ROCM_FP8_SUMS(d[13]), ROCM_FP8_SUMS(d[14]), ROCM_FP8_SUMS(d[15]),
        ROCM_FP8_SUMS(d[16]), ROCM_FP8_SUMS(d[17]), ROCM_FP8_SUMS(d[18]), ROCM_FP8_SUMS(d[19]), ROCM_FP8_SUMS(d[20]),
        ROCM_FP8_SUMS(d[21]), ROCM_FP8_SUMS(d[22]), ROCM_FP8_SUMS(d[23]) : "l"(whole_descriptor(a)),
        "l"(whole_descriptor(b)), "r"(int(add)));
}

#undef ROCM_FP8_SUMS

}  // namespace
}  // namespace rocm_fp8
