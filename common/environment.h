// The package's environment variables, read once a process: at the first launch, or when reread_environment() says so.
//
//     ROCM_FP8_KERNELS_CPU    portable, avx2 or avx512: the instruction set of the CPU backend (cpu/features.h)
//     ROCM_FP8_KERNELS_CONFIG OPERATOR:FORM,...: what GEMMs and attention are configured as on a GPU (forced.h)
//     ROCM_FP8_KERNELS_PDL    0: kernels do not overlap the kernel before them (CUDA)
//
// A launch must not call getenv: that is a data race with any thread that sets a variable.
#pragma once

#include <string>

namespace rocm_fp8 {

struct Environment {
    std::string cpu, config;  // empty: not set
    bool pdl = true;
};

// The same object until the next reread_environment(), and valid after it.
const Environment& environment();
void reread_environment();

}  // namespace rocm_fp8
