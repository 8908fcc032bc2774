// The chips that the ROCm backend is compiled for, without HIP: configurations are tested anywhere.
#pragma once

#include "../types.h"

namespace rocm_fp8 {

// In the order of build.toml's rocm-archs.
enum class Arch : int { gfx942, gfx950 };

// MI300X, MI350X.
constexpr int kComputeUnits[] = {304, 256};
constexpr int compute_units(Arch arch) { return kComputeUnits[int(arch)]; }
// Workgroup i runs on chiplet i % 8, which has an L2 cache of its own.
constexpr int kChiplets = 8;

// What programs reach on an MI300X by the simulator's constants (simulator/timing/cost.py). MI350X: scaled. For the
// models that rank configurations.
struct ChipModel {
    Arch arch;
    int compute_units;
    double cycles_per_us;
    double memory_bytes_per_us;  // from or to the memory-side cache, which HBM keeps filled
    double l2_bytes_per_us;      // all chiplets together
    double unit_bytes;           // a clock, of one compute unit
};
constexpr ChipModel kChipModels[] = {
    {Arch::gfx942, compute_units(Arch::gfx942), 2100, 4.0e6, 12.0e6, 28},
    {Arch::gfx950, compute_units(Arch::gfx950), 2400, 6.9e6, 14.8e6, 32},
};

// Multiplications of a compute unit's four SIMDs by instructions of 8-bit operands, with the gaps that the simulator's
// clock has between instructions. wide: by those of gfx950 for FP8, of 64 or 128 k.
constexpr double matrix_operations_per_cycle(Arch arch, int matrix, bool wide) {
    const int rate = arch == Arch::gfx950 ? 4096 : 2048;
    const double cycles = matrix == 32 ? (wide ? 64 / 71.9 : 32 / 39.9) : (wide ? 32 / 39.9 : 16 / 23.9);
    return rate * cycles;
}

}  // namespace rocm_fp8
