// The tiles of a launch, expert after expert, as the offsets on the device have them.
//
//     tile number:   | expert 0: row tiles x pieces of columns | expert 1 ... | (empty experts have none)
//
// Each CTA adds up the row tiles of all experts once, into shared memory; then a warp finds a tile's expert with two
// votes.
#pragma once

#include "../../common/cuda/vector.h"
#include "config.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

// Row tiles whose tiles of columns follow each other, so that they share weights in L2.
constexpr int kBand = 16;
constexpr int kPlanThreads = 256, kExpertsOfThread = kMostGroups / kPlanThreads;

struct Tile {
    int expert, row, end;  // its rows of the result
    int piece;             // of the columns
};

struct RowTiles {
    int before[kMostGroups + 1];  // row tiles of the experts before
    int begin[kMostGroups + 1];   // rows
    int of_warps[kPlanThreads / kWarp];
};

__device__ inline int clamped(int v, int64_t most) { return v < 0 ? 0 : v > most ? int(most) : v; }

// Of numbers that are not negative. Offsets that fall make more tiles than there are.
__device__ inline int added(int a, int b) {
    const unsigned sum = unsigned(a) + unsigned(b);
    return sum > 0x7FFFFFFFu ? 0x7FFFFFFF : int(sum);
}

// By all threads, of which there are at least kPlanThreads, behind whatever wrote the offsets. Ends with a barrier.
// Without offsets all rows are the one expert's.
template <int kHeight, class A>
__device__ inline void make_row_tiles(RowTiles& row_tiles, const A& a) {
    const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp, groups = int(a.groups);
    const int first = thread * kExpertsOfThread;
    int begin[kExpertsOfThread + 1], tiles[kExpertsOfThread + 1] = {}, before = 0;
    if (thread < kPlanThreads) {
#pragma unroll
        for (int i = 0; i <= kExpertsOfThread; ++i) {
            const int expert = first + i;
            const int offset = a.offsets ? global<int32_t>(a.offsets)[min(expert, groups)] : expert * int(a.m);
            begin[i] = expert <= groups ? clamped(offset, a.m) : 0;
        }
#pragma unroll
        for (int i = 0; i < kExpertsOfThread; ++i) {
            const bool any = first + i < groups && begin[i + 1] > begin[i];
            const int own = any ? int((unsigned(begin[i + 1] - begin[i]) + kHeight - 1) / kHeight) : 0;
            tiles[i + 1] = added(tiles[i], own);
        }
        int sum = tiles[kExpertsOfThread];
#pragma unroll
        for (int distance = 1; distance < kWarp; distance *= 2) {
            const int other = __shfl_up_sync(kWholeWarp, sum, distance);
            if (lane >= distance) sum = added(sum, other);
        }
        if (lane == kWarp - 1) row_tiles.of_warps[warp] = sum;
        before = __shfl_up_sync(kWholeWarp, sum, 1);
        if (lane == 0) before = 0;
    }
    // Barrier: other warps read the warps' sums.
    __syncthreads();
    if (thread < kPlanThreads) {
        for (int w = 0; w < warp; ++w) before = added(before, row_tiles.of_warps[w]);
#pragma unroll
        for (int i = 0; i <= kExpertsOfThread; ++i) {
            // The last thread's last one is no other thread's first.
            if (first + i > groups || (i == kExpertsOfThread && first + i < kMostGroups)) continue;
            row_tiles.before[first + i] = added(before, tiles[i]);
            row_tiles.begin[first + i] = begin[i];
        }
    }
    // Barrier: all threads read the table.
    __syncthreads();
}

// What is the same in all lanes, so that the compiler knows it. A loop or branch that depends on anything else takes a
// ring's descriptors out of the uniform registers: 5 to 8 % more time (H100).
__device__ inline int known_uniform(int v) { return __shfl_sync(kWholeWarp, v, 0); }

// By a whole warp.
__device__ inline int tiles_of(const RowTiles& row_tiles, int groups, int pieces) {
    const int64_t tiles = int64_t(row_tiles.before[groups]) * pieces;
    return known_uniform(tiles > 0x7FFFFFFF ? 0x7FFFFFFF : int(tiles));
}

// By a whole warp.
template <int kHeight>
__device__ inline Tile tile_at(const RowTiles& row_tiles, int groups, int pieces, int tile) {
    const int lane = threadIdx.x % kWarp, wanted = tile / pieces;
    const auto begun = [&](int expert) { return expert < groups && row_tiles.before[expert] <= wanted; };
    // Sums do not fall: the last expert that begins no later, first of each 32.
    const int block = (__popc(__ballot_sync(kWholeWarp, begun(lane * kWarp))) - 1) * kWarp;
    const int expert = block + __popc(__ballot_sync(kWholeWarp, begun(block + lane))) - 1;
    const int before = row_tiles.before[expert], down = row_tiles.before[expert + 1] - before;
    const gemm::TileAt at = gemm::tile_at<kBand>(tile - before * pieces, down, pieces);
    const int begin = row_tiles.begin[expert];
    return {known_uniform(expert), known_uniform(begin + at.down * kHeight), known_uniform(row_tiles.begin[expert + 1]),
            known_uniform(at.across)};
}

// A row's row of A. Bad ones stay inside of the operands. Not gemm::source_of: t128x128 would spill the divider.
__device__ inline int source_of(const Args& a, int64_t row) {
    const int place = int(row < a.m ? row : a.m - 1);
    return clamped(a.rows ? global<int32_t>(a.rows)[place] / int(a.slots.divisor) : place, a.a_rows - 1);
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
