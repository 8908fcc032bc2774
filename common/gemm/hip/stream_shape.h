// One compiled form of the GEMM kernel for few rows (stream.h), with no HIP in it: configurations, kernels and tests
// read it.
#pragma once

#include "../../form_name.h"

namespace rocm_fp8 {

struct StreamShape {
    FormName name;
    int rows, columns;  // of the result, a workgroup's. Rows: 8 (sparse instruction), 16 or 32. Columns: 16 or 32
    int waves;          // that share K
    int depth;          // blocks of K that a wave has in flight
    int per_unit;       // workgroups that a compute unit holds at once (LDS, registers); machine-code gates check it
};

constexpr int kMostStreamRows = 32;

}  // namespace rocm_fp8
