// ROCM_FP8_KERNELS_GEMM=SHAPE,SPLITS takes that entry of a GPU backend's table (-1: its simple kernel) instead of what
// the configuration function says: for tuning and tests.
#pragma once

#include <cstdlib>

#include "../common/launch.h"

namespace rocm_fp8 {

// Leaves *shape and *splits alone where the variable is not set. shapes: entries of the table.
inline Status read_forced_config(int shapes, int most_splits, int* shape, int* splits) {
    const char* text = std::getenv("ROCM_FP8_KERNELS_GEMM");
    if (!text || !*text) return {};
    char* rest = nullptr;
    const long wanted_shape = std::strtol(text, &rest, 10);
    const long wanted_splits = *rest == ',' ? std::strtol(rest + 1, &rest, 10) : 0;
    if (*rest || wanted_shape < -1 || wanted_shape >= shapes || wanted_splits < 1 || wanted_splits > most_splits) {
        return {"ROCM_FP8_KERNELS_GEMM is not SHAPE,SPLITS with SHAPE -1 or an index into this backend's table of shapes and "
                "SPLITS from 1 to its limit"};
    }
    *shape = int(wanted_shape);
    *splits = int(wanted_splits);
    return {};
}

}  // namespace rocm_fp8
