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

constexpr int kTileWaves = 4, kTileColumns = kTileWaves * kWaveColumns, kTileThreads = kTileWaves * 64;
struct TileForm {
    FormName name;
    int rows;
    int per_unit;  // workgroups that a compute unit holds at once
};
constexpr TileForm kTileForms[] = {
    {.name = "t32x128", .rows = 32, .per_unit = 3},
    {.name = "t64x128", .rows = 64, .per_unit = 2},
};
constexpr int kTileFormCount = sizeof(kTileForms) / sizeof(kTileForms[0]);
constexpr int kMostTileRows = kTileForms[kTileFormCount - 1].rows;

constexpr int64_t kMostNumbered = (int64_t(1) << 31) - 256;  // rows or columns, and those behind them in a tile

}  // namespace rocm_fp8::mx_gemm::hip
