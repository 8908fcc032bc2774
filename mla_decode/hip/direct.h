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

#include "attend.h"
#include "direct_tile.h"
#include "finish.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

#if defined(__gfx950__)

// A tile, at `lds`, against a wave's rows; both products by instructions of twice the k. While the matrix unit is busy, a
// little of all else:
//
//     during.keys(step, n)     n = 0, 1, step < Tile::kKeySteps
//     during.between()         ahead of the exponentials
//     during.values(step)      step < Tile::kValueSteps
//
// A product has eight of the lane's tokens, of 16 rows all. Of 32 the other eight become exponentials behind its first
// instructions.
template <const Form& form, DType type, class Tile, class During>
__device__ inline void attend_direct(Rows<form, type, Tile>& rows, const Tile& in_lds, uint32_t lds, int32_t tile,
                                     const During& during) {
    constexpr bool kTwice = form.matrix == 32;
    typename Rows<form, type, Tile>::Scores scores;
    rows.score(scores, in_lds.keys(lds), during);
    const auto read = in_lds.values(lds);
    u32x4 values[form.values_ahead];
#pragma unroll
    for (int step = 0; step < form.values_ahead; ++step) values[step] = read(step);
    if constexpr (kTwice) settle<3>();  // the reads of values count
    rows.refer(scores, tile);
    during.between();
    f32x4 p[2];
    u32x4 exponentials;
    const auto take = [&] {
        exponentials = joined(rows.softmax.rounded(p[0]), rows.softmax.rounded(p[1]));
        if constexpr (kTwice) settle_operand(exponentials);
    };
#pragma unroll
    for (int i = 0; i < 8; ++i) p[i / 4][i % 4] = rows.softmax.exponential(scores[i]);
    take();
    keep_order();
#pragma unroll
    for (int step = 0; step < Tile::kValueSteps; ++step) {
        u32x4& now = values[step % form.values_ahead];
        multiply_values<type>(rows.sums[read.sum_of(step)], now, exponentials);
        keep_order();
        if (step + form.values_ahead < Tile::kValueSteps) now = read(step + form.values_ahead);
        if (kTwice && step < 8) p[step / 4][step % 4] = rows.softmax.exponential(scores[8 + step]);
        during.values(step);
        if (kTwice && step + 1 == Tile::kValueSteps / 2) take();
        keep_order();
    }
}

template <const Form& form, DType type, class Tile, class Loader>
__device__ inline void attend_own(Rows<form, type, Tile>& rows, const Tile& in_lds, Loader& loader, uint32_t place,
                                  const Work& work) {
    constexpr int kApart = form.groups;
    for (int32_t tile = work.share.begin + work.group; tile < work.share.end; tile += kApart) {
        // The tile, and the pages of the next one.
        wait_for_loads<0>();
        attend_direct(rows, in_lds, place, tile, Nothing());
        if (tile + kApart >= work.share.end) break;
        // All that has been read of the tile has arrived.
        lds_done();
        loader.request_all(place, tile + kApart);
        loader.find(tile + 2 * kApart);
    }
}

// A ring of tiles in LDS. In a turn, while tile t is multiplied, are
//
//     asked for   tile t + kAhead, between keys; then the pages of tile t + kAhead + 4
//     found       tile t + kAhead + 1, between values
//
// tiles counted by `apart`. So at a turn's head tile t has to be there, and the pages of t + kAhead + 1. Behind the last
// tile that again is asked for, of tokens of which no exponential counts.
template <const Form& form, class Tile, class Loader>
struct SharedTurn {
    static constexpr int kAhead = form.buffers * kTile / kDirectTile - 1, kPages = 4, kApart = form.groups;
    static constexpr int kFlying = kAhead == 1 ? 0 : (kAhead - 1) * (Loader::kLoads + 1);
    static_assert(kAhead == 1 || kAhead == 3);
    static constexpr int kFirst = 8;  // step of values: those before have exponentials
    static_assert(Loader::kLoads + 2 <= Tile::kKeySteps);
    static_assert(kFirst + Loader::kEights * Loader::kPieces <= Tile::kValueSteps);
    Loader& loader;
    int32_t next;
    uint32_t to;  // its place

    __device__ void keys(int step, int n) const {
        if (n == 0) return;
        if (step < Loader::kLoads) loader.request(to, step / 9, step % 9);
        else if (step < Loader::kLoads + 2) loader.find(next + kPages * kApart, step - Loader::kLoads);
    }
    __device__ void between() const {
        if constexpr (kApart == 2) {
            keep_order();
            // Barrier for the pace: the second group stays half a turn behind, so that loads come evenly.
            lds_barrier();
            keep_order();
        }
    }
    __device__ void values(int step) const {
        const int piece = step - kFirst, eight = piece / Loader::kPieces;
        if (piece >= 0 && eight < Loader::kEights) loader.prepare(next + kApart, eight, piece % Loader::kPieces);
    }
};
template <const Form& form, DType type, class Tile, class Loader>
__device__ inline void attend_shared(Rows<form, type, Tile>& rows, const Tile& in_lds, Loader& loader, uint32_t places,
                                     const Work& work) {
    using Turn = SharedTurn<form, Tile, Loader>;
    constexpr int kAhead = Turn::kAhead, kApart = form.groups;
    const int32_t begin = work.share.begin + work.group;
    // As in turns, behind the first tile.
#pragma unroll
    for (int i = 1; i < kAhead; ++i) {
        loader.request_all(places + i * kDirectBytes, begin + i * kApart);
        loader.find(begin + (Turn::kPages + i) * kApart);
    }
#pragma unroll
    for (int e = 0; e < loader.kEights; ++e) {
#pragma unroll
        for (int piece = 0; piece < loader.kPieces; ++piece) loader.prepare(begin + kAhead * kApart, e, piece);
    }
    const int32_t turns = (work.share.end - work.share.begin + kApart - 1) / kApart;
    // Barrier for the pace: the second group waits for half of the first one's turn; at the end the first one for the second.
    if (kApart == 2 && work.group == 1) lds_barrier();
    uint32_t at = 0;
    for (int32_t turn = 0; turn < turns; ++turn) {
        const int32_t tile = begin + turn * kApart;
        wait_for_loads<Turn::kFlying>();
        // Barrier: all waves' loads of the tile are there, and the tile before it has been read.
        lds_done(), lds_barrier();
        const uint32_t to = places + (at == 0 ? kAhead : at - 1) * kDirectBytes;
        attend_direct(rows, in_lds, places + at * kDirectBytes, tile, Turn{loader, tile + kAhead * kApart, to});
        at = at == kAhead ? 0 : at + 1;
    }
    // Barrier for the pace: see above.
    if (kApart == 2 && work.group == 0) lds_barrier();
    // Before others use their places.
    wait_for_loads<0>();
    if constexpr (form.groups == 1) {
        // Barrier: all waves have read the last tile, in whose place sums are put. Of two groups meet_groups does.
        lds_done(), lds_barrier();
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
    const Launch& launch = arguments<Launch>();
    Item item;
    if (!item_of(launch, form.rows(), &item)) return;
    const Work work = work_of<form, short_share_of>(launch, item);
    if (work.share.begin == work.share.end && launch.partial.splits > 1) return;

    DirectLoader<form.waves, form.groups, kPages> loader;
    const uint32_t whole = lds_address(lds), places = whole + uint32_t(work.group) * kTiles * kDirectBytes;
    const int32_t begin = work.share.begin + work.group;
    // A ring is filled with what is there even for no token: addresses behind a branch would be in vector registers.
    const bool loads = kShared<index> || begin < work.share.end;
    const auto nth = [&](int i) { return begin + i * form.groups; };
    if (loads) {
        const int wave = work.group * form.waves + work.wave;
        loader.start(launch.tokens(work.item.b), work.end > 0 ? work.end : 1, work.wave,
                     whole + kDirectLds<index> + uint32_t(wave) * kPages * kWave * 4);
#pragma unroll
        for (int i = 0; i < kPages; ++i) loader.find(nth(i));
        wait_for_loads<0>();
        loader.request_all(places, nth(0));
        loader.find(nth(kPages));
    }
    Rows<form, type, DirectTile<form.matrix>> rows;
    rows.start(launch, work, launch.args.softmax_scale * attention::kLog2E);
    const DirectTile<form.matrix> in_lds;
    if constexpr (kShared<index>) attend_shared(rows, in_lds, loader, places, work);
    else attend_own(rows, in_lds, loader, places, work);
    finish(rows, launch, work, 1.0f, lds);
}

#endif

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
