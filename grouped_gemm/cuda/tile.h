// The kernel for Hopper: the loading warpgroup, the multiplying ones, and the whole. See grouped_gemm.cu.
#pragma once

#include "../../block_scaled_gemm/cuda/feed.h"
#include "../../common/cuda/pdl.h"
#include "../../common/cuda/shared_memory.h"
#include "shape.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

using scaled::TileSums;

struct Launch {
    int pieces, tiles, steps;  // of columns; of this launch; of 128 bytes of k
    bool one_by_one;           // rows of A are gathered here
    int splits = 1;            // parts of K: CTAs of a cluster, which makes one tile
    // Of a CTA, which it finds itself, as it does `tiles`; then steps are its own.
    int part = 0, own_tile = 0, own_step = 0;

    template <class S>
    __device__ int first_tile() const {
        return S::kSplits ? own_tile : int(blockIdx.x);
    }
    template <class S>
    __device__ int first_step() const {
        return S::kSplits ? own_step : 0;
    }
};

// Narrow rows of a tile that are loaded and multiplied.
template <class S>
__device__ inline int narrow_of(int live) {
    const int rows = live <= kFewNarrow ? kFewNarrow : live <= kMoreNarrow ? kMoreNarrow : S::kNarrow;
    return min(rows, S::kNarrow);
}
template <class S, class Make>
__device__ inline void with_narrow(int live, const Make& make) {
    if constexpr (S::kNarrow > kMoreNarrow) {
        if (live <= kFewNarrow) return make.template operator()<Narrower<S, kFewNarrow>>();
        if (live <= kMoreNarrow) return make.template operator()<Narrower<S, kMoreNarrow>>();
    }
    make.template operator()<S>();
}

// --- the loading warpgroup: one warp fills the ring with weights and rows, the others with their scales ---

// By the first warp. A tile's rows beyond its expert's last may hold anything: nothing is made of them.
template <class S>
__device__ inline void feed_operands(typename S::All& shared, const Args& a, const CUtensorMap* weights,
                                     const CUtensorMap* rows, const Launch& launch) {
    Position<S::kStages> at;
    bool refills = false;
    auto& ring = shared.ring;
    for (int t = launch.first_tile<S>(); t < launch.tiles; t += gridDim.x) {
        const Tile tile = tile_at<S::kRows>(shared.beside.row_tiles, int(a.groups), launch.pieces, t);
        const int live = min(tile.end - tile.row, S::kRows), column = tile.piece * S::kColumns;
        const bool one_by_one = S::kOneByOne && launch.one_by_one;
        if (one_by_one) {
            // Barrier: the sources of the tile before have been read.
            __syncwarp();
            const int lane = threadIdx.x;
            if (lane < live) shared.beside.sources[lane] = source_of(a, tile.row + lane);
            // Barrier: another lane reads the sources.
            __syncwarp();
        }
        const int whole = (live + S::kRowsOfCopy - 1) / S::kRowsOfCopy * S::kRowsOfCopy;
        const int copied = one_by_one ? live : S::kSwapped ? narrow_of<S>(live) : whole;
        const uint32_t bytes = uint32_t(S::kColumns + copied) * kStep;
        // The same lane at each election.
        if (elected()) {
            for (int step = 0; step < launch.steps; ++step) {
                // Barrier: the stage is filled again after its readers have left it.
                if (refills) wait_for(&ring.empty[at.stage], at.parity ^ 1);
                auto& stage = ring.stages[at.stage];
                uint8_t (*const of_a)[kStep] = S::kSwapped ? stage.narrow : stage.wide;
                uint8_t (*const of_b)[kStep] = S::kSwapped ? stage.wide : stage.narrow;
                Barrier* const full = &ring.full[at.stage];
                const int k = (launch.first_step<S>() + step) * kStep;
                arrive_expecting(full, bytes);
                copy_tile_of(tile.expert, of_b, weights, k, column, full);
                if (one_by_one) {
#pragma unroll 1
                    for (int r = 0; r < live; ++r) copy_tile(of_a[r], rows, k, shared.beside.sources[r], full);
                } else {
#pragma unroll
                    for (int i = 0; i < S::kRows / S::kRowsOfCopy; ++i) {
                        const int r = i * S::kRowsOfCopy;
                        if (r < copied) copy_tile(of_a[slot_of<S>(i) * S::kRowsOfCopy], rows, k, tile.row + r, full);
                    }
                }
                at.advance();
                refills |= at.stage == 0;
            }
        }
        __syncwarp();
    }
}

// By the other warps: the second brings the scales of the weights, which 64 neighbours or more share; two those of A's
// rows.
template <class S>
__device__ inline void feed_scales(typename S::All& shared, const Args& a, const Launch& launch) {
    constexpr int kWeightScales = sizeof(S::Factors::weights) / sizeof(float), kRowThreads = 2 * kWarp;
    const bool of_channels = scaled::at_the_end(a.scale_b), of_weights = threadIdx.x < 2 * kWarp;
    const bool exponents = (of_weights ? a.scale_b : a.scale_a).dtype == DType::e8m0, ones = of_weights && of_channels;
    const int thread = threadIdx.x - (of_weights ? kWarp : 2 * kWarp), first_step = launch.first_step<S>();
    Position<S::kStages> at;
    bool refills = false;
    for (int t = launch.first_tile<S>(); t < launch.tiles; t += gridDim.x) {
        const Tile tile = tile_at<S::kRows>(shared.beside.row_tiles, int(a.groups), launch.pieces, t);
        if (of_weights) {
            scaled::feed_factors<S, kWeightScales, kWarp>(
                shared.ring, scaled::BlockScales(gemm_of(a, tile.expert, tile.end).scale_b, first_step), ones,
                !ones && !exponents, launch.steps, thread, at, refills,
                [&](int i) {
                    const int64_t row = int64_t(tile.piece) * S::kColumns + i * kWgmmaRows;
                    return row < a.n ? row : a.n - 1;
                },
                [](typename S::Factors& f) { return f.weights; });
        } else {
            scaled::feed_factors<S, S::kRows, kRowThreads>(
                shared.ring, scaled::BlockScales(a.scale_a, first_step), false, !exponents, launch.steps, thread, at,
                refills,
                [&](int i) {
                    const int64_t row = int64_t(tile.row) + row_in<S>(i);
                    return int64_t(source_of(a, row < tile.end ? row : tile.end - 1));
                },
                [](typename S::Factors& f) { return f.rows; });
        }
    }
}

// --- the multiplying warpgroups ---

// Scales of a thread's two wide rows, where these are A's, times the weights'; else the weights' alone, and each column
// has its own.
template <class S>
struct ExpertFactors {
    static constexpr int kRanges = 1;
    static constexpr __device__ int range_of(int) { return 0; }
    int first = (threadIdx.x - kWarpgroup) / kWarpgroup * S::kTiles;

    __device__ void read(float (&scales)[kRanges][2], const typename S::Factors& factors, int row, int tile) const {
        float (&of)[2] = scales[0];
        of[0] = of[1] = factors.weights[S::kSwapped ? first + tile : 0];
        if constexpr (!S::kSwapped) of[0] *= factors.rows[row], of[1] *= factors.rows[row + 8];
    }
    __device__ const float* narrow(const typename S::Factors& factors) const { return factors.rows; }
};

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
    if constexpr (S::kind == kScaled)
        multiply_blocks<V, S>(shared.ring, launch.steps, reading, operands, ExpertFactors<S>{}, sums);
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

// --- a CTA ---

// The part of K of a CTA whose cluster has one tile, if it has any: then all of its CTAs do. Offsets that fall may name
// more tiles than there are clusters.
__device__ inline void take_part(Launch& launch) {
    const int steps = launch.steps, splits = launch.splits, part = known_uniform(int(rank_in_cluster()));
    launch.part = part, launch.own_tile = known_uniform(int(blockIdx.x) / splits);
    launch.tiles = min(launch.tiles, int(gridDim.x) / splits);
    launch.own_step = steps * part / splits, launch.steps = steps * (part + 1) / splits - launch.own_step;
}

// Tiles of 64 rows that a tile has.
__device__ inline int filled(const Tile& tile) { return (tile.end - tile.row + kWgmmaRows - 1) / kWgmmaRows; }

template <int index, Kind kind>
__global__ __launch_bounds__(Shape<index, kind>::kThreads, Shape<index, kind>::form.slots) void grouped_gemm_tiles(
    Args a, const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap rows, Launch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<index, kind>;
    auto& shared = dynamic_shared<typename S::All>();
    const int splits = S::kSplits ? launch.splits : 1;
    if (threadIdx.x == 0) start_ring<S>(shared.ring, &weights, &rows, splits > 1 ? rank_in_cluster() : 0, splits);
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
        if (warp == 0) feed_operands<S>(shared, a, &weights, &rows, launch);
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
            const auto make = [&]<class V>() { make_tile<V, S>(shared, a, launch, tile, warpgroup, reading); };
            if constexpr (S::kSwapped) with_narrow<S>(tile.end - tile.row, make);
            else if (filled(tile) == 1) make.template operator()<Half<S>>();
            else if (S::kTiles > 1 && filled(tile) - warpgroup <= S::kWarpgroups)
                make.template operator()<Fewer<S, 1>>();
            else make.template operator()<S>();
        }
    }
#endif
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
