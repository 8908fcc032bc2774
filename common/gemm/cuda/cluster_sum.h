// Split-K over a cluster: each CTA finishes a part of the tile's narrow rows.
#pragma once

#include <type_traits>

#include "ring.h"

namespace rocm_fp8::tiles {
namespace {

// Which CTA of the cluster finishes a group of columns, and where among those that this CTA finishes.
template <class S>
__device__ inline int owner_of(int group, int splits) {
    return ((group + 1) * splits - 1) / S::kAllGroups;
}
template <class S>
__device__ inline int first_group(int part, int splits) {
    return S::kAllGroups * part / splits;
}

// Sums of the cluster's CTAs, in their order: each CTA gets those of the groups that it owns.
template <class S, class T>
__device__ inline void add_over_cluster(typename S::Memory& shared, int part, int splits,
                                        T (&sums)[S::kTiles][S::kGroups][4]) {
    using Four = std::conditional_t<std::is_same_v<T, float>, float4, int4>;
    const int thread = threadIdx.x - kWarpgroup, most = S::most_sent(splits);
    Four* received;
    if constexpr (S::kSumsApart) received = reinterpret_cast<Four*>(shared.sums);
    else received = reinterpret_cast<Four*>(shared.stages);
    // Barrier: the sums overwrite a ring that its CTA may still be reading. Apart from it: that CTA may not run yet.
    if (!S::kSumsApart) arrive_at_cluster_start();
    wait_for_cluster_start();
#pragma unroll
    for (int i = 0; i < S::kAllGroups; ++i) {
        const int owner = owner_of<S>(i, splits), place = i - first_group<S>(owner, splits);
        if (owner == part) continue;
        const T(&v)[4] = sums[i / S::kGroups][i % S::kGroups];
        send_in_cluster(address_in_cta(received + (part * most + place) * S::kConsumers + thread, owner),
                        Four{v[0], v[1], v[2], v[3]}, address_in_cta(&shared.sums_full, owner));
    }
    // All threads wait, also those that finish nothing: a CTA must not end before all data sent to it has arrived.
    wait_for(&shared.sums_full, 0);
#pragma unroll
    for (int i = 0; i < S::kAllGroups; ++i) {
        if (owner_of<S>(i, splits) != part) continue;
        const int place = i - first_group<S>(part, splits);
        T(&own)[4] = sums[i / S::kGroups][i % S::kGroups];
        Four total = {0, 0, 0, 0};
        for (int from = 0; from < splits; ++from) {
            const Four v = from == part ? Four{own[0], own[1], own[2], own[3]}
                                        : received[(from * most + place) * S::kConsumers + thread];
            if (from == 0) total = v;
            else total = {total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w};
        }
        own[0] = total.x, own[1] = total.y, own[2] = total.z, own[3] = total.w;
    }
}

}  // namespace
}  // namespace rocm_fp8::tiles
