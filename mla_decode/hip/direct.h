// The kernel of gfx950 for 16-bit caches: loads go to LDS directly, so all of its 160 KiB are tiles that are multiplied or
// on their way.
//
//     a wave has a tile for itself (d16, d32)   loads it, waits, multiplies it, loads the next one: four waves take
//                                               turns, and there is no barrier
//     waves share tiles (d64, d128)             a ring of two or four: one is multiplied, the others are on their way;
//                                               a barrier a tile
#pragma once

#include <type_traits>

#include "direct_rows.h"
#include "finish.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

#if defined(__gfx950__)

template <class Rows, class Loader>
__device__ inline void attend_own(Rows& rows, Loader& loader, uint32_t place, int32_t begin, int32_t end, int apart) {
    for (int32_t tile = begin; tile < end; tile += apart) {
        // The tile, and the pages of the next one.
        wait_for_loads<0>();
        rows.attend(place, tile, [](int) {});
        if (tile + apart >= end) break;
        // All that has been read of the tile has arrived.
        lds_done();
        loader.request_all(place, tile + apart);
        loader.find(tile + 2 * apart);
    }
}

// `ring` tiles of LDS. Behind the last tile that again is asked for, of tokens of which no exponential counts.
template <int ring, int apart, class Rows, class Loader>
__device__ inline void attend_shared(Rows& rows, Loader& loader, uint32_t places, int32_t begin, int32_t turns) {
    // In a turn the pages of the tile behind the next one are asked for, then a tile. At a turn's head this tile has to be
    // there, and the pages of the one that is asked for.
    constexpr int kAhead = ring - 1, kFlying = kAhead == 1 ? 0 : (kAhead - 1) * Loader::kLoads + kAhead - 2;
    constexpr int kPieces = 12;
    static_assert(Loader::kEights * kPieces <= Rows::kKeySteps);
    uint32_t at = 0;
    for (int32_t turn = 0; turn < turns; ++turn) {
        const int32_t tile = begin + turn * apart, next = tile + kAhead * apart;
        wait_for_loads<kFlying>();
        // Closes: all waves' loads of the tile are there, and the tile before it has been read.
        lds_done(), lds_barrier();
        const uint32_t to = places + (at == 0 ? kAhead : at - 1) * kDirectBytes;
        loader.find(next + 2 * apart);
        rows.attend(places + at * kDirectBytes, tile, [&](int step) {
            const int eight = step / kPieces, piece = step % kPieces;
            if (eight >= Loader::kEights) return;
            if (piece == 0) loader.look(next, eight);
            else if (piece == 2) loader.prepare(next, eight);
            else if (piece > 2) loader.request(to, eight, piece - 3);
        });
        at = at == kAhead ? 0 : at + 1;
    }
}

template <int index>
constexpr bool kShared = kDirectForms[index].waves > 1;
template <int index>
constexpr int kDirectLds = kDirectForms[index].groups * kDirectForms[index].buffers * kTileBytes;

template <int index, DType type>
__device__ inline void decode_direct(char* lds) {
    static constexpr const Form& form = kDirectForms[index];
    constexpr int kTiles = form.buffers * kTile / kDirectTile, kPages = kShared<index> ? 4 : 1;
    using OwnRows = std::conditional_t<form.matrix == 32, DirectWideRows<type, form.keys_ahead, form.values_ahead>,
                                       DirectRows<type, form.keys_ahead, form.values_ahead>>;
    const Launch& launch = arguments<Launch>();
    const Args& a = launch.args;
    Item item;
    if (!item_of(launch, form.rows(), &item)) return;
    const int32_t length = int32_t(a.length_of(item.b)), tiles = (length + kDirectTile - 1) / kDirectTile;
    const Share share = share_of(tiles, launch.partial.splits, item.split);
    if (share.begin == share.end && launch.partial.splits > 1) return;

    const int all = uniform(threadIdx.x / kWave), group = all / form.waves, wave = all % form.waves;
    const int first_row = item.first_row + wave * form.matrix;
    const bool live = first_row < a.rows();
    const int32_t end = share.end * kDirectTile < length ? share.end * kDirectTile : length;

    DirectLoader<form.waves, form.groups, kPages> loader;
    const uint32_t whole = lds_address(lds), places = whole + uint32_t(group) * kTiles * kDirectBytes;
    const int32_t begin = share.begin + group;
    const bool loads = kShared<index> ? share.begin < share.end : begin < share.end;
    constexpr int kAtFirst = kShared<index> ? kTiles - 1 : 1;
    const auto nth = [&](int i) { return begin + i * form.groups; };
    if (loads) {
        const Cache& cache = a.cache;
        loader.start({cache.data, cache.page_stride, cache.row_stride, cache.pages,
                      a.table ? a.table + item.b * a.table_stride : nullptr, item.b, launch.page_size},
                     end, wave, whole + kDirectLds<index> + uint32_t(all) * kPages * kWave * 4);
#pragma unroll
        for (int i = 0; i < kAtFirst + (kTiles == 2); ++i) loader.find(nth(i));
    }
    // As in a turn of attend_shared: of a ring two tiles' pages ahead.
    const auto request = [&](int i) {
        if (kShared<index> && i + 2 >= kAtFirst) loader.find(nth(i + 2));
        loader.request_all(places + i * kDirectBytes, nth(i));
    };
    if (loads) {
        wait_for_loads<0>();
        request(0);
        if (!kShared<index>) loader.find(nth(1));
    }
    OwnRows rows;
    rows.start(launch, item, first_row, length, end, a.softmax_scale * attention::kLog2E);
    rows.ready();
    if (loads) {
#pragma unroll
        for (int i = 1; i < kAtFirst; ++i) request(i);
    }
    if constexpr (kShared<index>) {
        const int32_t turns = (share.end - share.begin + form.groups - 1) / form.groups;
        attend_shared<kTiles, form.groups>(rows, loader, places, begin, turns);
        // Before others use their places.
        wait_for_loads<0>();
    } else {
        attend_own(rows, loader, places, begin, share.end, form.groups);
    }
    if constexpr (form.matrix == 32) rows.finished();
    finish<form, type>(rows, launch, item, first_row, live, 1.0f, lds, group, wave);
}

#endif

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
