// Configurations measured on a GPU, written by benchmarks/tune.py. Where a size is not listed, the model in
// config.h decides.
#pragma once

#include <cstdint>

namespace rocm_fp8::skinny_gemm::hip {

struct TunedConfig {
    int arch;  // 0: gfx942, 1: gfx950
    int rows;  // class of rows: 8, 16 or 32
    int64_t n, k;
    const char* form;  // of kStreamShapes
    int parts;
};

// The first entry matches nothing: C++ has no empty arrays.
constexpr TunedConfig kTunedConfigs[] = {
    {-1, 0, 0, 0, "", 0},
};

}  // namespace rocm_fp8::skinny_gemm::hip
