// How a launch of skinny_gemm.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so that it
// can be tested anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "../../common/gemm/hip/costs.h"

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
static_assert(names_differ(kStreamShapes));
// Of a row class each; weights in flight, of a workgroup.
static_assert(std::all_of(std::begin(kStreamShapes), std::end(kStreamShapes), [](const StreamShape& s) {
    return (s.rows == 8 || s.rows == 16 || s.rows == 32) && s.waves * s.depth * s.columns * 128 >= 32 << 10;
}));

using gemm::kMaxParts;
using Config = gemm::Choice;  // a shape is an index into kStreamShapes, or kFallback
constexpr int kFallback = -1;
constexpr int64_t kMostColumns = int64_t(1) << 30;

constexpr int row_class(int64_t m) { return m <= 8 ? 8 : m <= 16 ? 16 : 32; }

constexpr const StreamShape& shape_of(const Config& c, int64_t m) {
    return c.shape == kFallback ? kFallbackShapes[m <= 8 ? 0 : m <= 16 ? 1 : 2] : kStreamShapes[c.shape];
}

constexpr double estimated_us(const ChipModel& chip, int shape, int parts, const gemm::Sizes& sizes) {
    return gemm::stream_time(chip, kStreamShapes[shape], gemm::costs::kStreams, sizes, parts).total();
}

// 0: the shape does not take these sizes.
constexpr int most_parts(const ChipModel& chip, int shape, const gemm::Sizes& sizes) {
    const StreamShape& stream = kStreamShapes[shape];
    return stream.rows == sizes.m ? gemm::most_parts(chip, stream, sizes, stream.waves) : 0;
}

// arch: 0 for gfx942, 1 for gfx950. aligned: all rows of a and b start at multiples of 16 bytes, and k is one. Besides,
// 64 rows of b (32 of a) lie within 2^30 bytes, and n is at most kMostColumns.
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, int arch, bool aligned = true) {
    const ChipModel& chip = kChipModels[arch];
    if (!aligned) {
        // Enough workgroups for half the chip, each with a few steps for each of its waves.
        const int64_t tiles = ceil_div(n, 16);
        int parts = 1;
        while (tiles <= kCounters && tiles * parts * 2 <= chip.compute_units && k / (parts * 2) >= 2048 &&
               parts * 2 <= kMaxParts) {
            parts *= 2;
        }
        return {kFallback, parts};
    }
    // All m of a row class take the same configuration (m is the class's), so that a row's bits do not depend on the
    // batch.
    return gemm::pick(kStreamShapeCount, chip, {1, row_class(m), n, k}, most_parts, estimated_us);
}
static_assert(pick_config(32, 4096, 16, 0).shape != kFallback &&
              pick_config(1, 4096, 4096, 0, false).shape == kFallback);
static_assert(pick_config(4, 16, 1024, 0, false).parts == 1 && pick_config(4, 16, 65536, 0, false).parts == kMaxParts);

}  // namespace rocm_fp8::skinny_gemm::hip
