// The loading warpgroup: one warp fills the ring with weights and rows, the others with their scales.
#pragma once

#include "../../block_scaled_gemm/cuda/feed.h"
#include "shape.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

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

// By the first warp. A tile's rows beyond its expert's last may hold anything: nothing is made of them.
template <class S>
__device__ inline void feed_operands(typename S::All& shared, const Args& a, const CUtensorMap* weights,
                                     const CUtensorMap* rows, const Launch& launch) {
    Position<S::kStages> at;
    bool refills = false;
    auto& ring = shared.ring;
    for (int t = launch.first_tile<S>(); t < launch.tiles; t += gridDim.x) {
        const Tile tile = tile_at<S::kRows>(shared.beside.row_tiles, int(a.groups), launch.pieces, t);
        const int live = min(tile.end - tile.row, S::kRows), column = tile.piece * S::kTurns * S::kOfTurn;
        const bool one_by_one = S::kOneByOne && launch.one_by_one;
        if (one_by_one) {
            // Barrier: the sources of the tile before have been read.
            __syncwarp();
            const int lane = threadIdx.x;
            if (lane < live) shared.beside.sources[lane] = source_of(a, tile.row + lane);
            // Barrier: another lane reads the sources.
            __syncwarp();
        }
        const int copied = one_by_one ? live : (live + S::kRowsOfCopy - 1) / S::kRowsOfCopy * S::kRowsOfCopy;
        const uint32_t bytes = uint32_t(S::kColumns + copied) * kStep;
        // The same lane at each election.
        if (elected()) {
            for (int turn = 0; turn < S::kTurns; ++turn) {
                for (int step = 0; step < launch.steps; ++step) {
                    // Barrier: the stage is filled again after its readers have left it.
                    if (refills) wait_for(&ring.empty[at.stage], at.parity ^ 1);
                    auto& stage = ring.stages[at.stage];
                    uint8_t (*const of_a)[kStep] = S::kSwapped ? stage.narrow : stage.wide;
                    uint8_t (*const of_b)[kStep] = S::kSwapped ? stage.wide : stage.narrow;
                    Barrier* const full = &ring.full[at.stage];
                    const int k = (launch.first_step<S>() + step) * kStep;
                    arrive_expecting(full, bytes);
                    if constexpr (S::kGated) {
#pragma unroll
                        for (int i = 0; i < S::kOfTurn; i += kEachHalf) {
                            const int hidden = column + turn * S::kOfTurn + i;
                            copy_halves_of(tile.expert, of_b[2 * i], weights, k, hidden, full);
                        }
                    } else {
                        copy_tile_of(tile.expert, of_b, weights, k, column, full);
                    }
                    if (one_by_one) {
#pragma unroll 1
                        for (int r = 0; r < live; ++r) copy_tile(of_a[r], rows, k, shared.beside.sources[r], full);
                    } else {
#pragma unroll
                        for (int i = 0; i < S::kRows / S::kRowsOfCopy; ++i) {
                            const int r = i * S::kRowsOfCopy;
                            if (r < live) copy_tile(of_a[slot_of<S>(i) * S::kRowsOfCopy], rows, k, tile.row + r, full);
                        }
                    }
                    at.advance();
                    refills |= at.stage == 0;
                }
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
        for (int turn = 0; turn < S::kTurns; ++turn) {
            if (of_weights) {
                scaled::feed_factors<S, kWeightScales, kWarp>(
                    shared.ring, scaled::BlockScales(gemm_of(a, tile.expert, tile.end).scale_b, first_step), ones,
                    !ones && !exponents, launch.steps, thread, at, refills,
                    [&](int i) {
                        const int64_t first = int64_t(tile.piece * S::kTurns + turn) * S::kOfTurn;
                        const int64_t row = first + (S::kGated ? i * (a.n / 2) : i * kWgmmaRows);
                        return row < a.n ? row : a.n - 1;
                    },
                    [](typename S::Factors& f) { return f.weights; });
            } else {
                scaled::feed_factors<S, S::kRows, kRowThreads>(
                    shared.ring, scaled::BlockScales(a.scale_a, first_step), false, !exponents, launch.steps, thread,
                    at, refills,
                    [&](int i) {
                        const int64_t row = int64_t(tile.row) + row_in<S>(i);
                        return int64_t(source_of(a, row < tile.end ? row : tile.end - 1));
                    },
                    [](typename S::Factors& f) { return f.rows; });
            }
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
