// LDS: when a wave's accesses are done, a barrier for them, and accesses by numbers.
#pragma once

#include "vector.h"

namespace rocm_fp8 {
namespace {

// Waits until the LDS accesses of this wave are done. The compiler does not do so for a barrier: it takes LDS accesses of
// all waves to be executed in the order in which they are issued.
__device__ inline void lds_done() { asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory"); }

// A barrier for what lies in LDS alone: loads of global memory stay in flight.
__device__ inline void lds_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

// LDS by numbers: of a pointer the compiler does not see that an exclusive or leaves the constant part of an address.
__device__ inline uint32_t lds_address(const void* p) {
    return uint32_t(reinterpret_cast<uintptr_t>((const __attribute__((address_space(3))) char*)p));
}
template <class T>
__device__ inline T of_lds(uint32_t address) {
    return *(__attribute__((address_space(3))) const T*)(uintptr_t(address));
}

}  // namespace
}  // namespace rocm_fp8
