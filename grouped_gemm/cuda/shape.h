// A form at compile time: its ring, and what lies beside it in shared memory.
#pragma once

#include "expert.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

using namespace tiles;

template <int index>
struct alignas(16) FactorsOf {
    float rows[rows_of(kForms[index])], weights[weight_factors(kForms[index])];
};

struct Beside {
    RowTiles row_tiles;
    int sources[kFewNarrow];
};

// 16-bit operands have no scales: TMA's thread alone fills their stages.
template <int index, Kind kind>
using RingOf = std::conditional_t<kind == kScaled,
                                  tiles::Ring<kForms[index], FactorsOf<index>, factor_bytes(kForms[index]),
                                              1 + kHelperThreads, Nothing, sizeof(Beside)>,
                                  tiles::Ring<kForms[index], Nothing, 0, 1, Nothing, sizeof(Beside) + 512>>;

template <int index, Kind kind_>
struct Shape : RingOf<index, kind_> {
    static constexpr Kind kind = kind_;
    static constexpr bool kSplits = kForms[index].splits();
    using Base = RingOf<index, kind_>;
    // Those that load keep their part of K, too.
    static constexpr int kMore = kSplits ? 16 * Base::kWarpgroups : 0, kFewRegisters = Base::kFewRegisters + kMore,
                         kManyRegisters = Base::kManyRegisters - kMore / Base::kWarpgroups;
    static_assert(kind != kScaled || sizeof(FactorsOf<index>) == factor_bytes(kForms[index]));
    static constexpr int kRows = rows_of(kForms[index]), kColumns = columns_of(kForms[index]),
                         kRowsOfCopy = rows_of_copy(kForms[index]);
    static constexpr bool kOneByOne = one_by_one(kForms[index]);
    struct All {
        typename RingOf<index, kind_>::Memory ring;
        Beside beside;
    };
};

// The first narrow rows of a tile, where it has no more.
template <class S, int rows>
struct Narrower : S {
    static constexpr int kNarrow = rows, kGroups = rows / 8;
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
