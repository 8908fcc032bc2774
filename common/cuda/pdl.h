// Programmatic dependent launch (Hopper and later): a kernel starts while the one before it in the stream ends.
//
//     kernel n      |== work ==========|
//     kernel n + 1        |launch|fetch|wait|== work ==========|
//
// What a kernel does before it waits: fetch its inputs into the L2 cache. That is right even for those that the kernel
// before it is still writing, because L2 is where all writes of the device meet; a read into registers or shared
// memory would not be. What a kernel is told to be constant it may read at once. On chips without it everything here is nothing.
#pragma once

#include <cstdint>

#include "hopper.h"

namespace rocm_fp8 {
namespace {

// All earlier kernels of the stream have ended and what they wrote is seen. Every thread that reads what they may have
// written, or writes, must have passed here.
__device__ inline void wait_for_previous_kernel() { ROCM_FP8_HOPPER("griddepcontrol.wait;" :: : "memory"); }

// The next kernel may start once all blocks of this one have said so, or have ended. It waits for the end of this one
// before it reads results.
__device__ inline void let_next_kernel_start() { ROCM_FP8_HOPPER("griddepcontrol.launch_dependents;" :: : "memory"); }

// Fetches [p, p + bytes) into L2; 16-byte granules. By one thread.
__device__ inline void fetch_to_l2(const void* p, uint32_t bytes) {
    ROCM_FP8_HOPPER("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

// The same for 128 bytes at p.
__device__ inline void fetch_line_to_l2(const void* p) {
    ROCM_FP8_HOPPER("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
}

}  // namespace
}  // namespace rocm_fp8
