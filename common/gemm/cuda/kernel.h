// The course of a Hopper GEMM kernel: one warpgroup loads, the others multiply, tile after tile.
#pragma once

#include "../../cuda/pdl.h"
#include "../../cuda/shared_memory.h"
#include "cluster_sum.h"
#include "feed.h"

namespace rocm_fp8::tiles {
namespace {

//     feed_more(shared, part)                  warps 1 to 3 of the loading warpgroup
//     multiply(shared, part, reading, first_narrow, sums)
//     store(shared, sums, tile)
template <class S, class T, class FeedMore, class Multiply, class Store>
__device__ inline void run(int64_t k, bool constant_b, const CUtensorMap* wide, const CUtensorMap* narrow,
                           const Tiling& tiling, const FeedMore& feed_more, const Multiply& multiply,
                           const Store& store) {
    auto& shared = dynamic_shared<typename S::Memory>();
    const int warp = threadIdx.x / kWarp;
    const int index_of_part = tiling.splits > 1 ? rank_in_cluster() : 0;
    const Part part(k, index_of_part, tiling.splits);
    if (threadIdx.x == 0) start_ring<S>(shared, wide, narrow, index_of_part, tiling.splits);
    // Barrier: mbarriers are used below by threads that did not initialise them.
    __syncthreads();
    // Every warp arrives at the cluster's barrier once, and waits before it ends. Where those that load did neither, a
    // launch never ended (H200). Sums apart from the ring need no more than that all CTAs run: all arrive here.
    // Otherwise a warp arrives when it has left the ring.
    const bool meets = S::kSplits && tiling.splits > 1;
    if (meets && S::kSumsApart) arrive_at_cluster_start();
    if (constant_b) let_next_kernel_start();

    if (warp < kWarpgroup / kWarp) {
        if constexpr (S::kManyRegisters > 0) leave_registers<S::kFewRegisters>();
        if (warp == 0) {
            if (elected()) feed<S>(shared, constant_b, wide, narrow, tiling, part);
        } else {
            feed_more(shared, part);
        }
        if (meets) {
            __syncwarp();
            if (!S::kSumsApart) arrive_at_cluster_start();
            wait_for_cluster_start();
        }
    } else {
        if constexpr (S::kManyRegisters > 0) take_registers<S::kManyRegisters>();
        wait_for_previous_kernel();
        // Without the promise no launch may start before the writer of b has ended: it may have the promise.
        if (!constant_b) let_next_kernel_start();
        Reading<S> reading(shared);
        for (Tiles tiles(tiling); tiles.left(); tiles.advance()) {
            const gemm::TileAt at = tiling.at(tiles.next);
            const int64_t first = tiling.first_row(at.down), next = tiling.first_row(at.down + 1);
            const int64_t end = next < tiling.wide_rows ? next : tiling.wide_rows;
            T sums[S::kTiles][S::kGroups][4];
            multiply(shared, part, reading, at.across * S::kNarrow, sums);
            int from = 0, to = S::kAllGroups;
            if constexpr (S::kSplits) {
                if (tiling.splits > 1) {
                    add_over_cluster<S>(shared, index_of_part, tiling.splits, sums);
                    from = first_group<S>(index_of_part, tiling.splits);
                    to = first_group<S>(index_of_part + 1, tiling.splits);
                }
            }
            store(shared, sums, OwnTile{first, end, int64_t(at.across) * S::kNarrow, from, to});
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::tiles
