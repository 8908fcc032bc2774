// The kernel: rows (queries and heads) of a sequence against a share of its tokens. A wave has 16 rows (rows.h) or 32
// (wide_rows.h), with all 512 columns of their sums.
#pragma once

#include <type_traits>

#include "finish.h"
#include "tile.h"
#include "wide_rows.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

// The main loop of waves of 32 rows. A tile's halves lie in two of three places:
//
//     keys x queries           asks for the second half of the next tile; stores its first half in the third place, and
//                              asks for that of the tile behind it
//     values, first half       frees that place
//     values, second half      stores the second half there
//
// So each half has most of a tile's time to come. What is behind the last tile is asked for, too: the last token again.
template <class Rows, class Loader>
__device__ inline void attend_wide(Rows& rows, Loader (&loaders)[2], char (&places)[3][kTileBytes], Share share) {
    if (share.begin == share.end) return;
    constexpr int kFirst = 1, kSecond = Rows::kKeySteps - Loader::kStores - Loader::kRequests - 2;
    constexpr int kHalf = Rows::kValueSteps / 2;
    static_assert(kFirst + Loader::kRequests < kSecond && Loader::kStores <= kHalf);
#pragma unroll
    for (int half = 0; half < 2; ++half) loaders[half].store(places[half], 2 * share.begin + half);
    loaders[0].request_all(2 * share.begin + 2);
    loaders[0].find(2 * share.begin + 4);
    // Barrier: the first tile is in LDS.
    lds_done(), lds_barrier();
    int32_t at = 0;
    const auto after = [](int32_t place) { return place == 2 ? 0 : place + 1; };
    for (int32_t tile = share.begin; tile < share.end; ++tile) {
        const int32_t next = after(after(at));
        char *const first = places[at], *const second = places[after(at)], *const free = places[next];
        // A request is prepared behind one instruction, and made behind the next one.
        const auto ask = [&](Loader& loader, int32_t of, int request, int n) {
            if (n == 1 && request + 1 < Loader::kRequests) loader.prepare(of, request + 1);
            if (n == 0 && request >= 0 && request < Loader::kRequests) loader.request(request);
            if (n == 0 && request == Loader::kRequests) loader.find(of + 2);
        };
        const auto during_keys = [&](int step, int n) {
            const int early = step - kFirst, store = step - kSecond, late = store - Loader::kStores;
            if (early >= -1 && early <= Loader::kRequests) ask(loaders[1], 2 * tile + 3, early, n);
            // Its tile was multiplied before the last barrier.
            if (store >= 0 && late < 0 && n == 0) loaders[0].store(free, 2 * tile + 2, store);
            if (late >= -1 && late <= Loader::kRequests) ask(loaders[0], 2 * tile + 4, late, n);
        };
        // Barrier: the first half has been multiplied by all; its place is free.
        const auto between = [] { lds_barrier(); };
        const auto during_values = [&](int step) {
            if (step >= kHalf && step < kHalf + Loader::kStores) loaders[1].store(first, 2 * tile + 3, step - kHalf);
        };
        rows.attend(first, second, tile, during_keys, between, during_values);
        // Barrier: the next tile is in LDS; the second half has been multiplied by all.
        lds_done(), lds_barrier();
        at = next;
    }
    rows.finished();
}

template <const Form& form>
constexpr int kWavesPerSimd = (form.waves * form.groups * form.per_unit + 3) / 4;

template <int index, DType type, Format format>
__global__ __launch_bounds__((kForms[index].threads()), (kWavesPerSimd<kForms[index]>)) void mla_decode(Launch) {
    static constexpr const Form& form = kForms[index];
    using OwnRows = std::conditional_t<form.matrix == 32, WideRows<type, form.keys_ahead>,
                                       Rows<type, form.keys_ahead, form.values_ahead>>;
    __shared__ alignas(128) char lds[form.groups][form.buffers][kTileBytes];
    const Launch& launch = arguments<Launch>();
    const Args& a = launch.args;
    Item item;
    if (!item_of(launch, form.rows(), &item)) return;
    const int32_t length = int32_t(a.length_of(item.b)), tiles = (length + form.tile() - 1) / form.tile();
    const Share share = share_of(tiles, launch.partial.splits, item.split);
    if (share.begin == share.end && launch.partial.splits > 1) return;

    const int all = uniform(threadIdx.x / kWave), group = all / form.waves, wave = all % form.waves;
    const int first_row = item.first_row + wave * form.matrix;
    const bool live = first_row < a.rows();
    const float of_cache = format == Format::fp8 ? load_scalar(a.cache.scale) : 1.0f;
    const int32_t end = share.end * form.tile() < length ? share.end * form.tile() : length;

    using Loader = TileLoader<form.waves, type, format>;
    OwnRows rows;
    // In tiles of LDS. A tile of 32 tokens is two of them, and has a loader for each.
    constexpr int32_t kHalves = form.tile() / kTile, kNext = form.groups * kHalves;
    Loader loaders[kHalves];
    const int32_t begin = share.begin * kHalves + group, tiles_end = share.end * kHalves;
    if (begin < tiles_end) {
        const Cache& cache = a.cache;
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            Loader& loader = loaders[half];
            loader.start({cache.data, cache.page_stride, cache.row_stride, cache.pages,
                          a.table ? a.table + item.b * a.table_stride : nullptr, item.b, launch.page_size},
                         end, wave);
            loader.find(begin + half);
        }
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            loaders[half].request_all(begin + half);
            if (begin + half + kNext < tiles_end) loaders[half].find(begin + half + kNext);
        }
    }
    // A wave of 32 without a row of its own has the last one: a branch around its work would cost registers.
    const bool works = form.matrix == 32 || live;
    const float scale = a.softmax_scale * of_cache * attention::kLog2E;
    if (works) rows.start(launch, item, first_row, length, end, scale);
    if (works) rows.ready();

    if constexpr (form.matrix == 32) {
        attend_wide(rows, loaders, lds[0], share);
    } else {
        static_assert(form.buffers == 1);
        Loader& loader = loaders[0];
        char* const mine = lds[group][0];
        for (int32_t of_first = share.begin; of_first < share.end; of_first += form.groups) {
            const int32_t tile = of_first + group;
            // Barrier: the tile that lay there has been read.
            if constexpr (form.waves > 1) lds_done(), lds_barrier();
            else meet_lanes();
            if (tile < share.end) {
                loader.store(mine, tile);
                // The group's next one.
                if (tile + kNext < share.end) {
                    loader.request_all(tile + kNext);
                    if (tile + 2 * kNext < share.end) loader.find(tile + 2 * kNext);
                }
            }
            // Barrier: the tile is in LDS.
            if constexpr (form.waves > 1) lds_done(), lds_barrier();
            else meet_lanes();
            if (!live || tile >= share.end) continue;
            auto attended = rows.attend(mine, tile);
            rows.gather(mine, attended);
        }
    }
    finish<form, type>(rows, launch, item, first_row, live, of_cache, lds[0][0], group, wave);
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
