// The compiled forms of the Hopper kernel, and which one takes a size: without CUDA.
#pragma once

#include "../../common/gemm/cuda/choice.h"
#include "../int8_gemm.h"

namespace rocm_fp8::int8_gemm::cuda {

using tiles::Config;
using tiles::Cut;
using tiles::Form;

// Large tiles: of an instruction's time little is left where it waits for its operands, and 256 columns need fewest.
constexpr Form kForms[] = {
    {false, 2, 1, 256, 1}, {false, 2, 2, 128, 1}, {false, 2, 1, 192, 1}, {false, 2, 1, 128, 1}, {false, 2, 1, 96, 1},
    {false, 2, 1, 64, 1},  {false, 1, 1, 128, 2}, {false, 1, 1, 64, 2},  {true, 1, 1, 16, 2},   {true, 2, 1, 16, 1},
    {true, 1, 1, 32, 2},   {true, 2, 1, 32, 1},   {true, 1, 1, 64, 2},   {true, 2, 1, 64, 1},
};
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);

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
    {tiles::kH200, 16, 1536, 7168, 8, 6, 0},     {tiles::kH200, 16, 5120, 20480, 9, 2, 64},
    {tiles::kH200, 32, 1536, 7168, 10, 6, 0},    {tiles::kH200, 32, 2048, 2048, 10, 4, 0},
    {tiles::kH200, 32, 2048, 8192, 11, 6, 0},    {tiles::kH200, 32, 5120, 20480, 11, 2, 64},
    {tiles::kH200, 64, 1536, 7168, 13, 6, 0},    {tiles::kH200, 64, 5120, 20480, 13, 2, 64},
    {tiles::kH200, 64, 10240, 8192, 12, 1, 256}, {tiles::kH200, 512, 2048, 8192, 5, 1, 0},
    {tiles::kH200, 512, 5120, 20480, 2, 1, 0},   {tiles::kH200, 512, 8192, 2048, 3, 1, 0},
    {tiles::kH200, 2048, 2048, 2048, 3, 1, 0},   {tiles::kH200, 2048, 2048, 8192, 3, 1, 0},
    {tiles::kH200, 2048, 4096, 16384, 0, 1, 0},  {tiles::kH200, 2048, 16384, 4096, 0, 1, 0},
};

// Sums are exact, so the configuration may follow the rows themselves. Few of them are taken as many as a form holds.
constexpr int64_t class_of(int64_t m) { return m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : m; }

constexpr Config pick_form(int64_t m, int64_t n, int64_t k, int multiprocessors) {
    return tiles::pick(
        kForms, kCosts, kMeasured, {class_of(m), n, k, multiprocessors}, [&](const Form& f) { return suits(f, m); },
        [](const Form& f) { return tiles::Step{0, stages(f)}; });
}

}  // namespace rocm_fp8::int8_gemm::cuda
