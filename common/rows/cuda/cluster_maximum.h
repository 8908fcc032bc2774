// The largest of a cluster's values: every warp sends its own to every CTA, and an mbarrier counts the bytes.
#pragma once

#include "../../cuda/mbarrier.h"
#include "../../cuda/vector.h"

namespace rocm_fp8 {
namespace {

constexpr int kMostWarpsInCluster = 256;

// By one thread of each CTA, before arrive_at_cluster_start.
__device__ inline void expect_maxima(Barrier* full) {
    make_barrier(full, 1);
    publish_barriers();
    arrive_expecting(full, ctas_in_cluster() * (blockDim.x / kWarp) * sizeof(uint32_t));
}

// In every thread. After wait_for_cluster_start.
__device__ inline uint32_t largest_of_cluster(Barrier* full, uint32_t v) {
    __shared__ uint32_t maxima[kMostWarpsInCluster];
    const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp, ctas = int(ctas_in_cluster());
    v = max_over_lanes<kWarp>(v);
    if (lane < ctas) {
        const int slot = int(rank_in_cluster()) * warps + int(threadIdx.x) / kWarp;
        send_in_cluster(address_in_cta(maxima + slot, lane), __uint_as_float(v), address_in_cta(full, lane));
    }
    // Closes: the maxima are read below by warps and CTAs that did not write them.
    wait_for(full, 0);
    uint32_t largest = 0;
    for (int i = lane; i < ctas * warps; i += kWarp) largest = maxima[i] > largest ? maxima[i] : largest;
    return max_over_lanes<kWarp>(largest);
}

}  // namespace
}  // namespace rocm_fp8
