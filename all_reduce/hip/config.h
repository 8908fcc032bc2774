// Who holds a row of norm.hip: a function of the sizes alone, with no HIP in it, so that it can be tested anywhere.
#pragma once

#include "../../rmsnorm_fp8/hip/config.h"

namespace rocm_fp8::all_reduce::hip {

using rms_norm::hip::Config;

// The compiled forms.
constexpr RowForm kNormForms[] = {{Holder::wave, 1},      {Holder::wave, 2},      {Holder::wave, 4},
                                  {Holder::workgroup, 1}, {Holder::workgroup, 2}, {Holder::workgroup, 4}};
constexpr int kNormFormCount = sizeof(kNormForms) / sizeof(kNormForms[0]);

constexpr int form_of(const RowForm& wanted) {
    int form = 0;
    while (form + 1 < kNormFormCount && !(kNormForms[form] == wanted)) ++form;
    return form;
}

// rms_norm's choice, but for what would take too many registers beside a vector of each rank: rows of up to 128 elements
// have whole waves, long ones more threads or, beyond 32768 elements, a sum in memory.
constexpr Config norm_config(int64_t rows, int64_t d, Arch arch, bool aligned) {
    Config config = rms_norm::hip::pick_config(rows, d, arch, aligned);
    if (config.is_fallback()) return config;
    if (config.holder == Holder::quarter_wave) return {{Holder::wave, 1}, kRowsThreads, kRowsThreads / 64};
    if (config.held == 8) return {rms_norm::hip::kFallback, kRowsThreads, 1};
    return config;
}

}  // namespace rocm_fp8::all_reduce::hip
