// Thread-block clusters (Hopper and later): CTAs that run at the same time and access each other's shared memory.
#pragma once

#include <cstdint>

#include "hopper.h"

namespace rocm_fp8 {
namespace {

__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ inline uint32_t rank_in_cluster() {
    uint32_t rank = 0;
    ROCM_FP8_HOPPER("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ inline uint32_t ctas_in_cluster() {
    uint32_t ctas = 1;
    ROCM_FP8_HOPPER("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
    return ctas;
}

// The cluster's barrier in two halves. After it, all CTAs of the cluster run, so that their shared memory may be
// written, and mbarriers published by publish_barriers() are visible. It orders nothing else: a release would wait for
// all writes of the thread.
__device__ inline void arrive_at_cluster_start() {
    ROCM_FP8_HOPPER("barrier.cluster.arrive.relaxed.aligned;" :: : "memory");
}
__device__ inline void wait_for_cluster_start() {
    ROCM_FP8_HOPPER("barrier.cluster.wait.acquire.aligned;" :: : "memory");
}

// The address of the same variable in the shared memory of the cluster's CTA `rank`.
__device__ inline uint32_t address_in_cta(const void* p, uint32_t rank) {
    uint32_t address = 0;
    ROCM_FP8_HOPPER("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
    return address;
}

}  // namespace
}  // namespace rocm_fp8
