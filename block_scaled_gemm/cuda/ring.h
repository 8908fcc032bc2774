// A form's ring of stages in shared memory, and the parts of a launch that a CTA takes.
#pragma once

#include "../../common/cuda/mbarrier.h"
#include "../../common/cuda/vector.h"
#include "../../common/cuda/wgmma.h"
#include "cut.h"

namespace rocm_fp8::block_scaled_gemm::cuda {
namespace {

// Of the loading warpgroup, warps 1 and 2 bring the scales of wide rows, and warp 3 those of narrow rows.
constexpr int kWideThreads = 2 * kWarp, kScaleThreads = 3 * kWarp;

template <int index>
struct Shape {
    static constexpr Form form = kForms[index];
    static constexpr bool kSwapped = form.swapped;
    static constexpr int kTiles = form.tiles, kWarpgroups = form.warpgroups, kStages = form.stages();
    static constexpr int kWide = form.wide(), kNarrow = form.narrow, kGroups = kNarrow / 8;
    static constexpr int kConsumers = kWarpgroups * kWarpgroup, kThreads = kConsumers + kWarpgroup;
    // A tile of narrow rows may lie in two of their blocks of 128.
    static constexpr bool kTwoBlocks = form.two_blocks();
    static constexpr bool kSplits = form.splits();
    // Registers of a thread that loads, and of one that multiplies: together what a multiprocessor has for the CTA.
    static constexpr int kFewRegisters = 40, kManyRegisters = kWarpgroups == 2 ? 232 : form.slots == 2 ? 216 : 0;
    static_assert(kStages >= 3);

    struct Stage {
        uint8_t wide[kWide][kBlock], narrow[kNarrow][kBlock];
    };
    // Scales of a stage: of its wide rows; of its narrow rows, or of the one or two blocks in which these lie.
    static constexpr int kNarrowFactors = kSwapped ? kNarrow : 2;
    struct Factors {
        float wide[kWide], narrow[kNarrowFactors];
    };
    struct Memory {
        alignas(1024) Stage stages[kStages];
        alignas(16) char staging[form.staging_bytes()];
        alignas(16) Factors factors[kStages];
        Barrier full[kStages], empty[kStages];
        Barrier sums_full;  // of the cluster's other CTAs
    };
    // Arrivals that fill a stage: of the thread that uses TMA, and of the threads that bring scales.
    static constexpr int kFillers = 1 + kScaleThreads;

    // Of the reduction over a cluster, in place of the ring: float4 [part][group of columns][thread].
    static constexpr int kAllGroups = kTiles * kGroups;
    // Bytes that a CTA receives: of the groups that it finishes.
    ROCM_FP8_HD static constexpr int received_bytes(int part, int splits) {
        return (kAllGroups * (part + 1) / splits - kAllGroups * part / splits) * (splits - 1) * kConsumers * 16;
    }
    ROCM_FP8_HD static constexpr int most_sent(int splits) { return (kAllGroups + splits - 1) / splits; }
    static constexpr bool sums_fit(int splits = kMostSplits) {
        return splits == 1 || !kSplits ||
               (splits * most_sent(splits) * kConsumers * 16 <= kStages * int(sizeof(Stage)) && sums_fit(splits - 1));
    }
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

// The part of K of this CTA, in blocks.
struct Part {
    int first, count;
    __device__ Part(int64_t k, int part, int splits) {
        const int blocks = int(blocks_of(k));
        first = blocks * part / splits;
        count = blocks * (part + 1) / splits - first;
    }
};

// The tiles of a CTA: its share of the launch's.
struct Tiles {
    int next, step, count;

    __device__ explicit Tiles(const Cut& cut)
        : next(blockIdx.x / cut.splits), step(gridDim.x / cut.splits), count(cut.tiles()) {}
    __device__ bool left() const { return next < count; }
    __device__ void advance() { next += step; }
};

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::cuda
