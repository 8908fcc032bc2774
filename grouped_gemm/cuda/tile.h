// The kernel for Hopper: the multiplying warpgroups, and the whole. See grouped_gemm.cu.
#pragma once

#include "../../common/cuda/pdl.h"
#include "../../common/cuda/shared_memory.h"
#include "feed.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

using scaled::TileSums;

// sums += (scale of a row of A * scale of the weights) * block, of one tile of 64 wide rows. of: of the thread's two
// wide rows, where these are A's, the product, for each range of narrow rows; else the weights' scales, and each column
// has its own.
template <class V>
__device__ inline void add_scaled(float (&sums)[V::kGroups][4], const float (&block)[V::kGroups][4],
                                  const float (&of_ranges)[V::kRanges][2], const float* rows) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < V::kGroups; ++i) {
        const float (&of)[2] = of_ranges[i % V::kRanges];
        float scale[4] = {of[0], of[0], of[1], of[1]};
        if constexpr (V::kSwapped) {
            const float2 own = *reinterpret_cast<const float2*>(rows + 8 * i + 2 * t);
            scale[0] = own.x * of[0], scale[1] = own.y * of[0], scale[2] = own.x * of[1], scale[3] = own.y * of[1];
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][e] = __fmaf_rn(scale[e], block[i][e], sums[i][e]);
    }
}

// What a warpgroup multiplies of a stage: its own wide rows by all narrow ones; or, as V = Half, the first 64 wide rows
// by its half of the narrow ones.
template <class V, class S>
struct Operands {
    static constexpr bool kHalf = V::kGroups < S::kGroups;
    int back, wide_back = 0, narrow_on = 0;  // rows; descriptors

    __device__ explicit Operands(int warpgroup) : back(kHalf ? warpgroup * S::kTiles * kWgmmaRows : 0) {
        if constexpr (kHalf) wide_back = back * kStep >> 4, narrow_on = warpgroup * V::kNarrow * kStep >> 4;
    }
};

template <class T>
__device__ inline void clear(T& sums) {
#pragma unroll
    for (auto& tile : sums)
        for (auto& group : tile)
            for (float& v : group) v = 0;
}

// FP8: of each block of 128 k the products' sum, then its scales. V: the shape S, or fewer tiles of it.
template <class V, class S>
__device__ inline void multiply_scaled(typename S::Memory& ring, int steps, Reading<S>& reading,
                                       const Operands<V, S>& operands, TileSums<V>& sums) {
    const int lane = threadIdx.x % kWarp, first = (threadIdx.x - kWarpgroup) / kWarpgroup * S::kTiles;
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
        float scales[V::kTiles][V::kRanges][2];
#pragma unroll
        for (int i = 0; i < V::kTiles; ++i) {
            const int row = reading.row - operands.back + i * kWgmmaRows;
#pragma unroll
            for (int r = 0; r < V::kRanges; ++r) {
                float (&of)[2] = scales[i][r];
                of[0] = of[1] = factors.weights[S::kGated ? r : S::kSwapped ? first + i : 0];
                if constexpr (S::kGated && S::kSwapped) of[1] = factors.weights[1];
                if constexpr (!S::kSwapped) of[0] *= factors.rows[row], of[1] *= factors.rows[row + 8];
            }
        }
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
            add_scaled<V>(sums[i], block, scales[i], factors.rows);
        }
        if (S::kSwapped) {
            // Barrier: the same, of the narrow rows' scales.
            __syncwarp();
            arrive_if(lane == 0, empty);
        }
    }
}

// 16-bit: one sum over k, by the instructions themselves. Those of a step run while the next one's begin.
template <class V, class S>
__device__ inline void multiply_half(typename S::Memory& ring, int steps, Reading<S>& reading,
                                     const Operands<V, S>& operands, TileSums<V>& sums) {
    const int lane = threadIdx.x % kWarp;
    clear(sums);
    const Position<S::kStages>& at = reading.at;
    Barrier* before = nullptr;
    for (int step = 0; step < steps; ++step) {
        wait_for(&ring.full[at.stage], at.parity);
        const uint32_t narrow = reading.narrow + operands.narrow_on, wide = reading.wide - operands.wide_back;
        Barrier* const empty = &ring.empty[at.stage];
        reading.advance();
        begin_multiplications();
#pragma unroll
        for (int k = 0; k < kStep; k += kWgmmaK) {
#pragma unroll
            for (int i = 0; i < V::kTiles; ++i) {
                const uint32_t a = further(wide, i * kWgmmaRows * kStep + k), b = further(narrow, k);
                if constexpr (S::kind == kBf16) multiply_bf16_async(sums[i], a, b, true);
                else multiply_f16_async(sums[i], a, b, true);
            }
        }
        commit_multiplications();
        // Barrier: the multiplications of the step before have read its stage.
        wait_for_multiplications<1>();
        if (before) arrive_if(lane == 0, before);
        before = empty;
    }
    wait_for_multiplications<0>();
    arrive_if(lane == 0, before);
}

template <class V, class S>
__device__ inline void make_tile(typename S::All& shared, const Args& a, const Launch& launch, const Tile& tile,
                                 int warpgroup, Reading<S>& reading) {
    using One = Fewer<V, 1>;
    const Operands<V, S> operands(warpgroup);
    TileSums<V> sums;
    if constexpr (S::kind == kScaled) multiply_scaled<V, S>(shared.ring, launch.steps, reading, operands, sums);
    else multiply_half<V, S>(shared.ring, launch.steps, reading, operands, sums);
    int from = 0, to = V::kGroups;
    if constexpr (S::kSplits) {
        if (launch.splits > 1) {
            add_over_cluster<S>(shared.ring, launch.part, launch.splits, sums);
            from = first_group<S>(launch.part, launch.splits), to = first_group<S>(launch.part + 1, launch.splits);
        }
    }
    const int64_t column = int64_t(tile.piece) * S::kColumns + (operands.kHalf ? warpgroup * V::kNarrow : 0);
    const block_scaled_gemm::Args one = gemm_of(a, tile.expert, tile.end);
#pragma unroll
    for (int i = 0; i < V::kTiles; ++i) {
        // What stores adds 64 rows for each warpgroup before.
        const int64_t row =
            int64_t(tile.row) + i * S::kWarpgroups * kWgmmaRows - (operands.kHalf ? warpgroup * kWgmmaRows : 0);
        const OwnTile own = S::kSwapped ? OwnTile{column, min(column + S::kColumns, a.n), tile.row, from, to}
                                        : OwnTile{row, tile.end, column, from, to};
        scaled::store_tile<One>(shared.ring.staging, one, reinterpret_cast<TileSums<One>&>(sums[i]), own);
    }
}

// The part of K of a CTA whose cluster has one tile, if it has any: then all of its CTAs do. Offsets that fall may name
// more tiles than there are clusters.
__device__ inline void take_part(Launch& launch) {
    const int steps = launch.steps, splits = launch.splits, part = known_uniform(int(rank_in_cluster()));
    launch.part = part, launch.own_tile = known_uniform(int(blockIdx.x) / splits);
    launch.tiles = min(launch.tiles, int(gridDim.x) / splits);
    launch.own_step = steps * part / splits, launch.steps = steps * (part + 1) / splits - launch.own_step;
}

// make(shared, launch, tile, warpgroup, reading): a tile of rows, all of its turns.
template <class S, class Make>
__device__ inline void make_tiles(const Args& a, const CUtensorMap* weights, const CUtensorMap* rows, Launch launch,
                                  const Make& make) {
    auto& shared = dynamic_shared<typename S::All>();
    const int splits = S::kSplits ? launch.splits : 1;
    if (threadIdx.x == 0) start_ring<S>(shared.ring, weights, rows, splits > 1 ? rank_in_cluster() : 0, splits);
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may read what the previous kernel writes
    // Its barriers close: mbarriers are used below by threads that did not initialise them.
    make_row_tiles<S::kRows>(shared.beside.row_tiles, a);
    launch.tiles = tiles_of(shared.beside.row_tiles, int(a.groups), launch.pieces);
    launch.own_tile = int(blockIdx.x);
    if (S::kSplits && splits > 1) take_part(launch);
    const int warp = threadIdx.x / kWarp;
    if (warp < kWarpgroup / kWarp) {
        if constexpr (S::kManyRegisters > 0) leave_registers<S::kFewRegisters>();
        if (warp == 0) feed_operands<S>(shared, a, weights, rows, launch);
        else if constexpr (S::kind == kScaled) feed_scales<S>(shared, a, launch);
        if (S::kSplits && splits > 1 && launch.own_tile < launch.tiles) {
            // Every warp of a cluster that has a tile arrives at its barrier once, and waits before it ends.
            __syncwarp();
            arrive_at_cluster_start();
            wait_for_cluster_start();
        }
    } else {
        if constexpr (S::kManyRegisters > 0) take_registers<S::kManyRegisters>();
        const int warpgroup = known_uniform(warp / (kWarpgroup / kWarp)) - 1;
        Reading<S> reading(shared.ring);
        for (int t = launch.first_tile<S>(); t < launch.tiles; t += gridDim.x) {
            const Tile tile = tile_at<S::kRows>(shared.beside.row_tiles, int(a.groups), launch.pieces, t);
            make(shared, launch, tile, warpgroup, reading);
        }
    }
}

// Tiles of 64 rows that a tile has.
__device__ inline int filled(const Tile& tile) { return (tile.end - tile.row + kWgmmaRows - 1) / kWgmmaRows; }

template <int index, Kind kind>
__global__ __launch_bounds__(Shape<index, kind>::kThreads, Shape<index, kind>::form.slots) void grouped_gemm_tiles(
    Args a, const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap rows, Launch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<index, kind>;
    const auto make = [&](typename S::All& shared, const Launch& own, const Tile& tile, int warpgroup,
                          Reading<S>& reading) {
        if constexpr (S::kSwapped) {
            make_tile<S, S>(shared, a, own, tile, warpgroup, reading);
        } else if (filled(tile) == 1) {
            make_tile<Half<S>, S>(shared, a, own, tile, warpgroup, reading);
        } else if (S::kTiles > 1 && filled(tile) - warpgroup <= S::kWarpgroups) {
            make_tile<Fewer<S, 1>, S>(shared, a, own, tile, warpgroup, reading);
        } else {
            make_tile<S, S>(shared, a, own, tile, warpgroup, reading);
        }
    };
    make_tiles<S>(a, &weights, &rows, launch, make);
#endif
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
