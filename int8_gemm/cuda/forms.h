// The compiled forms of the Hopper kernel, and which one takes a size: without CUDA.
#pragma once

#include "../../common/gemm/cuda/costs.h"
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

constexpr tiles::Measured kMeasured[] = {
    {tiles::kH200, 16, 1536, 7168, "n16x64", 6, 0},     {tiles::kH200, 32, 1536, 7168, "n32x64", 6, 0},
    {tiles::kH200, 32, 2048, 2048, "n16x64", 2, 0},     {tiles::kH200, 32, 5120, 5120, "n32x128", 2, 64},
    {tiles::kH200, 64, 1536, 7168, "n64x128", 6, 0},    {tiles::kH200, 64, 4096, 7168, "n64x128", 3, 37},
    {tiles::kH200, 64, 5120, 20480, "n64x128", 2, 64},  {tiles::kH200, 64, 10240, 8192, "n64x64", 1, 256},
    {tiles::kH200, 512, 16384, 4096, "t128x128", 1, 0}, {tiles::kH200, 2048, 4096, 4096, "t128x128", 1, 0},
    {tiles::kH200, 2048, 8192, 2048, "t128x128", 1, 0},
};
static_assert(tiles::all_known(kForms, kMeasured));

// Sums are exact, so the configuration may follow the rows themselves. Few of them are taken as many as a form holds.
constexpr int64_t class_of(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : m; }

inline Config pick_form(int64_t m, int64_t n, int64_t k, int multiprocessors) {
    const tiles::Size size{class_of(m), n, k, multiprocessors};
    return tiles::remembered(size, 0, [&] {
        return tiles::pick(kForms, tiles::costs::int8, kMeasured, size, [](const Form&) { return true; }, stages);
    });
}

}  // namespace rocm_fp8::int8_gemm::cuda
