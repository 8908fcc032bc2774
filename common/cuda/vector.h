// Accesses of 16 bytes, and sums over a warp.
#pragma once

#include <cstdint>

namespace rocm_fp8 {
namespace {

constexpr int kWarp = 32, kLanes = kWarp;
constexpr uint32_t kWholeWarp = 0xFFFFFFFFu;

template <class T>
__device__ inline const T* global(const void* p) {
    return static_cast<const T*>(p);
}
template <class T>
__device__ inline T* global(void* p) {
    return static_cast<T*>(p);
}

// Bytes beyond p.
__device__ inline const void* offset(const void* p, int64_t bytes) { return static_cast<const char*>(p) + bytes; }
__device__ inline void* offset(void* p, int64_t bytes) { return static_cast<char*>(p) + bytes; }

// Volatile: in program order, so that all of a thread's loads are in flight before the first is used. Not ld.global.nc,
// which promises that nobody writes the memory while this kernel runs: it may start before the one that does has ended.
// (Keeping what is read once out of L1 was 5 % slower on an H200, and hints about L2 made no difference.)
__device__ inline uint4 load(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
// The same at an offset; a vector as HIP names it, too.
using Vector128 = uint4;
using VectorIndex = int64_t;
__device__ inline Vector128 load_vector(const void* base, VectorIndex byte) { return load(offset(base, byte)); }
__device__ inline void store(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }
__device__ inline void store(void* p, uint2 v) { *static_cast<uint2*>(p) = v; }

__device__ inline uint32_t& word(uint4& v, int i) { return (&v.x)[i]; }
__device__ inline uint32_t word(const uint4& v, int i) { return (&v.x)[i]; }
__device__ inline uint32_t word(const uint2& v, int i) { return (&v.x)[i]; }

// Each lane's sums of kValues numbers over the warp: neighbours, then neighbours of pairs, and so on: one tree for each
// value, whatever kValues is. All lanes have all sums.
template <int kValues>
__device__ inline void sum_over_warp(float (&v)[kValues]) {
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
#pragma unroll
        for (float& value : v) value += __shfl_xor_sync(kWholeWarp, value, distance);
    }
}

// The same for one number. Every lane has it; what is the same on all chips asks kLaneOfSum alone.
constexpr int kLaneOfSum = 0;
__device__ inline float sum_over_lanes(float v) {
    float sum[1] = {v};
    sum_over_warp(sum);
    return sum[0];
}

// A value that is the same in all lanes.
__device__ inline int uniform(int v) { return v; }

}  // namespace
}  // namespace rocm_fp8
