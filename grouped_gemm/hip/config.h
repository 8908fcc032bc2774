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
};
// FP8 whose K is two blocks at most (short.h). columns: a workgroup's; depth: turns in flight.
constexpr int64_t kMostShortK = 256;
constexpr int kTurnColumns = 32;
constexpr StreamShape kShortShapes[] = {
    {.name = "k16x512", .rows = 16, .columns = 512, .waves = 4, .depth = 2, .per_unit = 4},
    {.name = "k32x512", .rows = 32, .columns = 512, .waves = 4, .depth = 2, .per_unit = 2},
    {.name = "k64x512", .rows = 64, .columns = 512, .waves = 4, .depth = 2, .per_unit = 2},
};
// Tiles with SwiGLU and quantisation in the epilogue, of FP8: half of the columns are gates, half the ups of the same
// hidden values. Those are whole groups of computed scales.
constexpr int kMostHidden = 128;
constexpr TileShape kGatedShapes[] = {
    {.name = "t128x256", .rows = 128, .columns = 256, .waves_m = 2, .waves_n = 4, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 1, .block_cycles = {}},
    {.name = "t64x256", .rows = 64, .columns = 256, .waves_m = 2, .waves_n = 4, .matrix = 32, .stage = 64,
     .ahead = 4, .deep = 0, .per_unit = 1, .block_cycles = {}},
};
// clang-format on
constexpr int kTileShapeCount = sizeof(kTileShapes) / sizeof(kTileShapes[0]);
constexpr int kStreamShapeCount = sizeof(kStreamShapes) / sizeof(kStreamShapes[0]);
constexpr int kShortShapeCount = sizeof(kShortShapes) / sizeof(kShortShapes[0]);
constexpr int kGatedShapeCount = sizeof(kGatedShapes) / sizeof(kGatedShapes[0]);
// The shape whose loads take any alignment.
constexpr int kFallbackTile = place_of(kTileShapes, "fallback");
static_assert(kFallbackTile == kTileShapeCount - 1);
static_assert(names_differ(kTileShapes) && names_differ(kStreamShapes) && names_differ(kShortShapes) &&
              names_differ(kGatedShapes));

// All shapes: of tiles, of streams, those of short K, then those that are launch_swiglu's alone.
constexpr int kShortFrom = kTileShapeCount + kStreamShapeCount, kGatedFrom = kShortFrom + kShortShapeCount,
              kShapeCount = kGatedFrom + kGatedShapeCount;
constexpr bool is_short(int shape) { return shape >= kShortFrom; }
constexpr bool is_stream(int shape) { return shape >= kTileShapeCount && !is_short(shape); }
constexpr int shape_named(std::string_view name) {
    const auto from = [](int first, int place) { return place < 0 ? place : first + place; };
    for (const int shape :
         {from(kTileShapeCount, place_of(kStreamShapes, name)), from(kShortFrom, place_of(kShortShapes, name)),
          from(kGatedFrom, place_of(kGatedShapes, name))}) {
        if (shape >= 0) return shape;
    }
    return place_of(kTileShapes, name);
}
struct FormSize {
    int rows, columns;
};
constexpr FormSize form_of(int shape) {
    const auto size = [](const auto& form) { return FormSize{form.rows, form.columns}; };
    return is_short(shape)    ? size(kShortShapes[shape - kShortFrom])
           : is_stream(shape) ? size(kStreamShapes[shape - kTileShapeCount])
                              : size(kTileShapes[shape]);
}

// Row tiles that m rows of `groups` groups may have at most, however they are spread.
constexpr int64_t most_row_tiles(int64_t m, int64_t groups, int rows) {
    const int64_t some = m < groups ? m : groups;  // with a row at least
    return some + (m - some) / rows;
}

// The tile of a workgroup's turn-th turn, of `items` in all; -1: none, nor later. In a turn all workgroups have neighbouring
// tiles, and those of a chiplet the nearest, which share rows and weights. Places move on from turn to turn: an expert's
// last tiles may have few rows, and are as far apart as it has tiles of rows. By this step nobody meets
// them in each turn: on both chips, with one workgroup a unit or two, at 2 to 8 tiles of rows.
constexpr int item_of(int turn, int workgroup, int grid, int items) {
    constexpr int kStep = 9;
    const int before = turn * grid, wide = grid / kChiplets, left = (items - before + kChiplets - 1) / kChiplets;
    const int of_chiplet = left < wide ? left : wide, place = (workgroup / kChiplets + turn * kStep) % wide;
    const int at = before + workgroup % kChiplets * of_chiplet + place;
    return place < of_chiplet && at < items ? at : -1;
}

// K of so few bytes is over before one workgroup's next tile has begun: two share a unit.
constexpr int64_t kMostOfTwoTiles = 2048;
// From which on the tallest tiles are: as the simulator's clock has it, see docs/journal/moe.md.
constexpr int64_t kFewestTallRows = 96;

// groups: tiles of rows, one of 16 each. k: bytes, which are what costs.
constexpr double stream_us(const ChipModel& chip, int shape, int, const gemm::Sizes& sizes) {
    return gemm::stream_time(chip, kStreamShapes[shape], gemm::costs::kStreams, sizes, 1).total();
}
constexpr int any_stream(const ChipModel&, int, const gemm::Sizes&) { return 1; }

// Of kShortShapes: expected rows up to which tiles of 16 rows hold most experts, and of 32. All give the same bits.
constexpr int64_t kMostOf16 = 10, kMostOf32 = 24;
constexpr int pick_short(int64_t expected) { return expected <= kMostOf16 ? 0 : expected <= kMostOf32 ? 1 : 2; }

// Up to kFewExpected rows weights are streamed. Beyond, tiles whose waves without rows do not multiply are as fast, and
// read weights and rows fewer times.
// A stream's form decides bits: it does not depend on the expected rows, and on m by its class alone, as if each of the
// class's rows had an expert of its own. K of few rows is not split: docs/journal/moe.md. Tiles give the same bits in all
// shapes: the tallest that the rows fill well, and of which there are enough for the chip.
constexpr int pick_shape(int64_t m, int64_t groups, int64_t expected, int64_t n, int64_t k_bytes, bool fp8, int arch) {
    if (fp8 && k_bytes <= kMostShortK) return kShortFrom + pick_short(expected);
    if (expected <= kFewExpected) {
        const int64_t most = slot_class(m);
        const gemm::Sizes sizes{0 < most && most < groups ? most : groups, kStreamShapes[0].rows, n, k_bytes};
        return kTileShapeCount + gemm::pick(kStreamShapeCount, kChipModels[arch], sizes, any_stream, stream_us).shape;
    }
    int shape = expected >= kFewestTallRows ? 0 : k_bytes > kMostOfTwoTiles ? 1 : place_of(kTileShapes, "t64x128");
    for (; shape < kFallbackTile - 1; ++shape) {
        const TileShape& tile = kTileShapes[shape];
        const int64_t tiles = groups * ceil_div(expected, int64_t(tile.rows)) * ceil_div(n, int64_t(tile.columns));
        if (tiles >= int64_t(kChipModels[arch].compute_units) * tile.per_unit) break;
    }
    return shape;
}

// Expected rows up to which most experts fill one tile of 64 rows.
constexpr int64_t kMostOf64 = 48;

// Of kGatedShapes; -1: SwiGLU is a pass of its own. hidden: a multiple of kMostHidden. Where rows are a stream's, bits are
// a stream's too.
constexpr int pick_gated(int64_t groups, int64_t expected, int64_t hidden, int arch) {
    if (expected <= kFewExpected) return -1;
    const int shape = expected <= kMostOf64 ? 1 : 0;
    const int64_t tiles = groups * ceil_div(expected, int64_t(kGatedShapes[shape].rows)) * (hidden / kMostHidden);
    return tiles >= kChipModels[arch].compute_units ? shape : -1;
}

}  // namespace rocm_fp8::grouped_gemm::hip
