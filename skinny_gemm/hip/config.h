// How a launch of skinny_gemm.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so that it
// can be tested anywhere.
#pragma once

#include <cstdint>

#include "../../common/gemm/hip/counters.h"
#include "../../common/gemm/hip/stream_shape.h"
#include "../../common/hip/chips.h"
#include "tuned.h"

namespace rocm_fp8::skinny_gemm::hip {

// All compiled shapes. 32 columns share what is loaded of A, and are for more columns than a compute unit's four
// workgroups of 16 make.
// clang-format off
constexpr StreamShape kStreamShapes[] = {
    {.name = "s8x16", .rows = 8, .columns = 16, .waves = 4, .depth = 6, .per_unit = 4},
    {.name = "s8x32", .rows = 8, .columns = 32, .waves = 4, .depth = 4, .per_unit = 4},
    {.name = "s16x16", .rows = 16, .columns = 16, .waves = 4, .depth = 6, .per_unit = 4},
    {.name = "s16x32", .rows = 16, .columns = 32, .waves = 4, .depth = 4, .per_unit = 4},
    {.name = "s32x16", .rows = 32, .columns = 16, .waves = 4, .depth = 4, .per_unit = 4},
    {.name = "s32x32", .rows = 32, .columns = 32, .waves = 4, .depth = 3, .per_unit = 3},
};
// By kFallback, of any layout: of each row class.
constexpr StreamShape kFallbackShapes[] = {
    {.name = "f8", .rows = 8, .columns = 16, .waves = 8, .depth = 2, .per_unit = 2},
    {.name = "f16", .rows = 16, .columns = 16, .waves = 8, .depth = 2, .per_unit = 2},
    {.name = "f32", .rows = 32, .columns = 16, .waves = 8, .depth = 2, .per_unit = 2},
};
// clang-format on
constexpr int kStreamShapeCount = sizeof(kStreamShapes) / sizeof(kStreamShapes[0]);
static_assert(gemm::names_differ(kStreamShapes));

struct Config {
    int shape;   // index into kStreamShapes, or kFallback
    int splits;  // of K
};
constexpr int kFallback = -1;

constexpr int kMaxSplits = 16;
constexpr int64_t kMostColumns = int64_t(1) << 30;
constexpr int64_t kLeastPart = 1024;  // of k, where it is split

constexpr int row_class(int64_t m) { return m <= 8 ? 8 : m <= 16 ? 16 : 32; }

constexpr const StreamShape& shape_of(const Config& c, int64_t m) {
    return c.shape == kFallback ? kFallbackShapes[m <= 8 ? 0 : m <= 16 ? 1 : 2] : kStreamShapes[c.shape];
}

// The model's estimate in microseconds after the launch: the longer of the bytes from memory and from L2, what busy
// matrix units take of the clock, latencies before and behind, rounds of workgroups and split-K. It ranks configurations
// and is no measurement. Fitted on 127 estimates of the simulator's clock (MI300X, 19 sizes): 3.7 % off, and what it
// picks is the best of them but for two, by 1.4 and 15 % (16 parts instead of 8 of 64 columns).
constexpr double estimated_us(const ChipModel& chip, const StreamShape& shape, int splits, int64_t n, int64_t k) {
    constexpr double kFixedUs = 0.59, kInTheWay = 0.014, kPower = 0.665, kEndUs = 0.11, kRoundUs = 1.7;
    constexpr double kUnitBytes = 28;  // a clock, of one compute unit of either chip: streams draw no more
    constexpr double kSplitUs = 1.06, kPartUs = 0.084;  // of a launch, and a KiB of a workgroup's sums in each part
    const int64_t columns = shape.columns, tiles = (n + columns - 1) / columns;
    const int64_t groups = tiles * splits, on_unit = (groups + chip.compute_units - 1) / chip.compute_units;
    const int64_t rounds = (on_unit + shape.per_unit - 1) / shape.per_unit;
    const auto least = [](double a, double b) { return a < b ? a : b; };
    const double active = least(double(groups), chip.compute_units);
    const double drawn = active * kUnitBytes * chip.cycles_per_us;
    const double weights = double(tiles * columns) * double(k), rows = shape.rows;
    // Workgroup u has part u % splits, on chiplet u % 8: with 8 parts a chiplet fetches one part of A, with one all.
    const double copies = least(8, double(groups)) / least(8, splits);
    const double memory = (weights + copies * rows * double(k)) / least(chip.memory_bytes_per_us, drawn);
    const double l2 = weights * (1 + rows / double(columns)) / least(chip.l2_bytes_per_us, 2 * drawn);
    // 16 cycles for 8 rows and a KiB of weights, on four SIMDs; the fullest unit has more than the mean.
    const double matrix =
        weights / 1024 * 16 * (rows / 8) / (double(groups) / double(on_unit) * 4 * chip.cycles_per_us);
    double us = kFixedUs + (memory > l2 ? memory : l2) + kInTheWay * least(memory, l2) + kPower * matrix;
    us += kEndUs * rows / 8 * double(columns) / 16 + kRoundUs * double(rounds - 1);
    if (splits > 1) us += kSplitUs + kPartUs * rows * double(columns) * 4 / 1024 * splits;
    return us;
}

// arch: 0 for gfx942, 1 for gfx950. aligned: all rows of a and b start at multiples of 16 bytes, and k is one. Besides,
// 64 rows of b (32 of a) lie within 2^30 bytes, and n is at most kMostColumns.
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, int arch, bool aligned = true) {
    const ChipModel& chip = kChipModels[arch];
    if (!aligned) {
        // Enough workgroups for half the chip, each with a few steps for each of its waves.
        const int64_t tiles = (n + 15) / 16;
        int splits = 1;
        while (tiles <= kCounters && tiles * splits * 2 <= chip.compute_units && k / (splits * 2) >= 2048 &&
               splits * 2 <= kMaxSplits) {
            splits *= 2;
        }
        return {kFallback, splits};
    }
    for (const TunedConfig& t : kTunedConfigs) {
        if (t.arch == arch && t.rows == row_class(m) && t.n == n && t.k == k) {
            return {gemm::place_of(kStreamShapes, t.form), t.splits};
        }
    }
    // All m of a row class take the same configuration (m is the class's), so that a row's bits do not depend on the
    // batch.
    Config best{kFallback, 1};
    double best_us = 0;
    for (int i = 0; i < kStreamShapeCount; ++i) {
        const StreamShape& shape = kStreamShapes[i];
        if (shape.rows != row_class(m)) continue;
        const int64_t tiles = (n + shape.columns - 1) / shape.columns;
        for (int splits = 1; splits <= kMaxSplits; splits *= 2) {
            if (splits > 1 && (tiles > kCounters || k / splits < kLeastPart)) break;
            const double us = estimated_us(chip, shape, splits, n, k);
            if (best.shape == kFallback || us < best_us) {
                best = {i, splits};
                best_us = us;
            }
        }
    }
    return best;
}

}  // namespace rocm_fp8::skinny_gemm::hip
