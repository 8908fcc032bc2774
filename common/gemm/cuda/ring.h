// A form's ring of stages in shared memory, and the parts of a launch that a CTA takes.
#pragma once

#include <type_traits>

#include "../../cuda/mbarrier.h"
#include "../../cuda/tma.h"
#include "../../cuda/vector.h"
#include "../../cuda/wgmma.h"
#include "tiling.h"

namespace rocm_fp8::tiles {
namespace {

// Warps of the loading warpgroup beside TMA's: they bring what else a stage, or a tile, needs.
constexpr int kHelpers = 3, kHelperThreads = kHelpers * kWarp;

// What a tile needs once, and room for the next tile's.
template <class T>
struct OfTiles {
    alignas(16) T parts[2];
    Barrier full[2], empty[2];
};
struct Nothing {};
template <>
struct OfTiles<Nothing> {};

// Of the reduction over a cluster: four sums [part][group of columns][thread].
template <int all_groups, int consumers>
struct ClusterSums {
    static constexpr int kAllGroups = all_groups, kConsumers = consumers;
    // Bytes that a CTA receives: of the groups that it finishes.
    ROCM_FP8_HD static constexpr int received_bytes(int part, int splits) {
        return (kAllGroups * (part + 1) / splits - kAllGroups * part / splits) * (splits - 1) * kConsumers * 16;
    }
    ROCM_FP8_HD static constexpr int most_sent(int splits) { return (kAllGroups + splits - 1) / splits; }
};

// Factors_: what a stage has beside the operands' bytes. fillers: arrivals that fill a stage, TMA's thread's included.
// OfTile_: what a tile has. beside: bytes of the operator's own beside the ring.
template <Form form_, class Factors_, int factor_bytes, int fillers, class OfTile_ = Nothing, int beside = 0>
struct Ring : ClusterSums<form_.tiles * form_.narrow / 8, form_.warpgroups * kWarpgroup> {
    static constexpr Form form = form_;
    static constexpr bool kSwapped = form.swapped;
    static constexpr int kTiles = form.tiles, kWarpgroups = form.warpgroups,
                         kStages = form.stages(factor_bytes, sizeof(OfTiles<OfTile_>) + beside);
    static constexpr int kWide = form.wide(), kNarrow = form.narrow, kGroups = kNarrow / 8;
    static constexpr int kThreads = kWarpgroups * kWarpgroup + kWarpgroup;
    static constexpr bool kSplits = form.splits();
    static constexpr int kFillers = fillers;
    // Registers of a thread that loads, and of one that multiplies: together what a multiprocessor has for the CTA.
    static constexpr int kFewRegisters = kWarpgroups == 3 ? 32 : 40;
    static constexpr int kManyRegisters = form.slots == 2 ? 216 : kWarpgroups < 2 ? 0 : kWarpgroups == 2 ? 232 : 160;
    static_assert(kStages >= 3);

    struct Stage {
        uint8_t wide[kWide][kStep], narrow[kNarrow][kStep];
    };
    using Factors = Factors_;
    using OfTile = OfTile_;
    struct Memory {
        alignas(1024) Stage stages[kStages];
        alignas(16) char staging[form.staging_bytes()];
        alignas(16) Factors factors[kStages];
        Barrier full[kStages], empty[kStages];
        Barrier sums_full;  // of the cluster's other CTAs
        alignas(16) char sums[form.sums_apart() ? form.sums_bytes() : 16];
        OfTiles<OfTile> of_tiles;
    };
    static_assert(sizeof(Memory) + beside + 1024 <= (227 * 1024) / form.slots);

    static constexpr bool kSumsApart = form.sums_apart();
    static_assert(!kSplits || kSumsApart || form.most_sums(kMostSplits) <= kStages * int(sizeof(Stage)));
};

// A stage's number and the parity of its round.
template <int kStages>
struct Position {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++stage == kStages) stage = 0, parity ^= 1;
    }
};

// The part of K of this CTA, in steps.
struct Part {
    int first, count;
    __device__ Part(int64_t k, int part, int splits) {
        const int steps = int((k + kStep - 1) / kStep);
        first = steps * part / splits;
        count = steps * (part + 1) / splits - first;
    }
};

// The tiles of a CTA: its share of the launch's.
struct Tiles {
    int next, step, count;

    __device__ explicit Tiles(const Tiling& tiling)
        : next(blockIdx.x / tiling.splits), step(gridDim.x / tiling.splits), count(tiling.tiles()) {}
    __device__ bool left() const { return next < count; }
    __device__ void advance() { next += step; }
};

// What a multiplying warpgroup has of a tile.
struct OwnTile {
    int64_t first, end;    // wide rows
    int64_t first_narrow;  // row
    int from, to;          // groups of 8 narrow rows that this CTA finishes
};

// Where a multiplying warpgroup is in the ring: with the descriptors of its operands, which to compute anew for each
// block would delay the multiplications.
template <class S>
struct Reading {
    Position<S::kStages> at;
    uint32_t wide, narrow;
    int row;  // of the tile: the thread's first

    __device__ explicit Reading(typename S::Memory& shared) {
        const int thread = threadIdx.x - kWarpgroup, lane = thread % kWarp;
        // The compiler keeps what is the same in all lanes, and with it descriptors, in uniform registers.
        const int first = __shfl_sync(kWholeWarp, thread / kWarpgroup, 0) * S::kTiles * kWgmmaRows;
        wide = swizzled_rows(shared.stages[0].wide[first]);
        narrow = swizzled_rows(shared.stages[0].narrow);
        row = first + thread / kWarp % 4 * 16 + lane / 4;
    }
    __device__ void advance() {
        at.advance();
        constexpr uint32_t kNext = further(0, sizeof(typename S::Stage)), kBack = 0u - (S::kStages - 1) * kNext;
        const uint32_t step = at.stage == 0 ? kBack : kNext;
        wide += step;
        narrow += step;
    }
};

// By one thread, before the CTA's first barrier.
template <class S>
__device__ inline void start_ring(typename S::Memory& shared, const CUtensorMap* wide, const CUtensorMap* narrow,
                                  int part, int splits) {
    for (int s = 0; s < S::kStages; ++s) {
        make_barrier(&shared.full[s], S::kFillers);
        make_barrier(&shared.empty[s], S::kConsumers / kWarp);
    }
    if constexpr (!std::is_same_v<typename S::OfTile, Nothing>) {
        for (int i = 0; i < 2; ++i) {
            make_barrier(&shared.of_tiles.full[i], kHelpers);
            make_barrier(&shared.of_tiles.empty[i], S::kConsumers / kWarp);
        }
    }
    if (splits > 1) make_barrier(&shared.sums_full, 1);
    publish_barriers();
    if (splits > 1) arrive_expecting(&shared.sums_full, S::received_bytes(part, splits));
    fetch_map(wide);
    fetch_map(narrow);
}

}  // namespace
}  // namespace rocm_fp8::tiles
