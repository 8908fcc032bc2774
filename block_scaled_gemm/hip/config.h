// How a launch of block_scaled_gemm.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so
// that it can be tested anywhere.
#pragma once

#include <cstdint>

#include "../../common/hip/chips.h"
#include "../../common/gemm/hip/counters.h"
#include "../../common/gemm/hip/stream_shape.h"
#include "../../common/gemm/hip/tile_shape.h"
#include "../block_scaled_gemm.h"

namespace rocm_fp8::block_scaled_gemm::hip {

// clang-format off
constexpr TileShape kTileShapes[] = {
    {.name = "t256x128", .rows = 256, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 1, .block_cycles = {3200, 2050}},
    {.name = "t128x128", .rows = 128, .columns = 128, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 4, .deep = 0, .per_unit = 1, .block_cycles = {1900, 1350}},
    {.name = "t128x64", .rows = 128, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 4, .deep = 1, .per_unit = 2, .block_cycles = {1550, 1420}},
    {.name = "t64x64", .rows = 64, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 1, .block_cycles = {1000, 1000}},
    {.name = "fallback", .rows = 128, .columns = 64, .waves_m = 2, .waves_n = 2, .matrix = 32, .stage = 64,
     .ahead = 2, .deep = 0, .per_unit = 2, .block_cycles = {1800, 1510}},
};
// clang-format on
constexpr int kTileShapeCount = sizeof(kTileShapes) / sizeof(kTileShapes[0]);
// The shape that takes scales of single columns of a block, and any layout. Its instruction is that of all: what
// decides the order of a sum, instruction and parts, must not depend on the layout.
constexpr int kFallbackTile = gemm::place_of(kTileShapes, "fallback");

// clang-format off
constexpr StreamShape kStreamShapes[] = {
    {.name = "s16x16w2", .rows = 16, .columns = 16, .waves = 2, .depth = 2, .per_unit = 8,
     .block_cycles = 663, .end_us = 0.03},
    {.name = "s16x16w4", .rows = 16, .columns = 16, .waves = 4, .depth = 4, .per_unit = 4,
     .block_cycles = 634, .end_us = 0.05},
    {.name = "s16x16w8", .rows = 16, .columns = 16, .waves = 8, .depth = 4, .per_unit = 2,
     .block_cycles = 1030, .end_us = 0.16},
    {.name = "s16x32w4", .rows = 16, .columns = 32, .waves = 4, .depth = 4, .per_unit = 3,
     .block_cycles = 729, .end_us = 0.34},
    {.name = "s32x16w2", .rows = 32, .columns = 16, .waves = 2, .depth = 2, .per_unit = 8,
     .block_cycles = 642, .end_us = 0.28},
    {.name = "s32x16w4", .rows = 32, .columns = 16, .waves = 4, .depth = 4, .per_unit = 3,
     .block_cycles = 749, .end_us = 0.41},
    {.name = "s32x16w8", .rows = 32, .columns = 16, .waves = 8, .depth = 2, .per_unit = 2,
     .block_cycles = 1057, .end_us = 0.67},
    {.name = "s32x32w4", .rows = 32, .columns = 32, .waves = 4, .depth = 4, .per_unit = 2,
     .block_cycles = 1132, .end_us = 0.70},
};
// clang-format on
constexpr int kStreamShapeCount = sizeof(kStreamShapes) / sizeof(kStreamShapes[0]);
// Those whose general forms take any layout and any scales, with as many waves as the fast ones: with the most waves.
constexpr int kFallbackStream16 = gemm::place_of(kStreamShapes, "s16x16w8"),
              kFallbackStream32 = gemm::place_of(kStreamShapes, "s32x16w8");

// Tiles that only gfx950 has, whose loads go to LDS directly, for k contiguous in whole blocks. See direct.h.
// clang-format off
constexpr TileShape kDirectShapes[] = {
    {.name = "d256x256", .rows = 256, .columns = 256, .waves_m = 4, .waves_n = 2, .matrix = 32, .stage = 128,
     .ahead = 2, .deep = 1, .per_unit = 1, .block_cycles = {0, 3020}},
};
// clang-format on
constexpr int kDirectShapeCount = sizeof(kDirectShapes) / sizeof(kDirectShapes[0]);

// All shapes: of tiles, then of streams, then of direct tiles.
constexpr int kFirstDirect = kTileShapeCount + kStreamShapeCount, kShapeCount = kFirstDirect + kDirectShapeCount;
// By its name. -1: there is no such shape.
constexpr int shape_named(std::string_view name) {
    const int stream = gemm::place_of(kStreamShapes, name), direct = gemm::place_of(kDirectShapes, name);
    return stream >= 0   ? kTileShapeCount + stream
           : direct >= 0 ? kFirstDirect + direct
                         : gemm::place_of(kTileShapes, name);
}
static_assert(gemm::names_differ(kTileShapes) && gemm::names_differ(kStreamShapes) &&
              gemm::names_differ(kDirectShapes));
constexpr bool is_direct(int shape) { return shape >= kFirstDirect; }
constexpr bool is_stream(int shape) { return shape >= kTileShapeCount && !is_direct(shape); }
constexpr const TileShape& tile_shape(int shape) {
    return is_direct(shape) ? kDirectShapes[shape - kFirstDirect] : kTileShapes[shape];
}
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

struct Config {
    int shape;  // of kShapeCount
    int parts;  // of K
};

constexpr int kMaxParts = 16;
constexpr int64_t kLeastBlocks = 4;  // of a part

template <class Shape>
constexpr int64_t tiles_of(const Shape& shape, int64_t m, int64_t n) {
    return ((m + shape.rows - 1) / shape.rows) * ((n + shape.columns - 1) / shape.columns);
}

constexpr double kFixedCycles = 5500;  // of a tile: its first stages, its epilogue
constexpr double kSplitUs = 1.5;       // one atomic operation, and what waits for it

constexpr double least(double a, double b) { return a < b ? a : b; }

// The model's estimate in microseconds after the launch. A compute unit's tiles take the longest of their matrix
// instructions, of their bytes from L2, and of their steps one after the other. It ranks configurations and is no
// measurement.
constexpr double estimated_us(const ChipModel& chip, const TileShape& shape, int parts, int64_t m, int64_t n,
                              int64_t k) {
    const int64_t units = tiles_of(shape, m, n) * parts;
    const double blocks = double((blocks_of(k) + parts - 1) / parts);
    const int64_t on_unit = (units + chip.compute_units - 1) / chip.compute_units;
    const int64_t rounds = (on_unit + shape.per_unit - 1) / shape.per_unit;
    const double active = double(units < chip.compute_units ? units : chip.compute_units);
    const double size = double(shape.rows) * shape.columns;
    // Of one tile, in cycles.
    const double operations =
        size * kBlock / matrix_operations_per_cycle(chip.arch, shape.matrix, chip.arch == Arch::gfx950);
    const double l2_share = chip.l2_bytes_per_us / chip.cycles_per_us / active;
    const double from_l2 = double(shape.rows + shape.columns) * kBlock / least(l2_share, 2 * chip.unit_bytes);
    const double share = chip.memory_bytes_per_us / chip.cycles_per_us / active;
    const double drain = size * (parts > 1 ? 4 : 2) / least(share, chip.unit_bytes);
    const double busy = double(on_unit) * (blocks * (operations > from_l2 ? operations : from_l2) + drain);
    // Workgroups of one unit are in each other's way.
    const double slower = on_unit > 1 && shape.per_unit > 1 ? 1.45 : 1.0;
    const double chain =
        double(rounds) * (blocks * shape.block_cycles[int(chip.arch)] * slower + kFixedCycles + drain / 2);
    double us = (busy > chain ? busy : chain) / chip.cycles_per_us;
    // What all units fetch from memory. A part's tiles lie on `near` chiplets, band after band of rows: a chiplet of
    // its own for each band fetches its rows alone and the columns as the others do, several in a band the reverse.
    const int64_t across = (n + shape.columns - 1) / shape.columns, down = (m + shape.rows - 1) / shape.rows;
    constexpr double kChiplets = 8, kBand = 8;
    const double near = parts < 8 ? kChiplets / parts : 1, bands = double(down) > kBand ? double(down) / kBand : 1;
    const double row_copies = near > bands ? least(near / bands, double(across)) : 1;
    const double bytes = double(k) * (double(m) * row_copies + double(n) * least(near, bands));
    const double memory = bytes / chip.memory_bytes_per_us + 2;
    us = us > memory ? us : memory;
    if (parts > 1) {
        const double adding = chip.memory_bytes_per_us / chip.cycles_per_us * parts / active;
        us += kSplitUs + size * 4 * parts / least(adding, chip.unit_bytes) / chip.cycles_per_us;
    }
    return us;
}

// Of the kernel for few rows: the longest of its bytes from memory, from L2 and of a wave's blocks one after the other,
// and a part of the others. Fitted on 696 estimates of the simulator's clock (MI300X, 16 sizes, 16 and 32 rows, all
// numbers of parts): 6 % off; what it picks is 2.8 % slower than the best in the mean, 9 % at most.
constexpr double estimated_us(const ChipModel& chip, const StreamShape& shape, int parts, int64_t m, int64_t n,
                              int64_t k) {
    constexpr double kFixedUs = 2.23, kSplitUs = 0.48, kPartUs = 0.016, kRoundUs = 1.63, kInTheWay = 0.118;
    const int64_t units = tiles_of(shape, m, n) * parts, slices = int64_t(parts) * shape.waves;
    const int64_t on_unit = (units + chip.compute_units - 1) / chip.compute_units;
    const int64_t rounds = (on_unit + shape.per_unit - 1) / shape.per_unit;
    const double active = double(units < chip.compute_units ? units : chip.compute_units);
    const double drawn = active * chip.unit_bytes * chip.cycles_per_us;
    const double weights = double(n) * double(k);
    // Unit u has part u % parts, on chiplet u % 8: with 8 parts a chiplet fetches one part of A, with 7 all of it.
    const double copies = parts % 8 == 0 ? 1 : parts % 4 == 0 ? 2 : parts % 2 == 0 ? 4 : 8;
    const double memory = (weights + copies * double(m) * double(k)) / least(chip.memory_bytes_per_us, drawn);
    const double l2 = weights * (1 + double(shape.rows) / shape.columns) / least(chip.l2_bytes_per_us, 2 * drawn);
    const double blocks = double((blocks_of(k) + slices - 1) / slices) * double(rounds);
    const double chain = blocks * shape.block_cycles / chip.cycles_per_us;
    const double longest = memory > l2 ? (memory > chain ? memory : chain) : l2 > chain ? l2 : chain;
    return kFixedUs + longest + kInTheWay * (memory + l2 + chain - longest) + shape.end_us +
           (parts > 1 ? kSplitUs + kPartUs * parts : 0) + double(rounds - 1) * kRoundUs;
}

// Whether a shape may take a class of rows: up to 32 the streams of as many rows; then tiles that the rows fill half.
constexpr bool may_take(Arch arch, int shape, int64_t rows, int64_t k) {
    const int own = form_of(shape).rows;
    if (is_direct(shape) && (arch != Arch::gfx950 || k % kBlock != 0)) return false;
    return is_stream(shape) ? own == rows : shape != kFallbackTile && rows > kMostStreamRows && own / 2 < rows;
}

constexpr double estimated_us(const ChipModel& chip, int shape, int parts, int64_t m, int64_t n, int64_t k) {
    if (is_stream(shape)) return estimated_us(chip, kStreamShapes[shape - kTileShapeCount], parts, m, n, k);
    return estimated_us(chip, tile_shape(shape), parts, m, n, k);
}

// All m of a row class take the same configuration (m is the class's), so that a row's bits do not depend on the batch.
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, int arch) {
    const ChipModel& chip = kChipModels[arch];
    const int64_t rows = row_class(m), blocks = blocks_of(k);
    Config best{-1, 1};
    double best_us = 0;
    for (int i = 0; i < kShapeCount; ++i) {
        if (!may_take(chip.arch, i, rows, k)) continue;
        const FormSize size = form_of(i);
        const int64_t tiles = tiles_of(size, rows, n), general = tiles_of(form_of(fallback_shape(i)), rows, n);
        const int64_t room = int64_t(chip.compute_units) * size.per_unit;
        const int64_t least = is_stream(i) ? size.waves : kLeastBlocks;
        for (int parts = 1; parts <= kMaxParts; ++parts) {
            // The last workgroup's adding of direct tiles, the largest, takes longer than parts gain.
            const bool allowed = !is_direct(i) && tiles <= kCounters && general <= kCounters &&
                                 tiles * parts <= 2 * room && blocks / parts >= least;
            if (parts > 1 && !allowed) break;
            const double us = estimated_us(chip, i, parts, rows, n, k);
            if (best.shape < 0 || us < best_us) {
                best = {i, parts};
                best_us = us;
            }
        }
    }
    return best;
}

}  // namespace rocm_fp8::block_scaled_gemm::hip
