// The compiled forms of the Hopper kernel, and which one takes a size: without CUDA.
#pragma once

#include "../../common/gemm/cuda/choice.h"
#include "../int8_gemm.h"

namespace rocm_fp8::int8_gemm::cuda {

using tiles::Config;
using tiles::Form;
using tiles::Tiling;

// Large tiles: of an instruction's time little is left where it waits for its operands, and 256 columns need fewest.
// clang-format off
constexpr Form kForms[] = {
    {.name = "t128x256", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 256, .slots = 1},
    {.name = "t256x128", .swapped = false, .warpgroups = 2, .tiles = 2, .narrow = 128, .slots = 1},
    {.name = "t128x192", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 192, .slots = 1},
    {.name = "t128x128", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 128, .slots = 1},
    {.name = "t128x96", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 96, .slots = 1},
    {.name = "t128x64", .swapped = false, .warpgroups = 2, .tiles = 1, .narrow = 64, .slots = 1},
    {.name = "t64x128", .swapped = false, .warpgroups = 1, .tiles = 1, .narrow = 128, .slots = 2},
    {.name = "t64x64", .swapped = false, .warpgroups = 1, .tiles = 1, .narrow = 64, .slots = 2},
    {.name = "n16x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 16, .slots = 2},
    {.name = "n16x128", .swapped = true, .warpgroups = 2, .tiles = 1, .narrow = 16, .slots = 1},
    {.name = "n32x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 32, .slots = 2},
    {.name = "n32x128", .swapped = true, .warpgroups = 2, .tiles = 1, .narrow = 32, .slots = 1},
    {.name = "n64x64", .swapped = true, .warpgroups = 1, .tiles = 1, .narrow = 64, .slots = 2},
    {.name = "n64x128", .swapped = true, .warpgroups = 2, .tiles = 1, .narrow = 64, .slots = 1},
};
// clang-format on
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);
static_assert(names_differ(kForms));

// What rows and columns of a tile bring to the epilogue: lines.h.
template <Form form>
struct Lines {
    static constexpr int kRows = form.swapped ? form.narrow : form.wide();
    static constexpr int kColumns = form.swapped ? form.wide() : form.narrow;

    float scales_of_rows[kRows];
    int32_t zeros[kRows];
    float scales_of_columns[kColumns], addends[kColumns];
    int32_t sums[kColumns];
};
constexpr int bytes_of_lines(const Form& f) {
    return 8 * f.wide() + 8 * f.narrow + 4 * (f.swapped ? f.wide() : f.narrow);
}
// With two tiles' lines, and their barriers.
constexpr int stages(const Form& f) { return f.stages(0, 2 * bytes_of_lines(f) + 32); }
static_assert(tiles::stages_are_enough(kForms, stages));

// Fitted to the times of all forms at 67 sizes on an H200: docs/journal/int8_gemm-cuda.md.
constexpr tiles::Costs kCosts{
    .read_rate = 4.7e6,
    .write_rate = 4.4e6,
    .l2_rate = 13.7e6,
    .clock = 1520,
    .least_cycles = 87,
    .latency_us = 1.07,
    .store_us = 1.49e-4,
    .start_us = 1.28,
    .split_us = 0.713,
    .part_us = 0.218,
    .overlap = 0.717,
    .tail = 0.125,
};

// Swapped forms take rows that fill their narrow ones at least half, or 16.
constexpr bool suits(const Form& f, int64_t m) {
    return f.swapped ? m <= f.narrow && (f.narrow == 16 || 2 * m > f.narrow) : m > 16;
}

constexpr tiles::Measured kMeasured[] = {
    {tiles::kH200, 16, 1536, 7168, "n16x64", 6, 0},      {tiles::kH200, 16, 5120, 20480, "n16x128", 2, 64},
    {tiles::kH200, 32, 1536, 7168, "n32x64", 6, 0},      {tiles::kH200, 32, 2048, 2048, "n32x64", 4, 0},
    {tiles::kH200, 32, 2048, 8192, "n32x128", 6, 0},     {tiles::kH200, 32, 5120, 20480, "n32x128", 2, 64},
    {tiles::kH200, 64, 1536, 7168, "n64x128", 6, 0},     {tiles::kH200, 64, 5120, 20480, "n64x128", 2, 64},
    {tiles::kH200, 64, 10240, 8192, "n64x64", 1, 256},   {tiles::kH200, 512, 2048, 8192, "t128x64", 1, 0},
    {tiles::kH200, 512, 5120, 20480, "t128x192", 1, 0},  {tiles::kH200, 512, 8192, 2048, "t128x128", 1, 0},
    {tiles::kH200, 2048, 2048, 2048, "t128x128", 1, 0},  {tiles::kH200, 2048, 2048, 8192, "t128x128", 1, 0},
    {tiles::kH200, 2048, 4096, 16384, "t128x256", 1, 0}, {tiles::kH200, 2048, 16384, 4096, "t128x256", 1, 0},
};
static_assert(tiles::all_known(kForms, kMeasured));

// Sums are exact, so the configuration may follow the rows themselves. Few of them are taken as many as a form holds.
constexpr int64_t class_of(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : m; }

constexpr Config pick_form(int64_t m, int64_t n, int64_t k, int multiprocessors) {
    return tiles::pick(
        kForms, kCosts, kMeasured, {class_of(m), n, k, multiprocessors}, [&](const Form& f) { return suits(f, m); },
        [](const Form& f) { return tiles::Step{0, stages(f)}; });
}

}  // namespace rocm_fp8::int8_gemm::cuda
