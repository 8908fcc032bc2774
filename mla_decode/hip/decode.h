// The kernel: rows (queries and heads) of a sequence against a share of its tokens. A wave has 16 rows or 32, with all
// 512 columns of their sums.
#pragma once

#include "attend.h"
#include "finish.h"
#include "tile.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

// The main loop of waves of 16 rows. Groups take tiles in turn. While one is multiplied, the group's next one is on its
// way to registers.
template <const Form& form, DType type, class Loader>
__device__ inline void attend_share(Rows<form, type, Tile<16>>& rows, Loader& loader, char* place, const Work& work) {
    static_assert(form.buffers == 1);
    constexpr int kApart = form.groups;
    for (int32_t of_first = work.share.begin; of_first < work.share.end; of_first += kApart) {
        const int32_t tile = of_first + work.group;
        // Barrier: the tile that lay there has been read.
        if constexpr (form.waves > 1) lds_done(), lds_barrier();
        else meet_lanes();
        if (tile < work.share.end) {
            loader.store(place, tile);
            if (tile + kApart < work.share.end) {
                loader.request_all(tile + kApart);
                if (tile + 2 * kApart < work.share.end) loader.find(tile + 2 * kApart);
            }
        }
        // Barrier: the tile is in LDS.
        if constexpr (form.waves > 1) lds_done(), lds_barrier();
        else meet_lanes();
        if (work.live && tile < work.share.end) attend(rows, Tile<16>{{lds_address(place)}}, tile);
    }
}

// The main loop of waves of 32 rows. A tile's halves lie in two of three places:
//
//     keys x queries           asks for the second half of the next tile; stores its first half in the third place, and
//                              asks for that of the tile behind it
//     values, first half       frees that place
//     values, second half      stores the second half there
//
// So each half has most of a tile's time to come. What is behind the last tile is asked for, too: the last token again.
template <class Loader>
struct WideTurn {
    static constexpr int kFirst = 1, kSecond = Tile<32>::kKeySteps - Loader::kStores - Loader::kRequests - 2;
    static constexpr int kHalf = Tile<32>::kValueSteps / 2;
    static_assert(kFirst + Loader::kRequests < kSecond && Loader::kStores <= kHalf);
    Loader (&loaders)[2];
    char *first, *free;
    int32_t tile;

    // A request is prepared behind one instruction, and made behind the next one.
    __device__ static void ask(Loader& loader, int32_t of, int request, int n) {
        if (n == 1 && request >= -1 && request + 1 < Loader::kRequests) loader.prepare(of, request + 1);
        if (n == 0 && request >= 0 && request < Loader::kRequests) loader.request(request);
        if (n == 0 && request == Loader::kRequests) loader.find(of + 2);
    }
    __device__ void keys(int step, int n) const {
        const int store = step - kSecond;
        ask(loaders[1], 2 * tile + 3, step - kFirst, n);
        // Its tile was multiplied before the last barrier.
        if (store >= 0 && store < Loader::kStores && n == 0) loaders[0].store(free, 2 * tile + 2, store);
        ask(loaders[0], 2 * tile + 4, store - Loader::kStores, n);
    }
    // Barrier: the first half has been multiplied by all; its place is free.
    __device__ void between() const { lds_barrier(); }
    __device__ void values(int step) const {
        const int store = step - kHalf;
        if (store >= 0 && store < Loader::kStores) loaders[1].store(first, 2 * tile + 3, store);
    }
};
template <const Form& form, DType type, class Loader>
__device__ inline void attend_share(Rows<form, type, Tile<32>>& rows, Loader (&loaders)[2],
                                    char (&places)[3][kTileBytes], const Work& work) {
    const Share share = work.share;
    if (share.begin == share.end) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) loaders[half].store(places[half], 2 * share.begin + half);
    loaders[0].request_all(2 * share.begin + 2);
    loaders[0].find(2 * share.begin + 4);
    // Barrier: the first tile is in LDS.
    lds_done(), lds_barrier();
    int32_t at = 0;
    const auto after = [](int32_t place) { return place == 2 ? 0 : place + 1; };
    for (int32_t tile = share.begin; tile < share.end; ++tile) {
        const int32_t second = after(at), next = after(second);
        attend(rows, Tile<32>{{lds_address(places[at]), lds_address(places[second])}}, tile,
               WideTurn<Loader>{loaders, places[at], places[next], tile});
        // Barrier: the next tile is in LDS; the second half has been multiplied by all.
        lds_done(), lds_barrier();
        at = next;
    }
    rows.finished();  // where the way of no tiles meets this one
}

template <const Form& form>
constexpr int kWavesPerSimd = (form.waves * form.groups * form.per_unit + 3) / 4;

template <int index, DType type, Format format>
__global__ __launch_bounds__((kForms[index].threads()), (kWavesPerSimd<kForms[index]>)) void mla_decode(Launch) {
    static constexpr const Form& form = kForms[index];
    __shared__ alignas(128) char lds[form.groups][form.buffers][kTileBytes];
    const Launch& launch = arguments<Launch>();
    Item item;
    if (!item_of(launch, form.rows(), &item)) return;
    const Work work = work_of<form, share_of>(launch, item);
    if (work.share.begin == work.share.end && launch.partial.splits > 1) return;
    const float of_cache = format == Format::fp8 ? load_scalar(launch.args.cache.scale) : 1.0f;

    using Loader = TileLoader<form.waves, type, format>;
    Rows<form, type, Tile<form.matrix>> rows;
    // In tiles of LDS. A tile of 32 tokens is two of them, and has a loader for each.
    constexpr int32_t kHalves = form.tile() / kTile, kNext = form.groups * kHalves;
    Loader loaders[kHalves];
    const int32_t begin = work.share.begin * kHalves + work.group, end = work.share.end * kHalves;
    if (begin < end) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            loaders[half].start(launch.tokens(work.item.b), work.end, work.wave);
            loaders[half].find(begin + half);
        }
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            loaders[half].request_all(begin + half);
            if (begin + half + kNext < end) loaders[half].find(begin + half + kNext);
        }
    }
    // A wave of 32 without a row of its own has the last one: a branch around its work would cost registers.
    const bool works = form.matrix == 32 || work.live;
    const float scale = launch.args.softmax_scale * of_cache * attention::kLog2E;
    if (works) rows.start(launch, work, scale);
    if constexpr (form.matrix == 32) attend_share(rows, loaders, lds[0], work);
    else attend_share(rows, loaders[0], lds[work.group][0], work);
    finish(rows, launch, work, of_cache, lds[0][0]);
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
