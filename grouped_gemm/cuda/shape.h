// A form at compile time: its ring, and what lies beside it in shared memory.
#pragma once

#include "expert.h"

namespace rocm_fp8::grouped_gemm::cuda {
namespace {

using namespace tiles;

template <int index>
struct alignas(16) FactorsOf {
    float narrow[kForms[index].narrow], wide[kForms[index].wide() / kWgmmaRows];
};

struct Beside {
    Walk walk;
    int sources[kMostOneByOne];
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
    static constexpr int kRowsOfCopy = rows_of_copy(kForms[index]);
    static constexpr bool kOneByOne = one_by_one(kForms[index]);
    struct All {
        typename RingOf<index, kind_>::Memory ring;
        Beside beside;
    };
};

// The same with fewer narrow rows: of a tile that has no more.
template <class S, int groups>
struct Fewer : S {
    static constexpr int kGroups = groups, kNarrow = groups * 8;
};

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::cuda
