// A form at compile time: its ring, and what lies beside it in shared memory.
#pragma once

#include "expert.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

using namespace tiles;

// weights: of gates, then of ups, where a tile has both.
template <int index, bool gated>
struct alignas(16) FactorsOf {
    float rows[rows_of(kForms[index])], weights[gated ? 2 : weight_factors(kForms[index])];
};

struct Beside {
    RowTiles row_tiles;
    int sources[kMostOneByOne];
};
template <int index>
struct GatedBeside : Beside {
    alignas(16) char parked[parked_in_staging(kForms[index]) ? 16 : parked_bytes(kForms[index])];
};
template <int index, bool gated>
using BesideOf = std::conditional_t<gated, GatedBeside<index>, Beside>;

// 16-bit operands have no scales: TMA's thread alone fills their stages.
template <int index, Kind kind, bool gated>
using RingOf = std::conditional_t<kind == kScaled,
                                  tiles::Ring<kForms[index], FactorsOf<index, gated>, factor_bytes(kForms[index]),
                                              1 + kHelperThreads, Nothing, sizeof(BesideOf<index, gated>)>,
                                  tiles::Ring<kForms[index], Nothing, 0, 1, Nothing, sizeof(Beside) + 512>>;

template <int index, Kind kind_, bool gated = false>
struct Shape : RingOf<index, kind_, gated> {
    static constexpr Kind kind = kind_;
    static constexpr bool kGated = gated;
    static constexpr bool kSplits = kForms[index].splits() && !gated;
    using Base = RingOf<index, kind_, gated>;
    // Those that load keep a tile's turns apart, too, or their part of K.
    static constexpr int kMore = gated || kSplits ? 16 * Base::kWarpgroups : 0,
                         kFewRegisters = Base::kFewRegisters + kMore,
                         kManyRegisters = Base::kManyRegisters - kMore / Base::kWarpgroups;
    // Tiles of columns that a CTA makes for the same rows before it goes on, and their columns in the result, or their
    // hidden values.
    static constexpr int kTurns = gated ? turns_of(kForms[index]) : 1,
                         kOfTurn = columns_of(kForms[index]) / (gated ? 2 : 1);
    // Ranges of narrow rows with a scale of their own, eight of one and eight of the next in turn.
    static constexpr int kRanges = gated && !kForms[index].swapped ? 2 : 1;
    static_assert(kind != kScaled || sizeof(FactorsOf<index, gated>) == factor_bytes(kForms[index]));
    static constexpr int kRows = rows_of(kForms[index]), kColumns = columns_of(kForms[index]),
                         kRowsOfCopy = rows_of_copy(kForms[index]);
    static constexpr bool kOneByOne = one_by_one(kForms[index]);
    struct All {
        typename RingOf<index, kind_, gated>::Memory ring;
        BesideOf<index, gated> beside;
    };
    // Gated values, in rows of kParkedRow bytes.
    static constexpr bool kInStaging = parked_in_staging(kForms[index]);
    static __device__ char* parked(All& shared) {
        if constexpr (kInStaging) return shared.ring.staging;
        else return shared.beside.parked;
    }
};

// The same with fewer tiles of 64 wide rows: what a warpgroup multiplies where a tile has no more, or stores at once.
template <class S, int tiles>
struct Fewer : S {
    static constexpr int kTiles = tiles;
};

// Half of the columns of one tile of 64 rows: where there are no more rows, two warpgroups share them.
template <class S>
struct Half : Fewer<S, 1> {
    static constexpr int kGroups = S::kGroups / 2, kNarrow = S::kNarrow / 2;
};

// Many rows: each 64 of a tile go to the warpgroups in turn, so that few keep all of them busy. Their place in a stage,
// where a warpgroup's rows are neighbours.
template <class S>
__device__ constexpr int slot_of(int sixty_four) {
    return S::kSwapped ? sixty_four : sixty_four % S::kWarpgroups * S::kTiles + sixty_four / S::kWarpgroups;
}
// The row of a tile that has place i in a stage.
template <class S>
__device__ constexpr int row_in(int i) {
    if constexpr (S::kSwapped) return i;
    const int slot = i / kWgmmaRows;
    return (slot % S::kTiles * S::kWarpgroups + slot / S::kTiles) * kWgmmaRows + i % kWgmmaRows;
}

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
