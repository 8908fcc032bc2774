// What a CTA of the Hopper kernel has in shared memory, and what it is launched with.
#pragma once

#include "../../common/attention/gpu/paged.h"
#include "../../common/cuda/mbarrier.h"
#include "../../common/cuda/pdl.h"
#include "../../common/cuda/shared_memory.h"
#include "../../common/cuda/vector.h"
#include "../../common/cuda/wgmma.h"
#include "../gpu/splits.h"
#include "config.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

// 64 rows of 64 16-bit numbers, with TMA's 128-byte swizzle. Of a tile's nine the last has the rotated numbers.
constexpr int kPanelColumns = 64, kPanelRow = 128, kPanelBytes = 64 * kPanelRow, kPanels = kWidth / kPanelColumns;
constexpr int kValuePanels = kLatent / kPanelColumns, kRopePanel = kValuePanels;
using Tile = uint8_t[kPanels][kPanelBytes];

// A buffer is a multiplying warpgroup's: it makes scores of all of it. Warpgroup h reads half h of both buffers as
// values. So halves are filled and emptied apart. The rotated numbers' panel, in whose place p lies later for the other
// warpgroup, goes with the half that this one reads: of buffer b the last half.
constexpr int kBuffers = 2, kHalves = 2, kHalfPanels = kValuePanels / kHalves;
__device__ constexpr int last_half(int buffer) { return 1 - buffer; }

constexpr int kWarpsOfWarpgroup = kWarpgroup / kWarp;

constexpr int kTileRows = kWideForm.rows;

struct Memory {
    alignas(1024) Tile q;
    Tile keys[kBuffers];
    float reference[kBuffers][kTileRows];  // of the exponentials of each buffer's tile
    // Of the exponentials that each warpgroup took; by turns, as one may be through a CTA's next piece of work before the
    // other has read those of the last.
    float totals[2][kBuffers][kTileRows];
    Barrier full[kBuffers][kHalves], empty[kBuffers][kHalves];
    Barrier q_full, q_empty;
};
static_assert(sizeof(Memory) <= 232448);

// Barriers of both multiplying warpgroups: p of a pair's first tile is there, of its second; others.
constexpr int kOfFirst = 1, kOfSecond = 2, kQueriesMeet = 3, kTotalsMeet = 4;

// A warp fills a half. Registers of a thread that fills, and of one that multiplies. More warps than these there cannot
// be: the largest multiplication needs 158 registers before any are taken.
constexpr int kFeeders = kBuffers * kHalves * kWarp, kMultiplyingThreads = kBuffers * kWarpgroup;
constexpr int kTilesThreads = kFeeders + kMultiplyingThreads, kFewRegisters = 40, kManyRegisters = 232;
// More than the threads begin with would never be granted.
static_assert(kFeeders * kFewRegisters + kMultiplyingThreads * kManyRegisters <= kTilesThreads * 168);

struct Launch {
    Args args;
    Divider page_size, heads;
    int row_tiles;
    int64_t items;    // pieces of work, of which a persistent CTA takes every gridDim.x-th
    int box_rows;     // of a TMA copy; 0: none
    Partial partial;  // where splits are more than one
};

// A piece of work, a CTA's or one of several of a persistent one: rows [row, row + kTileRows) of sequence b, tokens [begin, end) of it.
struct Work {
    int64_t b;
    int row, split;
    int length;      // of the sequence
    int begin, end;  // whole tiles, but for the sequence's end
};

template <int kTokens>
__device__ inline Work work_of(const Launch& l, int rows_of_tile, uint32_t item) {
    const uint32_t tile = item % l.row_tiles, rest = item / l.row_tiles;
    Work w;
    w.b = rest / l.partial.splits, w.split = int(rest % l.partial.splits);
    w.row = int(tile) * rows_of_tile;
    w.length = int(l.args.length_of(w.b));
    const Share share = share_of((w.length + kTokens - 1) / kTokens, l.partial.splits, w.split);
    w.begin = share.begin * kTokens;
    w.end = min(share.end * kTokens, w.length);
    return w;
}

__device__ inline attention::PagedRows rows_of(const Launch& l, int64_t b) {
    const Args& a = l.args;
    return {a.cache.data,
            a.cache.page_stride,
            a.cache.row_stride,
            a.cache.pages,
            a.table ? a.table + b * a.table_stride : nullptr,
            int32_t(b),
            l.page_size};
}

// The place of 16 bytes of a panel.
__device__ inline int swizzled(int row, int sixteen) { return row * kPanelRow + ((sixteen ^ (row & 7)) << 4); }

// Tokens that a row sees; rows behind the last one see none.
__device__ inline int seen_by_row(const Launch& l, const Work& w, int row) {
    if (row >= l.args.rows()) return 0;
    return int(l.args.seen_by(divide(uint32_t(row), l.heads), w.length));
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
