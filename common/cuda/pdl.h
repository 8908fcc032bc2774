// Programmatic dependent launch (Hopper and later): a kernel starts while the one before it in the stream ends.
//
//     kernel n      |== work ==========|
//     kernel n + 1        |launch|fetch|wait|== work ==========|
//
// Before it waits, a kernel may fetch its inputs into the L2 cache. That is safe even for inputs that the previous
// kernel still writes, because all writes of the device go through L2. A read into registers or shared memory is not
// safe, unless the caller declares the data constant. On earlier chips everything here compiles to nothing.
#pragma once

#include <cstdint>

#include "hopper.h"

namespace rocm_fp8 {
namespace {

// Waits until all earlier kernels of the stream have ended and their writes are visible. Each thread must call it
// before it writes, or reads data that they may have written.
__device__ inline void wait_for_previous_kernel() { ROCM_FP8_HOPPER("griddepcontrol.wait;" :: : "memory"); }

// The next kernel may start once all CTAs of this one have called this or have ended. It waits for the end of this
// kernel before it reads results.
__device__ inline void let_next_kernel_start() { ROCM_FP8_HOPPER("griddepcontrol.launch_dependents;" :: : "memory"); }

// Fetches [p, p + bytes) into L2; both are multiples of 16 bytes. Called by one thread.
__device__ inline void fetch_to_l2(const void* p, uint32_t bytes) {
    ROCM_FP8_HOPPER("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

// The same for 128 bytes at p.
__device__ inline void fetch_line_to_l2(const void* p) {
    ROCM_FP8_HOPPER("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
}
// And into L1, whatever p's alignment.
__device__ inline void fetch_to_l1(const void* p) { ROCM_FP8_HOPPER("prefetch.global.L1 [%0];" ::"l"(p) : "memory"); }

}  // namespace
}  // namespace rocm_fp8
