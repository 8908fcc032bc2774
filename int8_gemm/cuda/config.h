// Tiles of int8_gemm on CUDA, and which one takes a size: without CUDA.
#pragma once

#include "../../common/gemm/cuda/form.h"

namespace rocm_fp8::int8_gemm::cuda {

// Warps of a CTA divide its tile by rows, by columns and by k.
struct Tile {
    int rows, columns;
    int warps_m, warps_n, warps_k;
    int stages;

    ROCM_FP8_HD constexpr int threads() const { return 32 * warps_m * warps_n * warps_k; }
    ROCM_FP8_HD constexpr int step() const { return 64 * warps_k; }  // k of a stage
    // Of a row in shared memory: an odd multiple of 64, so that two rows of 64 bytes meet no bank conflict.
    ROCM_FP8_HD constexpr int row_bytes() const { return step() % 128 ? step() : step() + 64; }
    ROCM_FP8_HD constexpr int stage_bytes() const { return (rows + columns) * row_bytes(); }
    // Sums of the tile, in place of the stages, for each part of k.
    ROCM_FP8_HD constexpr int sums_bytes() const { return warps_k * rows * (columns + 4) * 4; }
    ROCM_FP8_HD constexpr int shared_bytes() const {
        return stages * stage_bytes() > sums_bytes() ? stages * stage_bytes() : sums_bytes();
    }
};

constexpr Tile kTiles[] = {
    {16, 32, 1, 1, 8, 3},
    {32, 32, 1, 1, 8, 2},
    {64, 64, 2, 2, 2, 4},
    {128, 128, 2, 4, 1, 4},
};
constexpr int kTileCount = sizeof(kTiles) / sizeof(kTiles[0]);

// Few rows: the weights are read at once by as many CTAs as there are. Otherwise the largest tile that gives each
// multiprocessor one.
constexpr int pick_tile(int64_t batch, int64_t m, int64_t n, int multiprocessors) {
    if (m <= 16) return 0;
    if (m <= 32) return 1;
    const Tile& large = kTiles[3];
    return batch * ceil_div(m, large.rows) * ceil_div(n, large.columns) >= multiprocessors ? 3 : 2;
}

}  // namespace rocm_fp8::int8_gemm::cuda
