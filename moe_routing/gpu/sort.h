// moe_sort: a counting sort without atomics. A tile is what a workgroup has in registers; wave w has neighbouring slots.
//
//     one tile      counts of each wave -> prefixes over waves and experts -> places                     one launch
//     more          moe_sort_count:   counts of each part, [experts][parts]
//                   moe_sort_prefix:  prefixes over the parts of an expert, and its sum
//                   moe_sort_place:   prefixes over experts (each workgroup its own); tile after tile, places
//
// A slot's place: where its expert begins, + the expert's slots in parts, tiles and waves before, + those before it in
// its wave. Lanes that have the same expert find one another by votes, and the highest of them counts for all.
#pragma once

#include <type_traits>

#include "../../common/gpu/lanes.h"
#include "../../common/gpu/overlap.h"
#include "../../common/rows/gpu/eight.h"
#include "../moe_routing.h"

namespace rocm_fp8::moe_routing {
namespace {

constexpr int kSortThreads = 512, kSortWaves = kSortThreads / kLanes;
constexpr int kDepth = 8;                     // slots a thread, at most
constexpr int kTile = kSortThreads * kDepth;  // counts within one fit into 16 bits
constexpr int kMostParts = 1024;
constexpr int kKeyBits = 11;  // an expert, or how many there are: dropped
static_assert(kMostExperts == 2 * kSortThreads && kMostExperts < 1 << kKeyBits && kTile < 1 << 16);

struct SortWork {
    int depth;         // slots a thread
    uint32_t parts;    // workgroups
    uint32_t a_part;   // slots of a part: whole tiles
    uint32_t* counts;  // [experts][parts], then [experts]: of all parts
};

// Of two neighbouring experts: an access of 32 bits, or one of 16.
struct alignas(4) TwoCounts {
    uint16_t of[2];
};

// Shared by a workgroup.
struct SortTable {
    TwoCounts counts[kSortWaves][kMostExperts / 2 + 1];  // of a wave; then of the waves before it
    uint32_t first[kMostExperts];                        // of an expert: where its slots of the tile begin
    uint32_t of_waves[kSortWaves];

    __device__ uint16_t& count(int wave, uint32_t key) { return counts[wave][key / 2].of[key % 2]; }
};

// A thread's slots of a tile.
struct Slots {
    uint32_t first, end;  // numbers of its first one, and behind the last of the tile
    uint32_t key[kDepth], rank[kDepth];

    __device__ uint32_t number(int i) const { return first + i * kLanes; }
};

// Their keys: experts, or how many there are.
template <bool wide>
__device__ inline void load_keys(const SortArgs& a, int depth, Slots& s) {
    using Id = std::conditional_t<wide, uint64_t, uint32_t>;  // below 0: beyond any limit
    const uint32_t experts = uint32_t(a.experts), limit = a.map ? uint32_t(a.mapped) : experts;
    Id ids[kDepth];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
        ids[i] = i < depth ? global<Id>(a.ids)[s.number(i) < s.end ? s.number(i) : s.end - 1] : 0;
    }
    keep_order();  // the loads first
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
        bool known = i < depth && s.number(i) < s.end && ids[i] < limit;
        uint32_t key = uint32_t(ids[i]);
        if (a.map && limit > 0) {
            key = uint32_t(global<int32_t>(a.map)[known ? key : 0]);
            known = known && key < experts;
        }
        s.key[i] = known ? key : experts;
    }
}

// The wave's counts of its slots, and the rank of each slot among the wave's.
template <bool wide>
__device__ inline void count_slots(const SortArgs& a, int depth, uint32_t begin, uint32_t end, SortTable& table,
                                   Slots& s) {
    const int lane = threadIdx.x % kLanes, wave = uniform(threadIdx.x / kLanes);
    s.first = begin + uint32_t(wave * depth * kLanes + lane), s.end = end;
    load_keys<wide>(a, depth, s);
    for (int two = lane; two <= a.experts / 2; two += kLanes) table.counts[wave][two] = {0, 0};
    // Barrier: lanes count where others wrote the zeros.
    meet_lanes();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
        if (i >= depth) break;
        const LaneMask same = lanes_with<kKeyBits>(s.key[i]);
        s.rank[i] = table.count(wave, s.key[i]) + lanes_below(same);
        // Barrier: a count is overwritten that lanes have read.
        meet_lanes();
        if (is_highest(same)) table.count(wave, s.key[i]) = uint16_t(s.rank[i] + 1);
        // Barrier: the next slots' lanes read it.
        meet_lanes();
    }
}

// What the threads know of experts 2 t and 2 t + 1.
struct TwoExperts {
    uint32_t low, high;

    // Without what is counted at the number of experts and beyond.
    __device__ TwoExperts of(const SortArgs& a) const {
        const int expert = 2 * int(threadIdx.x);
        return {expert < a.experts ? low : 0, expert + 1 < a.experts ? high : 0};
    }
};

// Turns the waves' counts into those of the waves before; returns the tile's.
__device__ inline TwoExperts add_waves(const SortArgs& a, SortTable& table) {
    TwoExperts sum{0, 0};
    if (2 * int(threadIdx.x) < a.experts) {
#pragma unroll
        for (int wave = 0; wave < kSortWaves; ++wave) {
            const TwoCounts two = table.counts[wave][threadIdx.x];
            table.counts[wave][threadIdx.x] = {uint16_t(sum.low), uint16_t(sum.high)};
            sum.low += two.of[0], sum.high += two.of[1];
        }
    }
    return sum.of(a);
}

// Where each expert's slots begin, by how many all have; *live: the sum. Has a barrier.
__device__ inline TwoExperts begins(const TwoExperts& counted, SortTable& table, uint32_t* live) {
    const int lane = threadIdx.x % kLanes, wave = uniform(threadIdx.x / kLanes);
    const uint32_t mine = counted.low + counted.high, up_to = sum_up_to_lane(mine);
    if (lane == kLanes - 1) table.of_waves[wave] = up_to;
    // Barrier: the waves' sums are read by waves that did not write them.
    __syncthreads();
    uint32_t before = 0, all = 0;
#pragma unroll
    for (int other = 0; other < kSortWaves; ++other) {
        const uint32_t sum = table.of_waves[other];
        before += other < wave ? sum : 0;
        all += sum;
    }
    *live = all;
    const uint32_t first = before + up_to - mine;
    return {first, first + counted.low};
}

__device__ inline void write_offsets(const SortArgs& a, const TwoExperts& first, uint32_t live) {
    auto* offsets = global<int32_t>(static_cast<void*>(a.offsets));
    const int expert = 2 * int(threadIdx.x);
    if (expert < a.experts) offsets[expert] = int32_t(first.low);
    if (expert + 1 < a.experts) offsets[expert + 1] = int32_t(first.high);
    if (threadIdx.x == 0) offsets[a.experts] = int32_t(live);
}

__device__ inline void set_first(SortTable& table, const TwoExperts& first) {
    table.first[2 * threadIdx.x] = first.low, table.first[2 * threadIdx.x + 1] = first.high;
}

__device__ inline void place_slots(const SortArgs& a, int depth, const Slots& s, SortTable& table, uint32_t live) {
    auto* rows = global<int32_t>(static_cast<void*>(a.rows));
    auto* positions = global<int32_t>(static_cast<void*>(a.positions));
    const int wave = uniform(threadIdx.x / kLanes);
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
        const uint32_t slot = s.number(i), key = s.key[i];
        if (i >= depth || slot >= s.end) break;
        const bool kept = key < uint32_t(a.experts);
        const uint32_t place = kept ? table.first[key] + table.count(wave, key) + s.rank[i] : ~0u;
        positions[slot] = int32_t(place);
        if (kept) rows[place] = int32_t(slot);
        if (slot >= live) rows[slot] = -1;
    }
}

template <bool wide>
__global__ __launch_bounds__(kSortThreads) void moe_sort_tile(SortArgs a, SortWork work) {
    __shared__ SortTable table;
    let_next_kernel_start();
    wait_for_previous_kernel();
    Slots s;
    count_slots<wide>(a, work.depth, 0, uint32_t(a.slots), table, s);
    // Barrier: the waves' counts are read by waves that did not write them.
    __syncthreads();
    uint32_t live;
    const TwoExperts first = begins(add_waves(a, table), table, &live);
    set_first(table, first);
    write_offsets(a, first, live);
    // Barrier: where experts begin, and the counts of waves before, are read by waves that did not write them.
    __syncthreads();
    place_slots(a, work.depth, s, table, live);
}

// A workgroup's part. body(begin, end) for each of its tiles.
template <class Body>
__device__ inline void each_tile(const SortArgs& a, const SortWork& work, const Body& body) {
    const uint32_t slots = uint32_t(a.slots), begin = blockIdx.x * work.a_part;
    const uint32_t end = slots - begin < work.a_part ? slots : begin + work.a_part;
    for (uint32_t at = begin; at < end; at += kTile) body(at, end - at < kTile ? end : at + kTile);
}

template <bool wide>
__global__ __launch_bounds__(kSortThreads) void moe_sort_count(SortArgs a, SortWork work) {
    __shared__ SortTable table;
    let_next_kernel_start();
    wait_for_previous_kernel();
    TwoExperts counted{0, 0};
    each_tile(a, work, [&](uint32_t begin, uint32_t end) {
        Slots s;
        count_slots<wide>(a, kDepth, begin, end, table, s);
        // Barrier: the waves' counts are read by waves that did not write them.
        __syncthreads();
        const TwoExperts of_tile = add_waves(a, table);
        counted.low += of_tile.low, counted.high += of_tile.high;
        // Barrier: the next tile's zeros overwrite counts that waves may still read.
        __syncthreads();
    });
    auto* counts = global<uint32_t>(static_cast<void*>(work.counts));
    const int64_t expert = 2 * int64_t(threadIdx.x);
    if (expert < a.experts) counts[expert * work.parts + blockIdx.x] = counted.low;
    if (expert + 1 < a.experts) counts[(expert + 1) * work.parts + blockIdx.x] = counted.high;
}

// A wave an expert.
template <int kThreads>
__global__ __launch_bounds__(kThreads) void moe_sort_prefix(uint32_t* all, uint32_t parts, uint32_t experts) {
    let_next_kernel_start();
    const uint32_t lane = threadIdx.x % kLanes;
    const uint32_t expert = blockIdx.x * (kThreads / kLanes) + uint32_t(uniform(threadIdx.x / kLanes));
    if (expert >= experts) return;
    wait_for_previous_kernel();
    auto* counts = global<uint32_t>(static_cast<void*>(all));
    auto* own = counts + int64_t(expert) * parts;
    uint32_t before = 0;
    for (uint32_t begin = 0; begin < parts; begin += kLanes) {
        const uint32_t part = begin + lane, counted = part < parts ? own[part] : 0, up_to = sum_up_to_lane(counted);
        if (part < parts) own[part] = before + up_to - counted;
        before += of_lane(up_to, kLanes - 1);
    }
    if (lane == 0) counts[int64_t(experts) * parts + expert] = before;
}

template <bool wide>
__global__ __launch_bounds__(kSortThreads) void moe_sort_place(SortArgs a, SortWork work) {
    __shared__ SortTable table;
    let_next_kernel_start();
    wait_for_previous_kernel();
    const auto* counts = global<uint32_t>(static_cast<const void*>(work.counts));
    const int64_t expert = 2 * int64_t(threadIdx.x), sums = int64_t(a.experts) * work.parts;
    TwoExperts all{0, 0}, before{0, 0};
    if (expert < a.experts) all.low = counts[sums + expert], before.low = counts[expert * work.parts + blockIdx.x];
    if (expert + 1 < a.experts) {
        all.high = counts[sums + expert + 1], before.high = counts[(expert + 1) * work.parts + blockIdx.x];
    }
    uint32_t live;
    TwoExperts first = begins(all, table, &live);
    if (blockIdx.x == 0) write_offsets(a, first, live);
    first.low += before.low, first.high += before.high;
    each_tile(a, work, [&](uint32_t begin, uint32_t end) {
        Slots s;
        set_first(table, first);
        count_slots<wide>(a, kDepth, begin, end, table, s);
        // Barrier: the waves' counts are read by waves that did not write them.
        __syncthreads();
        const TwoExperts of_tile = add_waves(a, table);
        first.low += of_tile.low, first.high += of_tile.high;
        // Barrier: where experts begin, and the counts of waves before, are read by waves that did not write them.
        __syncthreads();
        place_slots(a, kDepth, s, table, live);
        // Barrier: the next tile's numbers overwrite those that waves may still read.
        __syncthreads();
    });
}

template <bool wide, class Vendor>
Status launch_sort_as(const SortArgs& a, const Vendor& vendor, const Executor& on) {
    if (a.slots <= kTile) {
        const SortWork work{int(ceil_div(a.slots, kSortThreads)), 1, 0, nullptr};
        return vendor.launch(moe_sort_tile<wide>, 1, kSortThreads, 1, a, work);
    }
    const int64_t tiles = ceil_div(a.slots, kTile), tiles_a_part = ceil_div(tiles, kMostParts);
    const uint32_t parts = uint32_t(ceil_div(tiles, tiles_a_part)), experts = uint32_t(a.experts);
    auto* counts = static_cast<uint32_t*>(on.scratch(on.context, int64_t(experts) * (parts + 1) * 4));
    if (!counts) return {"no memory for the counts of slots"};
    const SortWork work{kDepth, parts, uint32_t(tiles_a_part * kTile), counts};
    Status status = vendor.launch(moe_sort_count<wide>, parts, kSortThreads, 1, a, work);
    if (!status.ok()) return status;
    status = vendor.launch(moe_sort_prefix<kRowsThreads>, ceil_div(experts, kRowsThreads / kLanes), kRowsThreads, 1,
                           counts, parts, experts);
    return status.ok() ? vendor.launch(moe_sort_place<wide>, parts, kSortThreads, 1, a, work) : status;
}

}  // namespace
}  // namespace rocm_fp8::moe_routing
