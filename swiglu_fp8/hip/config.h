// How a launch of swiglu_fp8.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so that it can
// be tested anywhere.
#pragma once

#include "../../common/hip/chips.h"

namespace rocm_fp8::swiglu::hip {

constexpr int kVector = 8;  // elements of gate and of up: 16 bytes each

struct Config {
    bool fast;       // else element by element: odd widths and strides, the format that is not the chip's
    int vectors;     // a thread computes: 1 or 2
    int threads;     // a workgroup
    int64_t groups;  // workgroups
};

// aligned: gate, up and result of every row start at multiples of 16 bytes, d is a multiple of 16.
//
// All vectors of all rows are numbered through, so that short rows leave no lane idle. Few vectors go to workgroups of one
// wave, which spread over the compute units. Many (four workgroups a unit) go to pairs a thread: half the stores, twice the
// loads in flight.
constexpr Config pick_config(int64_t rows, int64_t d, Arch arch, bool aligned) {
    constexpr int kWaveLanes = 64, kGroup = 256;
    constexpr int64_t kLargestIndex = int64_t(1) << 31;
    const int64_t vectors = rows * (d / kVector), units = compute_units(arch);
    const auto groups = [](int64_t items, int64_t a_group) { return (items + a_group - 1) / a_group; };
    if (!aligned || vectors >= kLargestIndex) return {false, 1, kGroup, groups(rows * d, kGroup)};
    if (vectors <= units * kGroup) return {true, 1, kWaveLanes, groups(vectors, kWaveLanes)};
    if (vectors <= 4 * units * kGroup) return {true, 1, kGroup, groups(vectors, kGroup)};
    return {true, 2, kGroup, groups(vectors, 2 * kGroup)};
}
// Also for 2^31 vectors: indices are 32 bits.
static_assert(!pick_config(3, 33, Arch::gfx942, false).fast && pick_config(1 << 19, 1 << 14, Arch::gfx942, true).fast &&
              !pick_config(1 << 20, 1 << 14, Arch::gfx942, true).fast);

}  // namespace rocm_fp8::swiglu::hip
