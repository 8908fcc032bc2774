// Split-K: workgroups that share a tile of the result hand their sums over through memory, and the one that arrives
// last adds all parts, in the order of the parts, so that the bits do not depend on which one is last.
//
//     each workgroup   stores its part with sc1 (kAllChiplets), then calls arrives_last()
//     the last one     loads all parts with sc1, adds them, and calls reset()
//
// Parts are handed over by sc1 and a wait, not by the atomic's release. scripts/split_k_gate.py holds the machine code
// of every kernel to that.
#pragma once

#include "../../hip/buffer.h"

namespace rocm_fp8 {

// How K is divided between workgroups, and where those that share a tile store their sums.
struct SplitK {
    int parts;
    float* partial;     // [tiles][parts] and a tile's layout, which is the kernel's; unused where parts == 1
    uint32_t* arrived;  // [tiles], all zero before and after a launch
};

namespace {

// Whether this workgroup is the last of `parts` to arrive at a counter, which is zero before the first one. `before`: a
// word of LDS that nothing else uses in the meantime.
__device__ inline bool arrives_last(uint32_t* arrived, int parts, uint32_t& before) {
    // Barrier: a wave's part, stored with sc1, is in memory before the barrier.
    constexpr int kVmcnt0 = 0x0F70;  // vmcnt(0) alone: expcnt and lgkmcnt at their largest
    asm volatile("" ::: "memory");
    __builtin_amdgcn_s_waitcnt(kVmcnt0);
    // Barrier: the parts of all waves are stored before one lane counts for them.
    __syncthreads();
    if (threadIdx.x == 0) {
        // Acquire, at agent scope: vmcnt(0) and buffer_inv sc1 after the atomic, so that this compute unit reads the
        // others' parts from memory. Release: buffer_wbl2 sc1 before the atomic. The compiler (clang 22) puts no wait
        // between the two, so the atomic may count before the write-back has ended. The parts do not need it: the wait
        // above has seen them in memory. Nothing hands over what is stored without sc1.
        before = __hip_atomic_fetch_add(arrived, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
    }
    // Barrier: `before` is read by all; no part of another workgroup is read before the acquire.
    __syncthreads();
    return before == uint32_t(parts - 1);
}
__device__ inline bool arrives_last(uint32_t* arrived, int parts) {
    __shared__ uint32_t before;
    return arrives_last(arrived, parts, before);
}

// By the last one: zero again, for the next launch.
__device__ inline void reset(uint32_t* arrived) {
    if (threadIdx.x == 0) __hip_atomic_store(arrived, 0u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

}  // namespace
}  // namespace rocm_fp8
