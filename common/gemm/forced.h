// ROCM_FP8_KERNELS_GEMM=SHAPE,SPLITS[,PIECES] replaces what a GPU backend's configuration function picks: for tuning
// and tests. SHAPE: an index into the backend's table, or -1 for its fallback. PIECES: of the columns (CUDA).
#pragma once

#include <cstdlib>

#include "../environment.h"
#include "../types.h"

namespace rocm_fp8 {

struct ForcedConfig {
    bool set = false;  // the variable is
    int shape = 0, splits = 0;
    int pieces = 0;  // 0: not named
};

// shapes: entries of the table.
inline Status read_forced_config(int shapes, int most_splits, bool takes_pieces, ForcedConfig* forced) {
    const char* text = environment().gemm.c_str();
    if (!*text) return {};
    char* rest = nullptr;
    const long shape = std::strtol(text, &rest, 10);
    const long splits = *rest == ',' ? std::strtol(rest + 1, &rest, 10) : 0;
    const long pieces = takes_pieces && *rest == ',' ? std::strtol(rest + 1, &rest, 10) : 0;
    constexpr long kMostPieces = 1 << 30;
    if (*rest || shape < -1 || shape >= shapes || splits < 1 || splits > most_splits || pieces < 0 ||
        pieces > kMostPieces) {
        return {
            "ROCM_FP8_KERNELS_GEMM is not SHAPE,SPLITS with SHAPE -1 or an index into this backend's table of shapes "
            "and SPLITS from 1 to its limit"};
    }
    *forced = {true, int(shape), int(splits), int(pieces)};
    return {};
}

}  // namespace rocm_fp8
