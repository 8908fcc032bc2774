// The chips that the ROCm backend is compiled for, without HIP: configurations are tested anywhere.
#pragma once

#include "../types.h"

namespace rocm_fp8 {

// In the order of build.toml's rocm-archs.
enum class Arch : int { gfx942, gfx950 };

// MI300X, MI350X.
constexpr int kComputeUnits[] = {304, 256};
constexpr int compute_units(Arch arch) { return kComputeUnits[int(arch)]; }

}  // namespace rocm_fp8
