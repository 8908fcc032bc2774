// The thread that fills the stages of the ring with both operands, by TMA.
#pragma once

#include "../../cuda/pdl.h"
#include "../../cuda/tma.h"
#include "ring.h"

namespace rocm_fp8::tiles {
namespace {

// By one thread: keeps the ring full. constant_b: B's bytes may be read before the previous kernel has ended.
// What it computes per block delays the copies, and nothing hides that.
template <class S>
__device__ inline void feed(typename S::Memory& shared, bool constant_b, const CUtensorMap* wide,
                            const CUtensorMap* narrow, const Tiling& tiling, const Part& part) {
    Tiles tiles(tiling);
    if (!tiles.left()) return;
    int wide_row, narrow_row;
    const auto locate = [&] {
        const gemm::TileAt at = tiling.at(tiles.next);
        wide_row = int(tiling.first_row(at.down));
        narrow_row = at.across * S::kNarrow;
    };
    const auto copy = [&](bool is_wide, int stage, int k) {
        if (is_wide) copy_tile(shared.stages[stage].wide, wide, k, wide_row, &shared.full[stage]);
        else copy_tile(shared.stages[stage].narrow, narrow, k, narrow_row, &shared.full[stage]);
    };
    const uint32_t bytes = uint32_t(tiling.height + S::kNarrow) * kStep;
    const int first_k = part.first * kStep, end_k = (part.first + part.count) * kStep;
    locate();
    // The first round: the weights before the wait for the previous kernel, where they are constant.
    const int round = part.count < S::kStages ? part.count : S::kStages;
    if (!constant_b) wait_for_previous_kernel();
    for (int s = 0; s < round; ++s) {
        arrive_expecting(&shared.full[s], bytes);
        copy(S::kSwapped, s, first_k + s * kStep);
    }
    if (constant_b) wait_for_previous_kernel();
    for (int s = 0; s < round; ++s) copy(!S::kSwapped, s, first_k + s * kStep);

    Position<S::kStages> at;
    at.stage = round % S::kStages;
    at.parity = round / S::kStages;
    bool refills = round == S::kStages;
    int k = first_k + round * kStep;
    while (true) {
        for (; k < end_k; k += kStep) {
            // Barrier: the stage is filled again after its readers have left it.
            if (refills) wait_for(&shared.empty[at.stage], at.parity ^ 1);
            arrive_expecting(&shared.full[at.stage], bytes);
            copy(true, at.stage, k);
            copy(false, at.stage, k);
            at.advance();
            refills |= at.stage == 0;
        }
        tiles.advance();
        if (!tiles.left()) return;
        locate();
        k = first_k;
    }
}

}  // namespace
}  // namespace rocm_fp8::tiles
