// The course of a Hopper GEMM kernel: one warpgroup loads, the others multiply, tile after tile; and the main loop of FP8
// with scales of blocks, which dense and grouped kernels have in common.
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

// What a multiplying warpgroup has of a stage: its own wide rows and all narrow ones; or, as V = Half of S, the first 64
// wide rows and its half of the narrow ones.
template <class V, class S>
struct Operands {
    static constexpr bool kHalf = !S::kSwapped && V::kGroups < S::kGroups;
    int back;                               // rows
    uint32_t wide_back = 0, narrow_on = 0;  // descriptors

    __device__ explicit Operands(int warpgroup) : back(kHalf ? warpgroup * S::kTiles * kWgmmaRows : 0) {
        if constexpr (kHalf) {
            wide_back = further(0, uint32_t(back * kStep));
            narrow_on = further(0, uint32_t(warpgroup * V::kNarrow * kStep));
        }
    }
};

template <class T>
__device__ inline void clear(T& sums) {
#pragma unroll
    for (auto& tile : sums)
        for (auto& group : tile)
            for (auto& v : group) v = 0;
}

// sums += scales * block, of one tile of 64 wide rows. of: of the thread's two wide rows, for each range of narrow rows;
// narrow: swapped forms multiply it by each narrow row's own.
template <class V, class Scales>
__device__ inline void add_scaled(float (&sums)[V::kGroups][4], const float (&block)[V::kGroups][4],
                                  const float (&of)[Scales::kRanges][2], const float* narrow) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < V::kGroups; ++i) {
        const float (&wide)[2] = of[Scales::range_of(i)];
        float scale[4] = {wide[0], wide[0], wide[1], wide[1]};
        if constexpr (V::kSwapped) {
            const float2 own = *reinterpret_cast<const float2*>(narrow + 8 * i + 2 * t);
            scale[0] *= own.x, scale[1] *= own.y, scale[2] *= own.x, scale[3] *= own.y;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][e] = __fmaf_rn(scale[e], block[i][e], sums[i][e]);
    }
}

// FP8: of each block of 128 k the products' sum, then its scales. V: the shape S, or fewer tiles of it.
//
//     Scales::kRanges, range_of(i)          ranges of narrow rows, and the one of group i
//     scales.read(of, factors, row, tile)   of the thread's wide rows `row` and row + 8, in the tile-th 64 of them
//     scales.narrow(factors)                swapped: of the narrow rows
template <class V, class S, class Scales>
__device__ inline void multiply_blocks(typename S::Memory& ring, int steps, Reading<S>& reading,
                                       const Operands<V, S>& operands, const Scales& scales,
                                       float (&sums)[V::kTiles][V::kGroups][4]) {
    const int lane = threadIdx.x % kWarp;
    clear(sums);
    const Position<S::kStages>& at = reading.at;
    bool filled = completed(&ring.full[at.stage], at.parity);
    for (int step = 0; step < steps; ++step) {
        if (!filled) wait_for(&ring.full[at.stage], at.parity);
        const typename S::Factors& factors = ring.factors[at.stage];
        const uint32_t narrow = reading.narrow + operands.narrow_on, wide = reading.wide - operands.wide_back;
        Barrier* const empty = &ring.empty[at.stage];
        reading.advance();
        // Read before the multiplications begin: the compiler would read them between two of these.
        float of[V::kTiles][Scales::kRanges][2];
#pragma unroll
        for (int i = 0; i < V::kTiles; ++i)
            scales.read(of[i], factors, reading.row - operands.back + i * kWgmmaRows, i);
#pragma unroll
        for (int i = 0; i < V::kTiles; ++i) {
            float block[V::kGroups][4];
            begin_multiplications();
#pragma unroll
            for (int k = 0; k < kStep; k += kWgmmaK)
                multiply_async(block, further(wide, i * kWgmmaRows * kStep + k), further(narrow, k), k > 0);
            commit_multiplications();
            wait_for_multiplications<0>();
            if (i + 1 == V::kTiles) {
                if (!S::kSwapped) {
                    // Barrier: all lanes have read their scales, and the warp's multiplications have read the operands.
                    __syncwarp();
                    arrive_if(lane == 0, empty);
                }
                // Asked for while the sums are added. After the last block it is about the next tile's first.
                filled = completed(&ring.full[at.stage], at.parity);
            }
            add_scaled<V, Scales>(sums[i], block, of[i], scales.narrow(factors));
        }
        if (S::kSwapped) {
            // Barrier: the same, of the narrow rows' scales.
            __syncwarp();
            arrive_if(lane == 0, empty);
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::tiles
