// Barriers in shared memory (Hopper and later: mbarrier) that count bytes as well as threads: those of the bulk copy engine, and
// those that blocks of a cluster send each other.
#pragma once

#include "cluster.h"

namespace rocm_fp8 {
namespace {

// It is passed when `arrivals` threads have arrived and all bytes announced to it have come; then it starts over, its parity
// flipped.
using Barrier = uint64_t;

__device__ inline void make_barrier(Barrier* barrier, uint32_t arrivals) {
    ROCM_FP8_HOPPER("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes fresh barriers known to the copy engine, and to the blocks of the cluster that wait for arrive_at_cluster_start().
__device__ inline void publish_barriers() { ROCM_FP8_HOPPER("fence.mbarrier_init.release.cluster;" :: : "memory"); }

__device__ inline void arrive(Barrier* barrier) {
    ROCM_FP8_HOPPER("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void arrive_expecting(Barrier* barrier, uint32_t bytes) {
    ROCM_FP8_HOPPER("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                    "r"(bytes) : "memory");
}
// Until the phase of that parity is over: what came by it is there then. (The instruction waits for some time by itself. It acquires
// for the block, as whatever comes lies in the block's own shared memory; for the cluster it would empty the L1 cache.)
__device__ inline void wait_for(Barrier* barrier, uint32_t parity) {
    uint32_t done = 1;
    do {
        ROCM_FP8_HOPPER(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(
                done) : "r"(shared_address(barrier)),
            "r"(parity) : "memory");
    } while (!done);
}

// To an address of another block of the cluster, whose barrier, at an address of the same block, counts the bytes. Nobody waits
// or fences here: with stores and the cluster's barrier instead, whose release waits for all that a thread has written, the sums
// of a split K took 0.3 to 0.5 us longer, and a row spread over a cluster 0.3 us (H200).
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

}  // namespace
}  // namespace rocm_fp8
