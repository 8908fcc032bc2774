// Which tile of rows is whose: read from the offsets on the device, by each wave for itself.
//
// Tiles of `tile_rows` rows are numbered group after group. A lane has the tiles of `each` neighbouring groups; a scan
// over the lanes finds the lane of a tile, whose groups are then looked at one by one. Up to 1024 groups are 16 a lane.
#pragma once

#include "../../common/divider.h"
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

template <int tile_rows>
struct RowTiles {
    const int32_t* offsets;
    int groups, m, each;
    uint32_t up_to;  // tiles of the lanes up to this one

    // Offsets that leave [0, m], or fall, give rows inside of the result, or none.
    __device__ int at(int group) const {
        const int offset = global<int32_t>(offsets)[group < groups ? group : groups];
        return offset < 0 ? 0 : offset < m ? offset : m;
    }
    static __device__ int tiles_of(int first, int end) {
        return end > first ? int((uint32_t(end - first) + tile_rows - 1) / tile_rows) : 0;
    }

    // a: of any operator that has offsets, groups and m.
    template <class Grouped>
    __device__ explicit RowTiles(const Grouped& a)
        : offsets(a.offsets), groups(int(a.groups)), m(int(a.m)), each(int(a.groups + kWave - 1) / kWave) {
        const int mine = int(threadIdx.x % kWave) * each;
        uint32_t tiles = 0;
        int first = at(mine);
        for (int i = 1; i <= each; ++i) {
            const int end = at(mine + i);
            tiles += tiles_of(first, end);
            first = end;
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

// The arguments as the kernels have them: k in bytes.
struct Job : Args {
    Divider by_slots;
};

// The row of A of row i of the result, where rows are gathered. What is no row of A becomes one.
template <class Args>
__device__ inline int source(const Args& a, Divider by_slots, int i) {
    const int slot = global<int32_t>(a.rows)[i];
    const int row = int(divide(uint32_t(slot < 0 ? 0 : slot), by_slots)), last = int(a.a_rows - 1);
    return row < last ? row : last;
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
