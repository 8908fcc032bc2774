// The compiled forms of the streams (stream.h), with no HIP in it. All give a row the same bits.
#pragma once

#include "../../common/gemm/hip/stream_shape.h"
#include "../mx_gemm.h"

namespace rocm_fp8::mx_gemm::hip {

constexpr int kStep = 128, kStepBlocks = kStep / kMxBlock;

// depth: steps of kStep k in flight. They differ in K, whose exponents lie in LDS.
constexpr StreamShape kStreamShapes[] = {
    {.name = "m16x32", .rows = 16, .columns = 32, .waves = 1, .depth = 4, .per_unit = 12},
    {.name = "m16x32k", .rows = 16, .columns = 32, .waves = 1, .depth = 4, .per_unit = 7},
};
constexpr int kMostBlocks[] = {128, 256};  // of a row
constexpr int kStreamShapeCount = sizeof(kStreamShapes) / sizeof(kStreamShapes[0]);

constexpr int64_t kMostNumbered = (int64_t(1) << 31) - 64;  // rows or columns, and those behind them in a tile

}  // namespace rocm_fp8::mx_gemm::hip
