// Words that all warps of a cluster get from each other: every warp sends its own to every CTA, and an mbarrier counts
// the bytes.
#pragma once

#include "../../cuda/mbarrier.h"
#include "../../cuda/vector.h"

namespace rocm_fp8 {
namespace {

constexpr int kMostWarpsInCluster = 256;

// So many words of each warp. By one thread of each CTA, before arrive_at_cluster_start.
__device__ inline void expect_words(Barrier* full, int words) {
    make_barrier(full, 1);
    publish_barriers();
    arrive_expecting(full, words * ctas_in_cluster() * (blockDim.x / kWarp) * sizeof(float));
}

// Each warp's words, the same in all of its lanes, to `slots` of every CTA: word v of all warps, then word v + 1. In
// every thread, after wait_for_cluster_start.
template <int kWords>
__device__ inline void exchange_in_cluster(float* slots, const float (&words)[kWords], Barrier* full) {
    const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp, ctas = int(ctas_in_cluster());
    if (lane < ctas) {
        const int slot = int(rank_in_cluster()) * warps + int(threadIdx.x) / kWarp;
        const uint32_t barrier = address_in_cta(full, lane);
#pragma unroll
        for (int v = 0; v < kWords; ++v)
            send_in_cluster(address_in_cta(slots + v * ctas * warps + slot, lane), words[v], barrier);
    }
    // Barrier: the slots are read afterwards by warps and CTAs that did not write them.
    wait_for(full, 0);
}

// The largest of the cluster's values, in every thread.
__device__ inline uint32_t largest_of_cluster(Barrier* full, uint32_t v) {
    __shared__ float maxima[kMostWarpsInCluster];
    const float words[1] = {__uint_as_float(max_over_lanes<kWarp>(v))};
    exchange_in_cluster(maxima, words, full);
    const int count = ctas_in_cluster() * (blockDim.x / kWarp);
    uint32_t largest = 0;
    for (int i = threadIdx.x % kWarp; i < count; i += kWarp) {
        const uint32_t other = __float_as_uint(maxima[i]);
        largest = other > largest ? other : largest;
    }
    return max_over_lanes<kWarp>(largest);
}

}  // namespace
}  // namespace rocm_fp8
