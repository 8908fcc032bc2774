// The loading warpgroup: one warp fills the ring with both operands (common/gemm/cuda/feed.h), others with their scales.
#pragma once

#include "../../common/cuda/async_copy.h"
#include "../../common/gemm/cuda/feed.h"
#include "scales.h"
#include "shape.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// By kThreads threads: a tile's kRows scales in every step, from `from` on. `async`, of float32: they pass through no
// register, as many steps ahead as the ring has stages.
//
//     row_of(i)     whose scale the i-th of a stage is         to(factors)    where it is stored
template <class S, int kRows, int kThreads, class RowOf, class To>
__device__ inline void feed_factors(typename S::Memory& shared, BlockScales from, bool all_ones, bool async, int steps,
                                    int thread, Position<S::kStages>& at, bool& refills, const RowOf& row_of,
                                    const To& to) {
    constexpr int kEach = (kRows + kThreads - 1) / kThreads;
    int64_t place[kEach];
    uint32_t next[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        place[i] = from.place(row_of(i * kThreads + thread));
        next[i] = all_ones || async ? 0 : from.raw(place[i]);
    }
    for (int step = 0; step < steps; ++step) {
        // Barrier: the stage's scales are replaced after their readers have left it.
        if (refills) wait_for(&shared.empty[at.stage], at.parity ^ 1);
        float* const stored = to(shared.factors[at.stage]) + thread;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (kRows % kThreads != 0 && i * kThreads + thread >= kRows) continue;
            if (async) copy_float_async(stored + i * kThreads, from.next + place[i]);
            else stored[i * kThreads] = all_ones ? 1.0f : from.value(next[i]);
        }
        from.advance();
        if (async) {
            arrive_after_copies(&shared.full[at.stage]);
        } else {
            arrive(&shared.full[at.stage]);
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                if (!all_ones && step + 1 < steps) next[i] = from.raw(place[i]);
            }
        }
        at.advance();
        refills |= at.stage == 0;
    }
}

// The same of all tiles of a CTA. row_of(i, tile)
template <class S, int kRows, int kThreads, class RowOf, class To>
__device__ inline void feed_all_factors(typename S::Memory& shared, const Scales& scales, bool all_ones,
                                        const Tiling& tiling, const Part& part, int thread, const RowOf& row_of,
                                        const To& to) {
    Position<S::kStages> at;
    bool refills = false;
    const bool async = !all_ones && scales.dtype == DType::f32;
    for (Tiles tiles(tiling); tiles.left(); tiles.advance()) {
        const gemm::TileAt tile = tiling.at(tiles.next);
        feed_factors<S, kRows, kThreads>(
            shared, BlockScales(scales, part.first), all_ones, async, part.count, thread, at, refills,
            [&](int i) { return row_of(i, tile); }, to);
    }
}

// Scales of channels and bias of a tile's narrow columns, towards those who apply them at its end. By a warp.
template <class S>
__device__ inline void prefetch_columns(const Args& a, int tile, int lane) {
    for (int64_t n = int64_t(tile) * S::kNarrow + lane; n < (tile + 1) * int64_t(S::kNarrow) && n < a.n; n += kWarp) {
        if (at_the_end(a.scale_b)) {
            const BlockScales scales(a.scale_b, 0);
            fetch_to_l1(scales.next + scales.place(n));
        }
        if (a.bias.data) {
            const int size = a.bias.dtype == DType::f32 ? 4 : 2;
            fetch_to_l1(static_cast<const char*>(a.bias.data) + n * a.bias.stride * size);
        }
    }
}

// By the warps 1 to 3 of the loading warpgroup.
template <class S>
__device__ inline void feed_scales(typename S::Memory& shared, const Args& a, const Tiling& tiling, const Part& part) {
    const bool of_channels = at_the_end(a.scale_b);
    const Scales &wide = S::kSwapped ? a.scale_b : a.scale_a, &narrow = S::kSwapped ? a.scale_a : a.scale_b;
    const int64_t narrow_rows = S::kSwapped ? a.m : a.n;
    const auto inside = [](int64_t row, int64_t rows) { return row < rows ? row : rows - 1; };
    const int thread = threadIdx.x - kWarp;
    if (thread < kWideThreads) {
        feed_all_factors<S, S::kWide, kWideThreads>(
            shared, wide, S::kSwapped && of_channels, tiling, part, thread,
            [&](int i, const gemm::TileAt& tile) { return inside(tiling.first_row(tile.down) + i, tiling.wide_rows); },
            [](typename S::Factors& f) { return f.wide; });
    } else {
        feed_all_factors<S, S::kNarrowFactors, kWarp>(
            shared, narrow, !S::kSwapped && of_channels, tiling, part, thread - kWideThreads,
            [&](int i, const gemm::TileAt& tile) {
                const int64_t first = int64_t(tile.across) * S::kNarrow;
                if (S::kSwapped) return inside(first + i, narrow_rows);
                prefetch_columns<S>(a, tile.across, i);
                return inside(i == 0 ? first : (first / kBlock + 1) * kBlock, narrow_rows);
            },
            [](typename S::Factors& f) { return f.narrow; });
    }
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
