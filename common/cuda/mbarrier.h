// mbarriers: barriers in shared memory (Hopper and later) that count bytes as well as threads. The bytes come from TMA,
// or from other CTAs of the cluster.
#pragma once

#include "cluster.h"

namespace rocm_fp8 {
namespace {

// A phase completes when `arrivals` threads and all announced bytes have arrived. Then the next phase begins, with the
// parity flipped.
using Barrier = uint64_t;

__device__ inline void make_barrier(Barrier* barrier, uint32_t arrivals) {
    ROCM_FP8_HOPPER("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialised mbarriers visible to TMA, and to CTAs of the cluster that wait for arrive_at_cluster_start().
__device__ inline void publish_barriers() { ROCM_FP8_HOPPER("fence.mbarrier_init.release.cluster;" :: : "memory"); }

__device__ inline void arrive(Barrier* barrier) {
    ROCM_FP8_HOPPER("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// The same where `is`: one instruction with a predicate, where the compiler would make a branch of an `if`.
__device__ inline void arrive_if(bool is, Barrier* barrier) {
    ROCM_FP8_HOPPER("{\n .reg .pred p;\n setp.ne.b32 p, %1, 0;\n @p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(
                        shared_address(barrier)),
                    "r"(int(is)) : "memory");
}
__device__ inline void arrive_expecting(Barrier* barrier, uint32_t bytes) {
    ROCM_FP8_HOPPER("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                    "r"(bytes) : "memory");
}
// Whether the phase of that parity has completed. Does not wait.
__device__ inline bool completed(Barrier* barrier, uint32_t parity) {
    uint32_t done = 1;
    ROCM_FP8_HOPPER(
        "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(
            done) : "r"(shared_address(barrier)),
        "r"(parity) : "memory");
    return done;
}
// Waits until the phase of that parity has completed; the data that it counted are then visible. The instruction itself
// waits for a limited time, hence the loop. It acquires at CTA scope, because all data arrive in the CTA's own shared
// memory. Cluster scope would invalidate the L1 cache.
__device__ inline void wait_for(Barrier* barrier, uint32_t parity) {
    uint32_t done = 1;
    do {
        ROCM_FP8_HOPPER(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(
                done) : "r"(shared_address(barrier)),
            "r"(parity) : "memory");
    } while (!done);
}

// Stores to `address` in another CTA of the cluster. `barrier`, an mbarrier of the same CTA, counts the bytes. The
// sender neither waits nor fences. With plain stores and the cluster's barrier, the release would wait for all writes
// of the thread, which costs 0.3 to 0.5 us (H200).
__device__ inline void send_in_cluster(uint32_t address, float v, uint32_t barrier) {
    ROCM_FP8_HOPPER("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
                    "f"(v), "r"(barrier) : "memory");
}
__device__ inline void send_in_cluster(uint32_t address, float4 v, uint32_t barrier) {
    ROCM_FP8_HOPPER(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            address),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier) : "memory");
}
__device__ inline void send_in_cluster(uint32_t address, int4 v, uint32_t barrier) {
    ROCM_FP8_HOPPER(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            address),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier) : "memory");
}

}  // namespace
}  // namespace rocm_fp8
