// How a launch of rmsnorm_fp8.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so that it
// can be tested anywhere.
#pragma once

#include <initializer_list>

#include "../../common/hip/chips.h"
#include "../../common/rows/gpu/forms.h"

namespace rocm_fp8::rms_norm::hip {

// Who computes a row. The fast kernels read it in vectors of 8 elements (16 bytes): a quarter of a wave one vector a
// lane, 16 rows a workgroup; a wave, 4 rows a workgroup; a workgroup of up to 1024 threads. The fallback has 256 threads
// a row, element by element: odd widths, odd strides, more than 65536 elements.
struct Config : RowForm {
    int threads;  // a workgroup
    int rows;     // a workgroup

    constexpr bool is_fallback() const { return held == 0; }
};
constexpr RowForm kFallback{Holder::workgroup, 0};

// The compiled forms of the fast kernel.
constexpr RowForm kForms[] = {{Holder::quarter_wave, 1}, {Holder::wave, 1},      {Holder::wave, 2},
                              {Holder::wave, 4},         {Holder::workgroup, 1}, {Holder::workgroup, 2},
                              {Holder::workgroup, 4},    {Holder::workgroup, 8}};
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);

constexpr int form_of(const RowForm& wanted) {
    int form = 0;
    while (form + 1 < kFormCount && !(kForms[form] == wanted)) ++form;
    return form;
}

// A compute unit has room for 32 waves. Half of that room filled is enough loads in flight: 16 waves x 4 KiB, where
// bandwidth x latency is about 14 KiB a compute unit.
constexpr int64_t kEnoughWaves = 16;  // a compute unit

// aligned: rows of all tensors start at multiples of 16 bytes (those of an FP8 result, too), d is a multiple of 16.
constexpr Config pick_config(int64_t rows, int64_t d, Arch arch, bool aligned) {
    constexpr int kWaveLanes = 64, kQuarter = 16, kSmallGroup = kRowsThreads;
    constexpr int64_t kMaxVectors = 8;
    const int64_t vectors = d / kEight;
    if (!aligned || vectors > kMaxVectors * kMostRowThreads) return {kFallback, kSmallGroup, 1};
    if (vectors <= kQuarter) return {{Holder::quarter_wave, 1}, kSmallGroup, kSmallGroup / kQuarter};
    // Many rows: as many loads in flight from each wave as it can hold, so that fewer waves need to meet for a sum.
    // Few rows: a row is spread over as many threads as there may be, because its latency is the time.
    const auto waves = [&](int64_t held) { return (vectors + held * kWaveLanes - 1) / (held * kWaveLanes); };
    for (int held : {4, 2, 1}) {
        const bool enough = rows * waves(held) >= compute_units(arch) * kEnoughWaves;
        if (held > 1 && !enough && waves(held / 2) * kWaveLanes <= kMostRowThreads) continue;
        if (waves(held) * kWaveLanes > kMostRowThreads) break;
        if (waves(held) == 1) {
            const int needed = vectors <= kWaveLanes ? 1 : vectors <= 2 * kWaveLanes ? 2 : 4;
            return {{Holder::wave, needed}, kSmallGroup, kSmallGroup / kWaveLanes};
        }
        return {{Holder::workgroup, held}, int(waves(held)) * kWaveLanes, 1};
    }
    return {{Holder::workgroup, 8}, int(waves(8)) * kWaveLanes, 1};
}
static_assert(!pick_config(1, 65536, Arch::gfx942, true).is_fallback() &&
              pick_config(1, 65552, Arch::gfx942, true).is_fallback() &&
              pick_config(1, 16384, Arch::gfx942, false).is_fallback());

}  // namespace rocm_fp8::rms_norm::hip
