// Buffer descriptors: 128-bit accesses with a bounds check in hardware, and offsets of 32 bits.
#pragma once

#include "vector.h"

namespace rocm_fp8 {
namespace {

// Cache policies of an access on gfx942 and gfx950. kNonTemporal (nt) evicts no other data from the caches. kAllChiplets
// (sc1) passes the caches that are not coherent between chiplets.
constexpr int kPlainAccess = 0, kNonTemporal = 2, kAllChiplets = 16;

// Bytes [0, size) from `first` on. Loads beyond give zeros and access no memory; stores beyond are dropped.
struct Buffer {
    __amdgpu_buffer_rsrc_t descriptor;

    __device__ Buffer(const void* first, uint32_t size) {
        constexpr int kRaw32 = 0x00027000;  // data format 32: an offset in bytes, bounds in bytes
        descriptor = __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(first), 0, int(size), kRaw32);
    }
    template <int policy = kPlainAccess>
    __device__ u32x4 load(uint32_t byte) const {
        return __builtin_bit_cast(u32x4, __builtin_amdgcn_raw_buffer_load_b128(descriptor, byte, 0, policy));
    }
    template <int policy = kPlainAccess>
    __device__ u32x2 load_two(uint32_t byte) const {
        return __builtin_bit_cast(u32x2, __builtin_amdgcn_raw_buffer_load_b64(descriptor, byte, 0, policy));
    }
    // One element, of 1 or 4 bytes. `also`: bytes that all lanes add.
    template <class T>
    __device__ uint32_t load_element(uint32_t byte, uint32_t also) const {
        static_assert(sizeof(T) == 1 || sizeof(T) == 4);
        if constexpr (sizeof(T) == 1) return uint8_t(__builtin_amdgcn_raw_buffer_load_b8(descriptor, byte, also, 0));
        return uint32_t(__builtin_amdgcn_raw_buffer_load_b32(descriptor, byte, also, 0));
    }
    template <int policy = kPlainAccess>
    __device__ void store(uint32_t byte, u32x4 v) const {
        using Bits = decltype(__builtin_amdgcn_raw_buffer_load_b128(descriptor, 0, 0, 0));
        __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(Bits, v), descriptor, byte, 0, policy);
    }
    template <int policy = kPlainAccess>
    __device__ void store(uint32_t byte, u32x2 v) const {
        using Bits = decltype(__builtin_amdgcn_raw_buffer_load_b64(descriptor, 0, 0, 0));
        __builtin_amdgcn_raw_buffer_store_b64(__builtin_bit_cast(Bits, v), descriptor, byte, 0, policy);
    }
};

// An offset outside of every buffer. The sum with another offset is outside too (sizes are below 2^30).
constexpr uint32_t kNowhere = 0x40000000u;

}  // namespace
}  // namespace rocm_fp8
