// A kernel's dynamic shared memory as one structure.
#pragma once

#include <cstdint>

namespace rocm_fp8 {
namespace {

template <class T>
__device__ inline T& dynamic_shared() {
    constexpr int kAlignment = 1024;  // TMA's swizzle needs it
    static_assert(alignof(T) <= kAlignment);
    extern __shared__ __align__(kAlignment) uint8_t rocm_fp8_shared_memory[];
    return *reinterpret_cast<T*>(rocm_fp8_shared_memory);
}

}  // namespace
}  // namespace rocm_fp8
