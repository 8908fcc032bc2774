// How a launch of int8_gemm.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so that it can
// be tested anywhere. Sums are exact, so no choice changes a bit of the result.
#pragma once

#include <cstdint>

#include "../../common/hip/chips.h"
#include "../../common/gemm/hip/counters.h"
#include "../../common/gemm/hip/tile_shape.h"
#include "../../common/gemm/work.h"
#include "../int8_gemm.h"

namespace rocm_fp8::int8_gemm::hip {

// clang-format off
constexpr TileShape kTileShapes[] = {
    {.name = "t256x128", .rows = 256, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 1, .block_cycles = {2740, 1950}},
    {.name = "t128x128", .rows = 128, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 4, .deep = 0, .per_unit = 1, .block_cycles = {1660, 1310}},
    {.name = "t128x64", .rows = 128, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 2, .block_cycles = {1200, 1090}},
    {.name = "t64x64", .rows = 64, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 2, .block_cycles = {730, 717}},
    {.name = "t32x64", .rows = 32, .columns = 64, .waves_m = 1, .waves_n = 2, .matrix = 32, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 2, .block_cycles = {690, 683}},
    {.name = "t16x64", .rows = 16, .columns = 64, .waves_m = 1, .waves_n = 2, .matrix = 16, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 2, .block_cycles = {660, 643}},
    {.name = "t224x128", .rows = 224, .columns = 128, .waves_m = 1, .waves_n = 4, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 1, .per_unit = 1, .block_cycles = {2365, 1840}, .waves_k = 2},
    {.name = "t160x128", .rows = 160, .columns = 128, .waves_m = 1, .waves_n = 4, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 1, .per_unit = 1, .block_cycles = {1770, 1530}, .waves_k = 2},
};
// clang-format on
constexpr int kTileShapeCount = sizeof(kTileShapes) / sizeof(kTileShapes[0]);
static_assert(gemm::names_differ(kTileShapes));

// The shapes that are compiled for rows of any alignment and any k, too: the one in the place of each.
constexpr int kFallbacks[] = {gemm::place_of(kTileShapes, "t128x64"), gemm::place_of(kTileShapes, "t32x64"),
                              gemm::place_of(kTileShapes, "t16x64")};
constexpr int fallback_shape(int shape) {
    return kTileShapes[shape].matrix == 16 ? kFallbacks[2]
           : kTileShapes[shape].rows <= 32 ? kFallbacks[1]
                                           : kFallbacks[0];
}

using gemm::blocks_of, gemm::kBlock;

struct Config {
    int shape;  // index into kTileShapes
    int parts;  // of K
};

constexpr int kMaxParts = 16;
constexpr int64_t kLeastBlocks = 4;  // of a part

// Of all batches.
constexpr int64_t tiles_of(const TileShape& shape, int64_t batch, int64_t m, int64_t n) {
    return batch * ((m + shape.rows - 1) / shape.rows) * ((n + shape.columns - 1) / shape.columns);
}

constexpr double kFixedCycles = 5500;  // of a tile: its first stages, what its epilogue begins with
constexpr double kPower = 0.665;       // part by which the clock's period grows where the matrix units are never idle
constexpr double kSplitUs = 1.5;       // one atomic operation, and what waits for it

constexpr double larger_of(double a, double b) { return a > b ? a : b; }
constexpr double smaller_of(double a, double b) { return a < b ? a : b; }

// The model's estimate in microseconds after the launch. A compute unit's tiles take the longest of their matrix
// instructions, of their bytes from L2, and of their blocks one after the other; all of them together at least their
// bytes from memory. It ranks configurations and is no measurement.
constexpr double estimated_us(const ChipModel& chip, const TileShape& shape, int parts, int64_t batch, int64_t m,
                              int64_t n, int64_t k) {
    const int64_t units = tiles_of(shape, batch, m, n) * parts;
    const double blocks = double((blocks_of(k) + parts - 1) / parts);
    // A workgroup has `rounds` units one after the other, a compute unit `on_unit`.
    const int64_t room = int64_t(chip.compute_units) * shape.per_unit, groups = units < room ? units : room;
    const int64_t rounds = (units + groups - 1) / groups,
                  beside = (groups + chip.compute_units - 1) / chip.compute_units;
    const int64_t on_unit = rounds * beside;
    // Compute units that have one workgroup less leave their share of the bandwidth to the others.
    const double active = double(groups) / double(beside);
    const double size = double(shape.rows) * shape.columns;
    // Of one tile, in cycles.
    const double operations = size * kBlock / matrix_operations_per_cycle(chip.arch, shape.matrix, false);
    const double l2_share = chip.l2_bytes_per_us / chip.cycles_per_us / active;
    const double from_l2 = double(shape.rows + shape.columns) * kBlock / smaller_of(l2_share, 2 * chip.unit_bytes);
    const double share = chip.memory_bytes_per_us / chip.cycles_per_us / active;
    const double drain = size * (parts > 1 ? 4 * shape.waves_k : 2) / smaller_of(share, chip.unit_bytes);
    const double busy = double(on_unit) * (blocks * larger_of(operations, from_l2) + drain);
    // Workgroups of one unit are in each other's way.
    const double slower = beside > 1 ? 1.45 : 1.0;
    // The epilogue: a result takes a quarter of a cycle; more where waves have to add their sums first.
    const double fixed = kFixedCycles + size * (shape.waves_k > 1 ? 0.42 : 0.25);
    const double chain =
        double(rounds) * (blocks * shape.block_cycles[int(chip.arch)] * slower + fixed + (parts > 1 ? drain : 0));
    // What reaches the memory at least: each operand once, the weights of few rows by every chiplet that has a part.
    const double memory = double(batch) * double(k) * double(m + n) / chip.memory_bytes_per_us + 2;
    const double multiplying = double(on_unit) * blocks * size * kBlock / (chip.arch == Arch::gfx950 ? 4096 : 2048);
    double us =
        larger_of(larger_of(busy, chain) / chip.cycles_per_us, memory) + kPower * multiplying / chip.cycles_per_us;
    if (parts > 1) {
        const double adding = chip.memory_bytes_per_us / chip.cycles_per_us * parts / active;
        us += kSplitUs + size * 4 * shape.waves_k * parts / smaller_of(adding, chip.unit_bytes) / chip.cycles_per_us;
    }
    return us;
}

constexpr bool may_take(const TileShape& shape, int64_t rows) {
    // Up to 16 rows the smaller instruction; then tiles that the rows fill at least half.
    return rows <= 16 ? shape.rows == 16 : shape.matrix == 32 && shape.rows / 2 < rows;
}

// general: for rows of any alignment and any k.
constexpr Config pick_config(int64_t batch, int64_t m, int64_t n, int64_t k, int arch, bool general) {
    const ChipModel& chip = kChipModels[arch];
    Config best{-1, 1};
    double best_us = 0;
    for (int i = 0; i < kTileShapeCount; ++i) {
        const TileShape& shape = kTileShapes[i];
        if (!may_take(shape, m) || (general && fallback_shape(i) != i)) continue;
        const int64_t tiles = tiles_of(shape, batch, m, n), room = int64_t(chip.compute_units) * shape.per_unit;
        for (int parts = 1; parts <= kMaxParts; ++parts) {
            const bool allowed =
                tiles <= kCounters && tiles * parts <= 2 * room && blocks_of(k) / parts >= kLeastBlocks;
            if (parts > 1 && !allowed) break;
            const double us = estimated_us(chip, shape, parts, batch, m, n, k);
            if (best.shape < 0 || us < best_us) {
                best = {i, parts};
                best_us = us;
            }
        }
    }
    return best;
}

}  // namespace rocm_fp8::int8_gemm::hip
