// Which tile a workgroup makes next, and the kernel's outline: a workgroup has one tile after the other.
#pragma once

#include "config.h"
#include "epilogue.h"
#include "launch.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

constexpr int kChiplets = 8;

// What the compiler may move across a point (sched_barrier): scalar and vector instructions.
constexpr int kScalars = 0x2 | 0x4;

// Units in an order in which neighbours share rows or columns: a chiplet's workgroups take units that follow one
// another.
struct Work {
    int tiles_m, tiles_n;
    int units, per_chiplet;  // of all chiplets; of one
    bool channels;           // scale_b is a scale a channel: the epilogue's
};

struct Launch {
    Args args;
    Work work;
    SplitK split;
};
using TileKernel = void (*)(Launch);

template <class S>
__device__ inline bool unit_at(int turn, Unit* unit) {
    const Launch& launch = arguments<Launch>();
    const Work& work = launch.work;
    const int parts = launch.split.parts;
    constexpr int kGroup = S::rows >= 256 ? 4 : 8;  // tiles of rows that go together
    const int place = turn * int(gridDim.x / kChiplets) + int(blockIdx.x) / kChiplets;
    const int at = int(blockIdx.x) % kChiplets * work.per_chiplet + place;
    if (place >= work.per_chiplet || at >= work.units) return false;
    const int tiles = work.tiles_m * work.tiles_n, part = at / tiles, t = at % tiles;
    const int first = t / (kGroup * work.tiles_n) * kGroup;
    const int together = work.tiles_m - first < kGroup ? work.tiles_m - first : kGroup;
    const int inside = t - first * work.tiles_n;
    const int tile_m = first + inside % together, tile_n = inside / together;
    // In scalar registers, of 32 bits: k is below 2^32, and there are 16 parts at most.
    const uint32_t blocks = uint32_t(blocks_of(launch.args.k));
    const auto first_of = [&](int p) { return int64_t(uniform(int(blocks * uint32_t(p) / uint32_t(parts)))); };
    *unit = {
        int64_t(tile_m) * S::rows, int64_t(tile_n) * S::columns, tile_m * work.tiles_n + tile_n, part, first_of(part),
        first_of(part + 1)};
    return true;
}

// T: a tile's loads and sums. lds: of the kernel.
template <class S, class T>
__device__ inline void make_units(typename T::Lds& lds) {
    Unit unit;
    int turn = 0;
    if (!unit_at<S>(turn, &unit)) return;
    T tile(lds);
    tile.begin(unit);
    for (bool more = true; more;) {
        tile.multiply();
        const Unit done = unit;
        more = unit_at<S>(++turn, &unit);
        // The next unit's first stages come while this one ends.
        if (more) tile.begin(unit);
        tile.finish(done);
    }
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
