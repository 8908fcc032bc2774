// What a workgroup makes of a launch, and its waves' parts of that.
#pragma once

#include "../../common/attention/gpu/paged.h"
#include "../gpu/splits.h"
#include "config.h"

namespace rocm_fp8::mla_decode::hip {

// A kernel of kDirectForms, which takes a Launch: direct.hip.
const void* direct_kernel(int form, DType type);

namespace {

struct Launch {
    Args args;
    Partial partial;
    Divider page_size, heads, row_tiles, splits;
    uint32_t items, per_chiplet;

    __device__ attention::PagedRows tokens(int32_t b) const {
        const Cache& cache = args.cache;
        return {cache.data,
                cache.page_stride,
                cache.row_stride,
                cache.pages,
                args.table ? args.table + b * args.table_stride : nullptr,
                b,
                page_size};
    }
};

// What a workgroup makes.
struct Item {
    int32_t b, split, first_row;
};

// Row tiles of a split follow one another on a chiplet, whose L2 they share.
__device__ inline bool item_of(const Launch& launch, int rows, Item* item) {
    const uint32_t place = blockIdx.x / kChiplets, at = blockIdx.x % kChiplets * launch.per_chiplet + place;
    if (place >= launch.per_chiplet || at >= launch.items) return false;
    const uint32_t of_rows = divide(at, launch.row_tiles), b = divide(of_rows, launch.splits);
    *item = {int32_t(b), int32_t(of_rows - b * launch.splits.divisor),
             int32_t(at - of_rows * launch.row_tiles.divisor) * rows};
    return true;
}

// A wave's part of it.
struct Work {
    Item item;
    Share share;          // the workgroup's tiles
    int32_t length, end;  // tokens: of the sequence, and up to the share's end
    int group, wave;      // its place, in its group
    int first_row;
    bool live;  // it has a row
};
// shares: how splits share a sequence's tiles.
template <const Form& form, auto shares>
__device__ inline Work work_of(const Launch& launch, const Item& item) {
    const int32_t length = int32_t(launch.args.length_of(item.b)), tiles = (length + form.tile() - 1) / form.tile();
    const Share share = shares(tiles, launch.partial.splits, item.split);
    const int all = uniform(threadIdx.x / kWave), group = all / form.waves, wave = all % form.waves;
    const int first_row = item.first_row + wave * form.matrix;
    const int32_t end = share.end * form.tile() < length ? share.end * form.tile() : length;
    return {item, share, length, end, group, wave, first_row, first_row < launch.args.rows()};
}

// A row of a launch: its query, and how many tokens it sees before `end`.
struct OwnRow {
    const uint8_t* q;
    int32_t seen;
};
__device__ inline OwnRow own_row(const Launch& launch, const Work& work, int row) {
    const Args& a = launch.args;
    const int last = a.rows() - 1;
    row = row < last ? row : last;
    const int query = int(divide(uint32_t(row), launch.heads)), head = row - query * a.heads;
    const int64_t seen = a.seen_by(query, work.length);
    const int64_t at = work.item.b * a.q_batch_stride + query * a.q_query_stride + head * a.q_head_stride;
    return {static_cast<const uint8_t*>(a.q) + at * 2, seen < work.end ? int32_t(seen) : work.end};
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
