// One compiled form of a tiled 8-bit GEMM (tile.h), with no HIP in it: configurations, kernels and tests read it.
#pragma once

#include "../../form_name.h"

namespace rocm_fp8 {

// Of each Arch: what a block of k takes a workgroup alone on its unit.
struct BlockCycles {
    double of[2];
};

struct TileShape {
    FormName name;
    int rows, columns;     // of the result, a workgroup's
    int waves_m, waves_n;  // grid of waves
    int matrix;            // 16 or 32: rows and columns of an instruction
    int stage;             // k of a stage: 64 or 128
    int ahead;             // stages in flight, in registers
    int deep;              // whether a whole stage of fragments is read ahead, not a step
    int per_unit;          // workgroups that a compute unit holds at once (LDS, registers); machine-code gates check it
    BlockCycles block_cycles;
    int waves_k = 1;  // grids of waves: each multiplies its share of a stage's k, and their sums are added

    constexpr int waves() const { return waves_m * waves_n * waves_k; }
};

}  // namespace rocm_fp8
