// The compiled forms of the kernels (stream.h, tiles.h), with no HIP in it. All give a row the same bits.
#pragma once

#include "../../common/gemm/hip/stream_shape.h"
#include "../mx_gemm.h"

namespace rocm_fp8::mx_gemm::hip {

constexpr int kStep = 128, kStepBlocks = kStep / kMxBlock, kWaveColumns = 32;

// depth: steps of kStep k in flight. They differ in K, whose exponents lie in LDS.
constexpr StreamShape kStreamShapes[] = {
    {.name = "m16x32", .rows = 16, .columns = 32, .waves = 1, .depth = 4, .per_unit = 12},
    {.name = "m16x32k", .rows = 16, .columns = 32, .waves = 1, .depth = 4, .per_unit = 7},
};
constexpr int kMostBlocks[] = {128, 256};  // of a row
constexpr int kStreamShapeCount = sizeof(kStreamShapes) / sizeof(kStreamShapes[0]);

struct TileForm {
    FormName name;
    int rows, waves_m, waves_n;
    int per_unit;  // workgroups that a compute unit holds at once
    constexpr int columns() const { return waves_n * kWaveColumns; }
    constexpr int wave_rows() const { return rows / waves_m; }
    constexpr int waves() const { return waves_m * waves_n; }
    constexpr int threads() const { return waves() * 64; }
};
constexpr TileForm kTileForms[] = {
    {.name = "t32x128", .rows = 32, .waves_m = 1, .waves_n = 4, .per_unit = 3},
    {.name = "t64x128", .rows = 64, .waves_m = 1, .waves_n = 4, .per_unit = 2},
    {.name = "t128x128", .rows = 128, .waves_m = 2, .waves_n = 4, .per_unit = 1},
};
constexpr int kTileFormCount = sizeof(kTileForms) / sizeof(kTileForms[0]);

constexpr int64_t kMostNumbered = (int64_t(1) << 31) - 256;  // rows or columns, and those behind them in a tile

}  // namespace rocm_fp8::mx_gemm::hip
