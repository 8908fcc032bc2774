// Accesses to memory that several GPUs, or a GPU and the host, use at the same time. HIP has the same names.
#pragma once

#include "../../cuda/vector.h"

namespace rocm_fp8::comm {
namespace {

// System scope, relaxed: executed as often as written, in order for each address, not ordered among addresses.
__device__ inline void store_system(void* p, Vector128 v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ inline void store_system(void* p, uint64_t v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ inline void store_system(void* p, uint32_t v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ inline Vector128 load_system(const void* p) {
    Vector128 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ inline void* in_all_lanes(void* p) { return p; }

// Of a memory that begins at `base`, the same in all lanes. At kNoPlace there are zeros, and stores are dropped,
// without an access.
constexpr uint32_t kNoPlace = 0xFFFFFFF0u;
__device__ inline Vector128 load_system(const void* base, uint32_t byte) {
    Vector128 v{};
    if (byte != kNoPlace) v = load_system(static_cast<const char*>(base) + byte);
    return v;
}
__device__ inline void store_system(void* base, uint32_t byte, Vector128 v) {
    if (byte != kNoPlace) store_system(static_cast<char*>(base) + byte, v);
}
__device__ inline uint64_t load_system_64(const void* p) {
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

// The device's scope, in the rank's own memory.
__device__ inline void store_now(uint32_t* p, uint32_t v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ inline uint32_t load_now(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// Of what earlier launches have written and this one does not.
__device__ inline uint32_t load_before(const uint32_t* p) { return load_now(p); }

__device__ inline uint64_t nanoseconds() {
    uint64_t v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
    return v;
}
__device__ inline void pause() { __nanosleep(100); }

}  // namespace
}  // namespace rocm_fp8::comm
