// How a launch of grouped_gemm.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so that it
// can be tested anywhere.
#pragma once

#include "../../common/gemm/hip/costs.h"
#include "../grouped_gemm.h"

namespace rocm_fp8::grouped_gemm::hip {

namespace costs = gemm::costs::grouped_gemm;

// All multiply by instructions of 32 x 32 and do not split K: a row has the same bits in each of them.
// clang-format off
constexpr TileShape kTileShapes[] = {
    {.name = "t256x128", .rows = 256, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 1, .block_cycles = costs::t256x128},
    {.name = "t128x128", .rows = 128, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 4, .deep = 0, .per_unit = 1, .block_cycles = costs::t128x128},
    {.name = "t64x128", .rows = 64, .columns = 128, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 4, .deep = 1, .per_unit = 2, .block_cycles = costs::t64x128},
    {.name = "t64x64", .rows = 64, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 1, .block_cycles = costs::t64x64},
    {.name = "fallback", .rows = 128, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 2, .block_cycles = costs::fallback},
};
constexpr StreamShape kStreamShapes[] = {
    {.name = "s16x16w4", .rows = 16, .columns = 16, .waves = 4, .depth = 4, .per_unit = 4},
    {.name = "s16x32w2", .rows = 16, .columns = 32, .waves = 2, .depth = 2, .per_unit = 6},
    {.name = "s16x32w4", .rows = 16, .columns = 32, .waves = 4, .depth = 4, .per_unit = 3},
    {.name = "s32x16w4", .rows = 32, .columns = 16, .waves = 4, .depth = 4, .per_unit = 3},
    {.name = "s32x16w2", .rows = 32, .columns = 16, .waves = 2, .depth = 2, .per_unit = 8},
    {.name = "s32x32w4", .rows = 32, .columns = 32, .waves = 4, .depth = 4, .per_unit = 2},
};
// clang-format on
constexpr int kTileShapeCount = sizeof(kTileShapes) / sizeof(kTileShapes[0]);
constexpr int kStreamShapeCount = sizeof(kStreamShapes) / sizeof(kStreamShapes[0]);
// The shape whose loads take any alignment.
constexpr int kFallbackTile = gemm::place_of(kTileShapes, "fallback");
static_assert(kFallbackTile == kTileShapeCount - 1);
static_assert(gemm::names_differ(kTileShapes) && gemm::names_differ(kStreamShapes));

// All shapes: of tiles, then of streams.
constexpr int kShapeCount = kTileShapeCount + kStreamShapeCount;
constexpr bool is_stream(int shape) { return shape >= kTileShapeCount; }
constexpr int shape_named(std::string_view name) {
    const int stream = gemm::place_of(kStreamShapes, name);
    return stream >= 0 ? kTileShapeCount + stream : gemm::place_of(kTileShapes, name);
}
struct FormSize {
    int rows, columns;
};
constexpr FormSize form_of(int shape) {
    if (is_stream(shape))
        return {kStreamShapes[shape - kTileShapeCount].rows, kStreamShapes[shape - kTileShapeCount].columns};
    return {kTileShapes[shape].rows, kTileShapes[shape].columns};
}

// Row tiles that m rows of `groups` groups may have at most, however they are spread.
constexpr int64_t most_row_tiles(int64_t m, int64_t groups, int rows) {
    const int64_t some = m < groups ? m : groups;  // with a row at least
    return some + (m - some) / rows;
}

constexpr int64_t kMostStreamedRows = 32;  // expected

// m: expected rows of a group. k: bytes, which are what costs.
constexpr double estimated_us(const ChipModel& chip, int shape, int, const gemm::Sizes& sizes) {
    if (is_stream(shape)) {
        const StreamShape& stream = kStreamShapes[shape - kTileShapeCount];
        return gemm::stream_time(chip, stream, gemm::costs::kStreams, sizes, 1).total();
    }
    return gemm::tile_time(chip, kTileShapes[shape], costs::kTiles, chip.arch == Arch::gfx950, sizes, 1).total();
}

// Up to 32 expected rows the streams of as many; else tiles.
constexpr int may_take(const ChipModel&, int shape, const gemm::Sizes& sizes) {
    if (is_stream(shape)) return sizes.m <= kMostStreamedRows && form_of(shape).rows == row_class(sizes.m);
    return sizes.m > kMostStreamedRows && shape != kFallbackTile;
}

// A stream's form decides bits: it follows from the row class, not from the expected rows. A tile's does not.
constexpr int pick_shape(int64_t groups, int64_t expected, int64_t n, int64_t k_bytes, int arch) {
    const int64_t m = expected <= kMostStreamedRows ? row_class(expected) : expected;
    return gemm::pick(kShapeCount, kChipModels[arch], {groups, m, n, k_bytes}, may_take, estimated_us).shape;
}

}  // namespace rocm_fp8::grouped_gemm::hip
