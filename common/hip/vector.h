// Registers of several elements, and 128-bit accesses to global memory.
//
// Pointers are cast to the global address space here. Through generic pointers the compiler may use flat instructions.
// These also count as LDS accesses, so that waits for LDS would wait for them too.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>

namespace rocm_fp8 {
namespace {

using u32x2 = uint32_t __attribute__((ext_vector_type(2)));
using u32x4 = uint32_t __attribute__((ext_vector_type(4)));
using f32x2 = float __attribute__((ext_vector_type(2)));
using f32x4 = float __attribute__((ext_vector_type(4)));
using i32x4 = int32_t __attribute__((ext_vector_type(4)));

constexpr int kWave = 64, kLanes = kWave;

template <class T>
using Global = __attribute__((address_space(1))) T;

template <class T>
__device__ inline Global<const T>* global(const void* p) {
    return (Global<const T>*)(p);
}
template <class T>
__device__ inline Global<T>* global(void* p) {
    return (Global<T>*)(p);
}

// p + bytes, in 64 bits.
__device__ inline const void* offset(const void* p, int64_t bytes) { return static_cast<const char*>(p) + bytes; }
__device__ inline void* offset(void* p, int64_t bytes) { return static_cast<char*>(p) + bytes; }

template <class T>
__device__ inline T load(const void* base, uint32_t byte) {
    return *global<T>(static_cast<const char*>(base) + byte);
}
// 128 bits, as CUDA names them, too. Offsets of 32 bits leave the base in scalar registers.
using Vector128 = u32x4;
using VectorIndex = uint32_t;
__device__ inline Vector128 load_vector(const void* base, VectorIndex byte) { return load<u32x4>(base, byte); }
// From any address.
__device__ inline u32x4 load_unaligned(const uint8_t* p) {
    struct __attribute__((packed)) AnyAddress {
        u32x4 v;
    };
    return global<AnyAddress>(p)->v;
}
__device__ inline uint32_t word(const u32x4& v, int i) { return v[i]; }
__device__ inline void set_word(u32x4& v, int i, uint32_t value) { v[i] = value; }

// For data that are read once: a non-temporal access does not evict other data from the caches.
template <class T>
__device__ inline T load_once(const void* base, uint32_t byte) {
    return __builtin_nontemporal_load(global<T>(static_cast<const char*>(base) + byte));
}
template <class T>
__device__ inline void store(void* base, uint32_t byte, T value) {
    *global<T>(static_cast<char*>(base) + byte) = value;
}

// The name is common with CUDA.
__device__ inline void store_at(void* p, u32x2 v) { *global<u32x2>(p) = v; }
__device__ inline void store_at(void* p, u32x4 v) { *global<u32x4>(p) = v; }
template <class T>
__device__ inline void store_vector(void* base, VectorIndex byte, T v) {
    store(base, byte, v);
}
__device__ inline u32x4 joined(u32x2 a, u32x2 b) { return {a.x, a.y, b.x, b.y}; }
// The first or the second 8 bytes, as an operand of gfx942's matrix instructions.
__device__ inline long half_of(u32x4 v, int which) {
    return __builtin_bit_cast(long, which ? u32x2{v.z, v.w} : u32x2{v.x, v.y});
}

// Loads one number that all lanes need and no kernel writes, through the scalar cache into a scalar register.
__device__ inline float load_scalar(const float* p) { return *(__attribute__((address_space(4))) const float*)(p); }

// Makes the compiler load a scalar value by this point, not later at its use, where the latency would add up.
template <class T>
__device__ inline void have_now(T& v) {
    asm volatile("" : "+s"(v));
}
// The same of a computed one, in vector registers: it is not computed later, behind a main loop.
template <class T>
__device__ inline void have_computed(T& v) {
    asm volatile("" : "+v"(v));
}

// From here on the compiler has these bits alone: what it has made of them, such as wider numbers, it makes anew where
// it needs it, and does not hold it in registers till then.
__device__ inline void hold_packed(Vector128& v) { asm volatile("" : "+v"(v)); }

// A launch's arguments, loaded anew: kept in scalar registers from the kernel's start on, they would be spilled.
template <class Launch>
__device__ inline const Launch& arguments() {
    auto p = (const __attribute__((address_space(4))) Launch*)__builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(p));
    return *(const Launch*)p;
}

// This thread's number; what is computed from it is computed anew, not kept in registers from the kernel's start on.
__device__ inline int fresh_thread() {
    int thread = threadIdx.x;
    asm volatile("" : "+v"(thread));
    return thread;
}

// Whether v is true in any lane of the wave: for a branch to rare code that the whole wave takes or skips. The branch
// itself has to say that it is unlikely, or the compiler may compute both of its sides.
__device__ inline bool any_lane(bool v) { return __builtin_amdgcn_ballot_w64(v) != 0; }

// In rare code: the compiler must not compute it where it is not needed.
__device__ inline void keep_branch() { asm volatile(""); }

// Moves a value that is the same in all lanes of the wave to a scalar register; the compiler cannot know that it is.
__device__ inline int uniform(int v) { return __builtin_amdgcn_readfirstlane(v); }

}  // namespace
}  // namespace rocm_fp8
