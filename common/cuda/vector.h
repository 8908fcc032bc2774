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

// p + bytes.
__device__ inline const void* offset(const void* p, int64_t bytes) { return static_cast<const char*>(p) + bytes; }
__device__ inline void* offset(void* p, int64_t bytes) { return static_cast<char*>(p) + bytes; }

// Volatile keeps program order, so that all of a thread's loads are in flight before the first is used. Not
// ld.global.nc, which promises that nobody writes the memory while this kernel runs: with PDL the previous kernel may
// still write it. Hints that keep single-use data out of L1 are slower (5 %, H200), and hints for L2 make no
// difference.
__device__ inline uint4 load(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ inline float load_float(const void* p) {
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
__device__ inline uint32_t load_byte(const void* p) {
    uint32_t v;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
// A byte or a float, in one register.
__device__ inline uint32_t load_bits(const void* p, bool byte) {
    uint32_t v;
    asm volatile(
        "{\n .reg .pred b;\n setp.ne.b32 b, %2, 0;\n @b ld.global.u8 %0, [%1];\n @!b ld.global.u32 %0, [%1];\n}"
        : "=r"(v)
        : "l"(p), "r"(int(byte)));
    return v;
}
// The same at an offset. HIP sources use the same names.
using Vector128 = uint4;
using VectorIndex = int64_t;
__device__ inline Vector128 load_vector(const void* base, VectorIndex byte) { return load(offset(base, byte)); }
__device__ inline void store(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }
__device__ inline void store(void* p, uint2 v) { *static_cast<uint2*>(p) = v; }

// The names are common with HIP.
__device__ inline float load_scalar(const float* p) { return *p; }
__device__ inline void store_at(void* p, uint2 v) { store(p, v); }
__device__ inline void store_at(void* p, uint4 v) { store(p, v); }
template <class T>
__device__ inline void store_vector(void* base, VectorIndex byte, T v) {
    store(offset(base, byte), v);
}
__device__ inline uint4 joined(uint2 a, uint2 b) { return {a.x, a.y, b.x, b.y}; }

__device__ inline uint32_t& word(uint4& v, int i) { return (&v.x)[i]; }
__device__ inline uint32_t word(const uint4& v, int i) { return (&v.x)[i]; }
__device__ inline void set_word(uint4& v, int i, uint32_t value) { word(v, i) = value; }
__device__ inline uint32_t word(const uint2& v, int i) { return (&v.x)[i]; }

// From here on the compiler has these bits alone: what it has made of them, such as wider numbers, it makes anew where
// it needs it, and does not hold it in registers till then.
__device__ inline void hold_packed(Vector128& v) { asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)); }

// Sums kValues numbers over the lanes of the warp: neighbours, then neighbours of pairs, and so on. Each value has this
// same tree, whatever kValues is. All lanes get all sums; code shared with HIP reads those of lane kLaneOfSum.
constexpr int kLaneOfSum = 0;
template <int kValues>
__device__ inline void sum_over_lanes(float (&v)[kValues]) {
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
#pragma unroll
        for (float& value : v) value += __shfl_xor_sync(kWholeWarp, value, distance);
    }
}

__device__ inline float sum_over_lanes(float v) {
    float sum[1] = {v};
    sum_over_lanes(sum);
    return sum[0];
}
__device__ inline float of_lane_of_sum(float v) { return v; }

// v is the same in either half of each kCount neighbouring lanes: the larger of the two.
template <int kCount>
__device__ inline uint32_t max_with_other_half(uint32_t v) {
    const uint32_t other = __shfl_xor_sync(kWholeWarp, v, kCount / 2);
    return v > other ? v : other;
}

// The largest over each kCount neighbouring lanes, in every one of them.
template <int kCount>
__device__ inline uint32_t max_over_lanes(uint32_t v) {
    if constexpr (kCount == 1) return v;
    else if constexpr (kCount == kWarp) return __reduce_max_sync(kWholeWarp, v);  // one instruction
    else return max_with_other_half<kCount>(max_over_lanes<kCount / 2>(v));
}

// Marks a value that is the same in all lanes (HIP moves it to a scalar register).
__device__ inline int uniform(int v) { return v; }

}  // namespace
}  // namespace rocm_fp8
