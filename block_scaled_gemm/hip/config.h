// How a launch of block_scaled_gemm.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so
// that it can be tested anywhere.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../../common/gemm/hip/costs.h"
#include "../block_scaled_gemm.h"

namespace rocm_fp8::block_scaled_gemm::hip {

namespace costs = gemm::costs::block_scaled_gemm;

// clang-format off
constexpr TileShape kTileShapes[] = {
    {.name = "t256x128", .rows = 256, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 1, .block_cycles = costs::t256x128},
    {.name = "t128x128", .rows = 128, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 4, .deep = 0, .per_unit = 1, .block_cycles = costs::t128x128},
    {.name = "t128x64", .rows = 128, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 4, .deep = 1, .per_unit = 2, .block_cycles = costs::t128x64},
    {.name = "t64x64", .rows = 64, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 1, .block_cycles = costs::t64x64},
    {.name = "fallback", .rows = 128, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 2, .block_cycles = costs::fallback},
};
// clang-format on
constexpr int kTileShapeCount = sizeof(kTileShapes) / sizeof(kTileShapes[0]);
// The shape that takes scales of single columns of a block, and any layout. Its instruction is that of all: what
// decides the order of a sum, instruction and parts, must not depend on the layout.
constexpr int kFallbackTile = place_of(kTileShapes, "fallback");

// clang-format off
constexpr StreamShape kStreamShapes[] = {
    {.name = "s16x16w2", .rows = 16, .columns = 16, .waves = 2, .depth = 2, .per_unit = 8},
    {.name = "s16x16w4", .rows = 16, .columns = 16, .waves = 4, .depth = 4, .per_unit = 4},
    {.name = "s16x16w8", .rows = 16, .columns = 16, .waves = 8, .depth = 4, .per_unit = 2},
    {.name = "s16x32w4", .rows = 16, .columns = 32, .waves = 4, .depth = 4, .per_unit = 3},
    {.name = "s32x16w2", .rows = 32, .columns = 16, .waves = 2, .depth = 2, .per_unit = 8},
    {.name = "s32x16w4", .rows = 32, .columns = 16, .waves = 4, .depth = 4, .per_unit = 3},
    {.name = "s32x16w8", .rows = 32, .columns = 16, .waves = 8, .depth = 2, .per_unit = 2},
    {.name = "s32x32w4", .rows = 32, .columns = 32, .waves = 4, .depth = 4, .per_unit = 2},
};
// clang-format on
constexpr int kStreamShapeCount = sizeof(kStreamShapes) / sizeof(kStreamShapes[0]);
// Those whose general forms take any layout and any scales, with as many waves as the fast ones: with the most waves.
constexpr int kFallbackStream16 = place_of(kStreamShapes, "s16x16w8"),
              kFallbackStream32 = place_of(kStreamShapes, "s32x16w8");

// Tiles that only gfx950 has, whose loads go to LDS directly, for k contiguous in whole blocks. See direct.h.
// clang-format off
constexpr TileShape kDirectShapes[] = {
    {.name = "d256x256", .rows = 256, .columns = 256, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 1, .block_cycles = costs::d256x256},
};
// clang-format on
constexpr int kDirectShapeCount = sizeof(kDirectShapes) / sizeof(kDirectShapes[0]);

// All shapes: of tiles, then of streams, then of direct tiles.
constexpr int kFirstDirect = kTileShapeCount + kStreamShapeCount, kShapeCount = kFirstDirect + kDirectShapeCount;
// By its name. -1: there is no such shape.
constexpr int shape_named(std::string_view name) {
    const int stream = place_of(kStreamShapes, name), direct = place_of(kDirectShapes, name);
    return stream >= 0 ? kTileShapeCount + stream : direct >= 0 ? kFirstDirect + direct : place_of(kTileShapes, name);
}
static_assert(names_differ(kTileShapes) && names_differ(kStreamShapes) && names_differ(kDirectShapes));
constexpr bool is_direct(int shape) { return shape >= kFirstDirect; }
constexpr bool is_stream(int shape) { return shape >= kTileShapeCount && !is_direct(shape); }
constexpr const TileShape& tile_shape(int shape) {
    return is_direct(shape) ? kDirectShapes[shape - kFirstDirect] : kTileShapes[shape];
}
// The most rows of an operand, and of its scales, that a form of any table counts from one place.
constexpr int kMostOfTile =
    std::max({gemm::tallest(kTileShapes), gemm::widest(kTileShapes), gemm::tallest(kStreamShapes),
              gemm::widest(kStreamShapes), gemm::tallest(kDirectShapes), gemm::widest(kDirectShapes)});
// What takes other layouts and scales in a direct shape's place: the same sums.
constexpr int indirect_shape(int shape) { return is_direct(shape) ? 0 : shape; }
constexpr int fallback_shape(int shape) {
    if (!is_stream(shape)) return kFallbackTile;
    return kTileShapeCount +
           (kStreamShapes[shape - kTileShapeCount].rows == 16 ? kFallbackStream16 : kFallbackStream32);
}
struct FormSize {
    int rows, columns, waves, per_unit;
};
constexpr FormSize form_of(int shape) {
    if (is_stream(shape)) {
        const StreamShape& s = kStreamShapes[shape - kTileShapeCount];
        return {s.rows, s.columns, s.waves, s.per_unit};
    }
    const TileShape& s = tile_shape(shape);
    return {s.rows, s.columns, s.waves(), s.per_unit};
}

// What a launch has. general: scales or a layout that take a stream's general form, which has its own columns.
constexpr FormSize launched_size(int shape, bool general) {
    FormSize size = form_of(shape);
    if (general && is_stream(shape)) size.columns = form_of(fallback_shape(shape)).columns;
    return size;
}

using gemm::kMaxParts, gemm::Sizes;
using Config = gemm::Choice;  // a shape of kShapeCount

// Whether a shape may take a class of rows: up to 32 the streams of as many rows; then tiles that the rows fill half.
constexpr bool may_take(Arch arch, int shape, int64_t rows, int64_t k) {
    const int own = form_of(shape).rows;
    if (is_direct(shape) && (arch != Arch::gfx950 || k % kBlock != 0)) return false;
    return is_stream(shape) ? own == rows : shape != kFallbackTile && rows > kMostStreamRows && own / 2 < rows;
}

constexpr double estimated_us(const ChipModel& chip, int shape, int parts, const Sizes& sizes) {
    if (is_stream(shape)) {
        const StreamShape& stream = kStreamShapes[shape - kTileShapeCount];
        return gemm::stream_time(chip, stream, gemm::costs::kStreams, sizes, parts).total();
    }
    const bool wide = chip.arch == Arch::gfx950;
    return gemm::tile_time(chip, tile_shape(shape), costs::kTiles, wide, sizes, parts).total();
}

// 0: the shape does not take these sizes.
constexpr int most_parts(const ChipModel& chip, int shape, const Sizes& sizes) {
    if (!may_take(chip.arch, shape, sizes.m, sizes.k)) return 0;
    // The last workgroup's adding of direct tiles, the largest, takes longer than parts gain.
    if (is_direct(shape) || gemm::tiles_of(form_of(fallback_shape(shape)), sizes) > kCounters) return 1;
    const FormSize size = form_of(shape);
    return gemm::most_parts(chip, size, sizes, is_stream(shape) ? size.waves : gemm::kLeastBlocks);
}

// All m of a row class take the same configuration (m is the class's), so that a row's bits do not depend on the batch.
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, int arch) {
    return gemm::pick(kShapeCount, kChipModels[arch], {1, row_class(m), n, k}, most_parts, estimated_us);
}

}  // namespace rocm_fp8::block_scaled_gemm::hip
