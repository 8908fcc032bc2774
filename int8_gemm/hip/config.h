// How a launch of int8_gemm.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so that it can
// be tested anywhere. Sums are exact, so no choice changes a bit of the result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../../common/gemm/hip/costs.h"
#include "../int8_gemm.h"

namespace rocm_fp8::int8_gemm::hip {

namespace costs = gemm::costs::int8_gemm;

// clang-format off
constexpr TileShape kTileShapes[] = {
    {.name = "t256x128", .rows = 256, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 1, .block_cycles = costs::t256x128},
    {.name = "t128x128", .rows = 128, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 4, .deep = 0, .per_unit = 1, .block_cycles = costs::t128x128},
    {.name = "t128x64", .rows = 128, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 2, .block_cycles = costs::t128x64},
    {.name = "t64x64", .rows = 64, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 2, .block_cycles = costs::t64x64},
    {.name = "t32x64", .rows = 32, .columns = 64, .waves_m = 1, .waves_n = 2, .matrix = 32, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 2, .block_cycles = costs::t32x64},
    {.name = "t16x64", .rows = 16, .columns = 64, .waves_m = 1, .waves_n = 2, .matrix = 16, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 2, .block_cycles = costs::t16x64},
    {.name = "t224x128", .rows = 224, .columns = 128, .waves_m = 1, .waves_n = 4, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 1, .per_unit = 1, .block_cycles = costs::t224x128, .waves_k = 2},
    {.name = "t160x128", .rows = 160, .columns = 128, .waves_m = 1, .waves_n = 4, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 1, .per_unit = 1, .block_cycles = costs::t160x128, .waves_k = 2},
};
// clang-format on
constexpr int kTileShapeCount = sizeof(kTileShapes) / sizeof(kTileShapes[0]);
static_assert(names_differ(kTileShapes));
// The most rows of an operand that a form counts from one place.
constexpr int kMostOfTile = std::max(gemm::tallest(kTileShapes), gemm::widest(kTileShapes));

// The shapes that are compiled for rows of any alignment and any k, too: the one in the place of each.
constexpr int kFallbacks[] = {place_of(kTileShapes, "t128x64"), place_of(kTileShapes, "t32x64"),
                              place_of(kTileShapes, "t16x64")};
constexpr int fallback_shape(int shape) {
    return kTileShapes[shape].matrix == 16 ? kFallbacks[2]
           : kTileShapes[shape].rows <= 32 ? kFallbacks[1]
                                           : kFallbacks[0];
}

using gemm::blocks_of, gemm::kBlock, gemm::kMaxParts, gemm::Sizes;
using Config = gemm::Choice;  // a shape is an index into kTileShapes

constexpr double estimated_us(const ChipModel& chip, int shape, int parts, const Sizes& sizes) {
    return gemm::tile_time(chip, kTileShapes[shape], costs::kTiles, false, sizes, parts).total();
}

constexpr bool may_take(const TileShape& shape, int64_t rows) {
    // Up to 16 rows the smaller instruction; then tiles that the rows fill at least half.
    return rows <= 16 ? shape.rows == 16 : shape.matrix == 32 && shape.rows / 2 < rows;
}

// 0: the shape does not take these sizes.
constexpr int most_parts(const ChipModel& chip, int shape, const Sizes& sizes) {
    if (!may_take(kTileShapes[shape], sizes.m)) return 0;
    return gemm::most_parts(chip, kTileShapes[shape], sizes, gemm::kLeastBlocks);
}

// general: for rows of any alignment and any k.
constexpr Config pick_config(const Sizes& sizes, int arch, bool general) {
    const auto most = [&](const ChipModel& chip, int shape, const Sizes& of) {
        return general && fallback_shape(shape) != shape ? 0 : most_parts(chip, shape, of);
    };
    return gemm::pick(kTileShapeCount, kChipModels[arch], sizes, most, estimated_us);
}

}  // namespace rocm_fp8::int8_gemm::hip
