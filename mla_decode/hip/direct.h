// The kernel of gfx950 for 16-bit caches: loads go to LDS directly, so all of its 160 KiB are tiles that are multiplied or
// on their way.
//
//     a wave has a tile for itself (d16, d32)   loads it, waits, multiplies it, loads the next one: four waves take
//                                               turns, and there is no barrier
//     waves share tiles (d64, d128)             a ring of two or four: one is multiplied, the others are on their way;
//                                               a barrier a tile, of two groups two
//
// With 64 rows of a sequence's 128, d64 needs no splits for 128 sequences: the other 64 rows' workgroup is its neighbour
// on a chiplet, whose L2 gives them the tokens a second time.
//
// Waits and wait states of what is assembly here are held by the simulator's checks of hazards and of waits.
#pragma once

#include <type_traits>

#include "direct_rows.h"
#include "finish.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

#if defined(__gfx950__)

struct Nothing {
    __device__ void keys(int) const {}
    __device__ void between() const {}
    __device__ void values(int) const {}
};

template <class Rows, class Loader>
__device__ inline void attend_own(Rows& rows, Loader& loader, uint32_t place, int32_t begin, int32_t end, int apart) {
    for (int32_t tile = begin; tile < end; tile += apart) {
        // The tile, and the pages of the next one.
        wait_for_loads<0>();
        rows.attend(place, tile, Nothing());
        if (tile + apart >= end) break;
        // All that has been read of the tile has arrived.
        lds_done();
        loader.request_all(place, tile + apart);
        loader.find(tile + 2 * apart);
    }
}

// A ring of tiles in LDS. In a turn, while tile t is multiplied, are
//
//     asked for   tile t + kAhead, between keys; then the pages of tile t + kAhead + 4
//     found       tile t + kAhead + 1, between values
//
// tiles counted by `apart`. So at a turn's head tile t has to be there, and the pages of t + kAhead + 1. Behind the last
// tile that again is asked for, of tokens of which no exponential counts.
template <int ring, int apart, class Rows, class Loader>
struct SharedTurn {
    static constexpr int kAhead = ring - 1, kPages = 4;
    static constexpr int kFlying = kAhead == 1 ? 0 : (kAhead - 1) * (Loader::kLoads + 1);
    static_assert(kAhead == 1 || kAhead == 3);
    static constexpr int kFirst = 8;  // step of values: those before have exponentials
    static_assert(Loader::kLoads + 2 <= Rows::kKeySteps);
    static_assert(kFirst + Loader::kEights * Loader::kPieces <= Rows::kValueSteps);
    Loader& loader;
    int32_t next;
    uint32_t to;  // its place

    __device__ void keys(int step) const {
        if (step < Loader::kLoads) loader.request(to, step / 9, step % 9);
        else if (step < Loader::kLoads + 2) loader.find(next + 4 * apart, step - Loader::kLoads);
    }
    __device__ void between() const {
        if constexpr (apart == 2) {
            __builtin_amdgcn_sched_barrier(0);
            // Barrier for the pace: the second group stays half a turn behind, so that loads come evenly.
            lds_barrier();
            __builtin_amdgcn_sched_barrier(0);
        }
    }
    __device__ void values(int step) const {
        const int piece = step - kFirst, eight = piece / Loader::kPieces;
        if (piece >= 0 && eight < Loader::kEights) loader.prepare(next + apart, eight, piece % Loader::kPieces);
    }
};
template <int ring, int apart, class Rows, class Loader>
__device__ inline void attend_shared(Rows& rows, Loader& loader, uint32_t places, int32_t begin, int32_t turns,
                                     int group) {
    using Turn = SharedTurn<ring, apart, Rows, Loader>;
    constexpr int kAhead = Turn::kAhead;
    // Barrier for the pace: the second group waits for half of the first one's turn; at the end the first one for the second.
    if (apart == 2 && group == 1) lds_barrier();
    uint32_t at = 0;
    for (int32_t turn = 0; turn < turns; ++turn) {
        const int32_t tile = begin + turn * apart;
        wait_for_loads<Turn::kFlying>();
        // Barrier: all waves' loads of the tile are there, and the tile before it has been read.
        lds_done(), lds_barrier();
        const uint32_t to = places + (at == 0 ? kAhead : at - 1) * kDirectBytes;
        rows.attend(places + at * kDirectBytes, tile, Turn{loader, tile + kAhead * apart, to});
        at = at == kAhead ? 0 : at + 1;
    }
    // Barrier for the pace: see above.
    if (apart == 2 && group == 0) lds_barrier();
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
    const Share share = short_share_of(tiles, launch.partial.splits, item.split);
    if (share.begin == share.end && launch.partial.splits > 1) return;

    const int all = uniform(threadIdx.x / kWave), group = all / form.waves, wave = all % form.waves;
    const int first_row = item.first_row + wave * form.matrix;
    const bool live = first_row < a.rows();
    const int32_t end = share.end * kDirectTile < length ? share.end * kDirectTile : length;

    DirectLoader<form.waves, form.groups, kPages> loader;
    const uint32_t whole = lds_address(lds), places = whole + uint32_t(group) * kTiles * kDirectBytes;
    const int32_t begin = share.begin + group;
    // A ring is filled with what is there even for no token: addresses behind a branch would be in vector registers.
    const bool loads = kShared<index> || begin < share.end;
    const auto nth = [&](int i) { return begin + i * form.groups; };
    if (loads) {
        const Cache& cache = a.cache;
        loader.start({cache.data, cache.page_stride, cache.row_stride, cache.pages,
                      a.table ? a.table + item.b * a.table_stride : nullptr, item.b, launch.page_size},
                     end > 0 ? end : 1, wave, whole + kDirectLds<index> + uint32_t(all) * kPages * kWave * 4);
#pragma unroll
        for (int i = 0; i < kPages; ++i) loader.find(nth(i));
        wait_for_loads<0>();
        loader.request_all(places, nth(0));
        loader.find(nth(kPages));
    }
    OwnRows rows;
    rows.start(launch, item, first_row, length, end, a.softmax_scale * attention::kLog2E);
    rows.ready();
    rows.find_places();
    if constexpr (kShared<index>) {
        // As in turns.
#pragma unroll
        for (int i = 1; i < kTiles - 1; ++i) {
            loader.request_all(places + i * kDirectBytes, nth(i));
            loader.find(nth(kPages + i));
        }
#pragma unroll
        for (int e = 0; e < loader.kEights; ++e) {
#pragma unroll
            for (int piece = 0; piece < loader.kPieces; ++piece) loader.prepare(nth(kTiles - 1), e, piece);
        }
    }
    if constexpr (kShared<index>) {
        const int32_t turns = (share.end - share.begin + form.groups - 1) / form.groups;
        attend_shared<kTiles, form.groups>(rows, loader, places, begin, turns, group);
        // Before others use their places.
        wait_for_loads<0>();
        if constexpr (form.groups == 1) {
            // Barrier: all waves have read the last tile, in whose place sums are put. Of two groups meet_groups does.
            lds_done(), lds_barrier();
        }
    } else {
        attend_own(rows, loader, places, begin, share.end, form.groups);
    }
    if constexpr (form.matrix == 32) rows.finished();
    finish<form, type>(rows, launch, item, first_row, live, 1.0f, lds, group, wave);
}

#endif

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
