// Accesses to memory that several GPUs, or a GPU and the host, use at the same time. CUDA has the same names.
//
// LLVM's memory model for gfx942 and gfx950: sc0 sc1 is the scope of the system, sc1 alone that of the device.
#pragma once

#include "../../hip/buffer.h"

namespace rocm_fp8::comm {
namespace {

constexpr int kSystemAccess = 1 | 16;  // sc0 sc1

// System scope, relaxed: executed as often as written, in order for each address, not ordered among addresses.
//
// Relaxed atomics are that, but have 8 bytes at most; a volatile store of 16 is waited for at once. So this is
// assembly. s_nop: the next vector instruction may write v's registers. The compiler puts these states behind its own
// wide stores.
__device__ inline void store_system(void* p, Vector128 v) {
    asm volatile("global_store_dwordx4 %0, %1, off sc0 sc1\n\ts_nop 1" ::"v"(p), "v"(v) : "memory");
}
__device__ inline void store_system(void* p, uint64_t v) {
    __hip_atomic_store(global<uint64_t>(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

__device__ inline void store_system(void* p, uint32_t v) {
    __hip_atomic_store(global<uint32_t>(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

// A pointer that is the same in all lanes of a wave, in scalar registers: descriptors need it there.
__device__ inline void* in_all_lanes(void* p) {
    const uint64_t bits = reinterpret_cast<uint64_t>(p);
    const uint32_t low = uniform(uint32_t(bits)), high = uniform(uint32_t(bits >> 32));
    return reinterpret_cast<void*>(uint64_t(high) << 32 | low);
}

// Of a memory that begins at `base`, the same in all lanes. At kNoPlace there are zeros, and stores are dropped,
// without an access. The compiler counts these loads, waits for them where the value is used, and has several in
// flight.
constexpr uint32_t kNoPlace = 0xFFFFFFF0u;
__device__ inline Vector128 load_system(const void* base, uint32_t byte) {
    // The compiler takes memory for unchanged between two loads, but not across this.
    asm volatile("" ::: "memory");
    return Buffer(base, kNoPlace).load<kSystemAccess>(byte);
}
__device__ inline void store_system(void* base, uint32_t byte, Vector128 v) {
    Buffer(base, kNoPlace).store<kSystemAccess>(byte, v);
}
__device__ inline uint64_t load_system_64(const void* p) {
    return __hip_atomic_load(global<uint64_t>(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

// The device's scope, in the rank's own memory.
__device__ inline void store_now(uint32_t* p, uint32_t v) {
    __hip_atomic_store(global<uint32_t>(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ inline uint32_t load_now(const uint32_t* p) {
    return __hip_atomic_load(global<uint32_t>(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// Of what earlier launches have written and this one does not: by one scalar load, as of any input.
__device__ inline uint32_t load_before(const uint32_t* p) {
    return *(__attribute__((address_space(4))) const uint32_t*)(p);
}

__device__ inline uint64_t nanoseconds() {
    constexpr uint64_t kTick = 10;  // the counter's, of 100 MHz on both chips
    return __builtin_amdgcn_s_memrealtime() * kTick;
}
__device__ inline void pause() { __builtin_amdgcn_s_sleep(1); }  // 64 cycles

}  // namespace
}  // namespace rocm_fp8::comm
