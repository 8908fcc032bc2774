// Configurations measured on a GPU, for one chip, row class, n and k each. They override config.h's regimes.
#pragma once

#include <cstdint>

namespace rocm_fp8::skinny_gemm::cuda {

struct TunedConfig {
    int capability, multiprocessors;  // the chip: 90 and 132 for an H100 or H200 (SXM)
    int rows;                         // row class: 16 or 32
    int64_t n, k;
    int shape, splits, pieces;
};

// The first entry matches nothing: C++ has no empty arrays.
constexpr TunedConfig kTunedConfigs[] = {
    {0, 0, 0, 0, 0, 0, 0, 0},
};

}  // namespace rocm_fp8::skinny_gemm::cuda
