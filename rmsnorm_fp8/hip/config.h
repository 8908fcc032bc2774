// How a launch of rmsnorm_fp8.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so that it
// can be tested anywhere.
#pragma once

#include <initializer_list>

#include "../../common/hip/chips.h"

namespace rocm_fp8::rms_norm::hip {

// Who computes a row. The fast kernels read it in vectors of 8 elements (16 bytes).
enum class RowOwner : int {
    quarter_wave,  // 16 lanes, one vector each: 16 rows a workgroup
    wave,          // 64 lanes: 4 rows a workgroup
    workgroup,     // up to 1024 threads
    fallback       // 256 threads, element by element: odd widths, odd strides, more than 65536 elements
};

struct Config {
    RowOwner owner;
    int vectors;  // a thread holds: 1, 2, 4 or 8
    int threads;  // a workgroup
    int rows;     // a workgroup
};

// The compiled forms of the fast kernel.
struct RowForm {
    RowOwner owner;
    int vectors;
};
constexpr RowForm kRowForms[] = {{RowOwner::quarter_wave, 1}, {RowOwner::wave, 1},      {RowOwner::wave, 2},
                                 {RowOwner::wave, 4},         {RowOwner::workgroup, 1}, {RowOwner::workgroup, 2},
                                 {RowOwner::workgroup, 4},    {RowOwner::workgroup, 8}};
constexpr int kRowFormCount = sizeof(kRowForms) / sizeof(kRowForms[0]);

constexpr int form_of(const Config& c) {
    int form = 0;
    while (form + 1 < kRowFormCount && (kRowForms[form].owner != c.owner || kRowForms[form].vectors != c.vectors))
        ++form;
    return form;
}

constexpr int kVector = 8;  // elements
constexpr int kMostThreads = 1024;

// A compute unit has room for 32 waves. Half of that room filled is enough loads in flight: 16 waves x 4 KiB, where
// bandwidth x latency is about 14 KiB a compute unit.
constexpr int64_t kEnoughWaves = 16;  // a compute unit

// aligned: rows of all tensors start at multiples of 16 bytes (those of an FP8 result, too), d is a multiple of 16.
constexpr Config pick_config(int64_t rows, int64_t d, Arch arch, bool aligned) {
    constexpr int kWaveLanes = 64, kQuarter = 16, kSmallGroup = 256;
    constexpr int64_t kMaxVectors = 8;
    const int64_t vectors = d / kVector;
    if (!aligned || vectors > kMaxVectors * kMostThreads) return {RowOwner::fallback, 0, kSmallGroup, 1};
    if (vectors <= kQuarter) return {RowOwner::quarter_wave, 1, kSmallGroup, kSmallGroup / kQuarter};
    // Many rows: as many loads in flight from each wave as it can hold, so that fewer waves need to meet for a sum.
    // Few rows: a row is spread over as many threads as there may be, because its latency is the time.
    const auto waves = [&](int64_t held) { return (vectors + held * kWaveLanes - 1) / (held * kWaveLanes); };
    for (int held : {4, 2, 1}) {
        const bool enough = rows * waves(held) >= compute_units(arch) * kEnoughWaves;
        if (held > 1 && !enough && waves(held / 2) * kWaveLanes <= kMostThreads) continue;
        if (waves(held) * kWaveLanes > kMostThreads) break;
        if (waves(held) == 1) {
            const int needed = vectors <= kWaveLanes ? 1 : vectors <= 2 * kWaveLanes ? 2 : 4;
            return {RowOwner::wave, needed, kSmallGroup, kSmallGroup / kWaveLanes};
        }
        return {RowOwner::workgroup, held, int(waves(held)) * kWaveLanes, 1};
    }
    return {RowOwner::workgroup, 8, int(waves(8)) * kWaveLanes, 1};
}

}  // namespace rocm_fp8::rms_norm::hip
