// Which tile of rows is whose: read from the offsets on the device, by each wave for itself.
//
// Tiles of `tile_rows` rows are numbered group after group. A lane has the tiles of `each` neighbouring groups; a scan
// over the lanes finds the lane of a tile, whose groups are then looked at one by one. Up to 1024 groups are 16 a lane.
#pragma once

#include "../../common/gemm/sources.h"
#include "../../common/gpu/lanes.h"
#include "../grouped_gemm.h"

namespace rocm_fp8::grouped_gemm::hip {
namespace {

// All of it is the same in all lanes: scalar registers.
struct RowTile {
    int group;       // -1: there is no such tile
    int first, end;  // rows of the group, in the result
    int tile;        // number in the group
    int before;      // tiles of the groups before it
};

// Four offsets from `from` on, all of them by one load: `loaded` from where there are four. Beyond the last they are it.
__device__ inline int first_of_four(int from, int groups) { return from < groups - 3 ? from : groups - 3; }
__device__ inline u32x4 four_offsets(u32x4 loaded, int from, int groups) {
    const int moved = from - first_of_four(from, groups);
    u32x4 four;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        four[i] = loaded[i];
#pragma unroll
        for (int j = i + 1; j < 4; ++j) four[i] = moved >= j - i ? loaded[j] : four[i];
    }
    return four;
}

template <int tile_rows>
struct RowTiles {
    const int32_t* offsets;
    int groups, m, each;
    uint32_t up_to;  // tiles of the lanes up to this one

    // Offsets that leave [0, m], or fall, give rows inside of the result, or none.
    __device__ int at(int group) const { return inside(global<int32_t>(offsets)[group < groups ? group : groups]); }
    __device__ int inside(int offset) const { return inside(offset, m); }
    static __device__ int inside(int offset, int m) { return offset < 0 ? 0 : offset < m ? offset : m; }
    static __device__ int tiles_of(int first, int end) {
        return end > first ? int((uint32_t(end - first) + tile_rows - 1) / tile_rows) : 0;
    }

    // a: of any operator that has offsets, groups and m.
    template <class Grouped>
    __device__ explicit RowTiles(const Grouped& a)
        : offsets(a.offsets), groups(int(a.groups)), m(int(a.m)), each(int(a.groups + kWave - 1) / kWave) {
        const int mine = int(threadIdx.x % kWave) * each;
        uint32_t tiles = 0;
        if (groups < 3) {  // no load of four; a lane has one group
            tiles = uint32_t(tiles_of(at(mine), at(mine + 1)));
        } else {
            // All on their way at once.
            constexpr int kLoads = kMostGroups / kWave / 4 + 1;
            u32x4 loaded[kLoads];
#pragma unroll
            for (int n = 0; n < kLoads; ++n) {
                if (4 * n > each) break;
                loaded[n] =
                    load_unaligned(reinterpret_cast<const uint8_t*>(offsets + first_of_four(mine + 4 * n, groups)));
            }
            int first = 0;
#pragma unroll
            for (int n = 0; n < kLoads; ++n) {
                if (4 * n > each) break;
                const u32x4 four = four_offsets(loaded[n], mine + 4 * n, groups);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int end = inside(int(four[i]));
                    if (4 * n + i > 0 && 4 * n + i <= each) tiles += tiles_of(first, end);
                    first = end;
                }
            }
        }
        up_to = sum_up_to_lane(tiles);
    }

    // Of what a lane had.
    __device__ RowTiles(const Args& a, uint32_t up_to)
        : offsets(a.offsets),
          groups(int(a.groups)),
          m(int(a.m)),
          each(int(a.groups + kWave - 1) / kWave),
          up_to(up_to) {}

    __device__ int tiles() const { return int(of_lane(up_to, kWave - 1)); }

    // Tile number `index` of all.
    __device__ RowTile tile(int index) const {
        const LaneMask behind = lanes_where(int(up_to) > index);
        if (behind == 0) return {-1, 0, 0, 0, 0};
        const int lane = lowest(behind);
        int before = lane == 0 ? 0 : int(of_lane(up_to, lane - 1));
        // Scalar code: all lanes look at the same groups.
        const int last = groups - 1;
        for (int group = lane * each;; ++group) {
            const int first = uniform(at(group)), end = uniform(at(group + 1)), tiles = tiles_of(first, end);
            // The last group ends the search whatever the offsets hold.
            if (index < before + tiles || group >= last) return {group, first, end, index - before, before};
            before += tiles;
        }
    }
};

// Tile number `index` of all, for a wave that asks once: as RowTiles finds it. All offsets are on their way at once, of four
// neighbouring groups a lane: a load for each of a lane's groups would fetch every line as often.
template <int tile_rows, class Grouped>
__device__ inline RowTile row_tile(const Grouped& a, int index) {
    using Tiles = RowTiles<tile_rows>;
    constexpr int kOfLane = 4, kOfTurn = kWave * kOfLane, kTurns = kMostGroups / kOfTurn;
    const int groups = int(a.groups), m = int(a.m), lane = int(threadIdx.x) % kWave;
    if (groups < kOfLane - 1) return Tiles(a).tile(index);  // no load of four
    const auto inside = [&](int offset) { return Tiles::inside(offset, m); };
    u32x4 found[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int mine = turn * kOfTurn + lane * kOfLane;
        if (turn * kOfTurn < groups)
            found[turn] = load_unaligned(reinterpret_cast<const uint8_t*>(a.offsets + first_of_four(mine, groups)));
    }
    int before = 0;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int first = turn * kOfTurn, mine = first + lane * kOfLane;
        if (first >= groups) break;
        // The first row of each of the lane's groups, and of the one behind. Beyond the last group: the end, as of at().
        const u32x4 four = four_offsets(found[turn], mine, groups);
        int begin[kOfLane + 1];
#pragma unroll
        for (int i = 0; i < kOfLane; ++i) begin[i] = inside(int(four[i]));
        const int behind = first + kOfTurn < groups ? first + kOfTurn : groups;
        const int of_next = __builtin_amdgcn_ds_bpermute((lane + 1) % kWave * 4, begin[0]);
        begin[kOfLane] = lane == kWave - 1 ? inside(uniform(global<int32_t>(a.offsets)[behind])) : of_next;
        uint32_t tiles = 0;
#pragma unroll
        for (int i = 0; i < kOfLane; ++i) tiles += Tiles::tiles_of(begin[i], begin[i + 1]);
        const uint32_t up_to = sum_up_to_lane(tiles);
        const LaneMask holding = lanes_where(int(up_to) > index - before);
        if (holding == 0) {
            before += int(of_lane(up_to, kWave - 1));
            continue;
        }
        const int holder = lowest(holding);
        before += holder == 0 ? 0 : int(of_lane(up_to, holder - 1));
#pragma unroll
        for (int i = 0; i < kOfLane; ++i) {
            const int from = int(of_lane(uint32_t(begin[i]), holder)),
                      to = int(of_lane(uint32_t(begin[i + 1]), holder));
            const int count = Tiles::tiles_of(from, to);
            if (index < before + count) return {first + holder * kOfLane + i, from, to, index - before, before};
            before += count;
        }
    }
    return {-1, 0, 0, 0, 0};
}

ROCM_FP8_HD inline int64_t size_of(DType scales) { return scales == DType::e8m0 ? 1 : 4; }

// Scales, and the bias, of a group's matrix.
__device__ inline gemm::Scales scales_of(gemm::Scales s, int group) {
    s.data = offset(s.data, group * s.group_stride * size_of(s.dtype));
    return s;
}
__device__ inline gemm::Bias bias_of(const Args& a, int group) {
    gemm::Bias bias = a.bias;
    if (bias.data) bias.data = offset(bias.data, group * a.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
    return bias;
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::hip
