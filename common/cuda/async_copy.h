// Copies from global to shared memory that pass through no register (cp.async).
#pragma once

#include "mbarrier.h"

namespace rocm_fp8 {
namespace {

// 16 bytes, of which `bytes` are read and the others zeros (Ampere and later). Both addresses are multiples of 16.
__device__ inline void copy_vector_async(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}
// Copies since the last one are a group.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kGroups of the thread's groups are unfinished.
template <int kGroups>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// A float, counted at an mbarrier (Hopper and later).
__device__ inline void copy_float_async(float* to, const void* from) {
    ROCM_FP8_HOPPER("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Arrives at `barrier` when all copies that this thread has begun are complete. The mbarrier counts the thread.
__device__ inline void arrive_after_copies(Barrier* barrier) {
    ROCM_FP8_HOPPER("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

}  // namespace
}  // namespace rocm_fp8
