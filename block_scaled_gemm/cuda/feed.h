// The loading warpgroup: TMA fills the stages of the ring with both operands, other warps with their scales.
#pragma once

#include "../../common/cuda/async_copy.h"
#include "../../common/cuda/pdl.h"
#include "../../common/cuda/tma.h"
#include "ring.h"
#include "scales.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// By one thread: keeps the ring full. What it computes per block delays the copies, and nothing hides that.
template <class S>
__device__ inline void feed(typename S::Memory& shared, const Args& a, const CUtensorMap* wide,
                            const CUtensorMap* narrow, const Cut& cut, const Part& part) {
    Tiles tiles(cut);
    if (!tiles.left()) return;
    int wide_row, narrow_row;
    const auto locate = [&] {
        int piece, of_narrow;
        cut.locate(tiles.next, &piece, &of_narrow);
        wide_row = int(cut.first_row(piece));
        narrow_row = of_narrow * S::kNarrow;
    };
    const auto copy = [&](bool is_wide, int stage, int k) {
        if (is_wide) copy_tile(shared.stages[stage].wide, wide, k, wide_row, &shared.full[stage]);
        else copy_tile(shared.stages[stage].narrow, narrow, k, narrow_row, &shared.full[stage]);
    };
    const uint32_t bytes = uint32_t(cut.height + S::kNarrow) * kBlock;
    const int first_k = part.first * kBlock, end_k = (part.first + part.count) * kBlock;
    locate();
    // The first round: the weights before the wait for the previous kernel, where they are constant.
    const int round = part.count < S::kStages ? part.count : S::kStages;
    if (!a.constant_b) wait_for_previous_kernel();
    for (int s = 0; s < round; ++s) {
        arrive_expecting(&shared.full[s], bytes);
        copy(S::kSwapped, s, first_k + s * kBlock);
    }
    if (a.constant_b) wait_for_previous_kernel();
    for (int s = 0; s < round; ++s) copy(!S::kSwapped, s, first_k + s * kBlock);

    Position<S::kStages> at;
    at.stage = round % S::kStages;
    at.parity = round / S::kStages;
    bool refills = round == S::kStages;
    int k = first_k + round * kBlock;
    while (true) {
        for (; k < end_k; k += kBlock) {
            // Closes: the stage is filled again after its readers have left it.
            if (refills) wait_for(&shared.empty[at.stage], at.parity ^ 1);
            arrive_expecting(&shared.full[at.stage], bytes);
            copy(true, at.stage, k);
            copy(false, at.stage, k);
            at.advance();
            refills |= at.stage == 0;
        }
        tiles.advance();
        if (!tiles.left()) return;
        locate();
        k = first_k;
    }
}

// By kThreads threads: kRows scales a stage. float32 scales go to shared memory without passing through registers, as
// many blocks ahead as the ring has stages.
//
//     row_of(i, piece, tile)    whose scale the i-th of a stage is         to(factors)    where it is stored
template <class S, int kRows, int kThreads, class RowOf, class To>
__device__ inline void feed_factors(typename S::Memory& shared, const Scales& scales, bool all_ones, const Cut& cut,
                                    const Part& part, int thread, const RowOf& row_of, const To& to) {
    constexpr int kEach = (kRows + kThreads - 1) / kThreads;
    const bool async = !all_ones && scales.dtype == DType::f32;
    Position<S::kStages> at;
    bool refills = false;
    for (Tiles tiles(cut); tiles.left(); tiles.advance()) {
        int piece, of_narrow;
        cut.locate(tiles.next, &piece, &of_narrow);
        BlockScales from(scales, part.first);
        int64_t place[kEach];
        uint32_t next[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            place[i] = from.place(row_of(i * kThreads + thread, piece, of_narrow));
            next[i] = all_ones || async ? 0 : from.raw(place[i]);
        }
        for (int step = 0; step < part.count; ++step) {
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
                    if (!all_ones && step + 1 < part.count) next[i] = from.raw(place[i]);
                }
            }
            at.advance();
            refills |= at.stage == 0;
        }
    }
}

// By the warps 1 to 3 of the loading warpgroup.
template <class S>
__device__ inline void feed_scales(typename S::Memory& shared, const Args& a, const Cut& cut, const Part& part) {
    const bool of_channels = at_the_end(a.scale_b);
    const Scales &wide = S::kSwapped ? a.scale_b : a.scale_a, &narrow = S::kSwapped ? a.scale_a : a.scale_b;
    const int64_t narrow_rows = S::kSwapped ? a.m : a.n;
    const auto inside = [](int64_t row, int64_t rows) { return row < rows ? row : rows - 1; };
    const int thread = threadIdx.x - kWarp;
    if (thread < kWideThreads) {
        feed_factors<S, S::kWide, kWideThreads>(
            shared, wide, S::kSwapped && of_channels, cut, part, thread,
            [&](int i, int piece, int) { return inside(cut.first_row(piece) + i, cut.wide_rows); },
            [](typename S::Factors& f) { return f.wide; });
    } else {
        feed_factors<S, S::kNarrowFactors, kWarp>(
            shared, narrow, !S::kSwapped && of_channels, cut, part, thread - kWideThreads,
            [&](int i, int, int tile) {
                const int64_t first = int64_t(tile) * S::kNarrow;
                if (S::kSwapped) return inside(first + i, narrow_rows);
                return inside(i == 0 ? first : (first / kBlock + 1) * kBlock, narrow_rows);
            },
            [](typename S::Factors& f) { return f.narrow; });
    }
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
