// Work items of a tile kernel: which tile a workgroup makes next, over which blocks of K; and the kernel's outline.
//
// A chiplet's workgroups take items that follow one another in tile_at's order, so that they share rows or columns.
#pragma once

#include "../../hip/chips.h"
#include "../work.h"
#include "split_k.h"
#include "tile.h"

namespace rocm_fp8::gemm::hip {

// The items of a launch.
struct Work {
    int tiles_m, tiles_n, tiles;  // tiles: of all groups
    int items, per_chiplet;       // of all chiplets; of one
};

// A kernel's arguments. mode: what else the operator's launcher tells its epilogue.
template <class Args>
struct TileLaunch {
    Args args;
    Work work;
    SplitK split;
    int mode;
};

// A tile of the result, over a part of K. Numbers of 32 bits: two items are in scalar registers, where there is no room for
// more. Rows and columns follow from them.
struct WorkItem {
    int group;           // matrix of a batch
    int tile_m, tile_n;  // of the group
    int tile, part;      // tile: of the launch, its counter and the place of its parts; part: of K
    int k_begin, k_end;  // blocks of K
};

namespace {

template <class S, class Launch>
__device__ inline bool item_at(int turn, WorkItem* item) {
    const Launch& launch = arguments<Launch>();
    const Work& work = launch.work;
    const int parts = launch.split.parts;
    constexpr int kBand = S::rows >= 256 ? 4 : 8;
    const int place = turn * int(gridDim.x / kChiplets) + int(blockIdx.x) / kChiplets;
    const int at = int(blockIdx.x) % kChiplets * work.per_chiplet + place;
    if (place >= work.per_chiplet || at >= work.items) return false;
    // Divisions delay the first load: only those that have something to divide.
    int tile = at, part = 0, group = 0;
    if (parts > 1) part = at / work.tiles, tile = at % work.tiles;
    int of_group = tile;
    const int tiles_of_group = work.tiles_m * work.tiles_n;
    if (tiles_of_group != work.tiles) group = tile / tiles_of_group, of_group = tile % tiles_of_group;
    const TileAt t = tile_at<kBand>(of_group, work.tiles_m, work.tiles_n);
    const int blocks = int(blocks_of(launch.args.k));
    *item = {group, t.down, t.across, tile, part, 0, blocks};
    if (parts > 1) item->k_begin = blocks * part / parts, item->k_end = blocks * (part + 1) / parts;
    return true;
}

// The first row and column of an item's tile, in its group's matrix.
template <class S>
__device__ inline int64_t first_row(const WorkItem& item) {
    return int64_t(item.tile_m) * S::rows;
}
template <class S>
__device__ inline int64_t first_column(const WorkItem& item) {
    return int64_t(item.tile_n) * S::columns;
}

// A workgroup makes one item after the other. T: the loads and sums of one; lds: the kernel's.
template <class S, class Launch, class T>
__device__ inline void make_items(typename T::Lds& lds) {
    WorkItem item;
    int turn = 0;
    if (!item_at<S, Launch>(turn, &item)) return;
    T tile(lds);
    tile.begin(item);
    for (bool more = true; more;) {
        tile.multiply();
        const WorkItem done = item;
        more = item_at<S, Launch>(++turn, &item);
        // The next item's first stages come while this one ends.
        if (more) tile.begin(item);
        tile.finish(done);
    }
}

}  // namespace
}  // namespace rocm_fp8::gemm::hip
