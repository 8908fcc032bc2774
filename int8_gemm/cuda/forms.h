// The compiled forms of the Hopper kernel, and which one takes a size: without CUDA.
#pragma once

#include "../../common/cuda/tiles/cut.h"
#include "../int8_gemm.h"

namespace rocm_fp8::int8_gemm::cuda {

using tiles::Cut;
using tiles::Form;

// Large tiles: of an instruction's time little is left where it waits for its operands, and 256 columns need fewest.
constexpr Form kForms[] = {
    {false, 2, 1, 256, 1}, {false, 2, 2, 128, 1}, {false, 2, 1, 192, 1}, {false, 2, 1, 128, 1}, {false, 2, 1, 96, 1},
    {false, 2, 1, 64, 1},  {false, 1, 1, 128, 2}, {false, 1, 1, 64, 2},  {true, 1, 1, 16, 2},   {true, 2, 1, 16, 1},
    {true, 1, 1, 32, 2},   {true, 2, 1, 32, 1},   {true, 1, 1, 64, 2},   {true, 2, 1, 64, 1},
};
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);
constexpr int kAnyChip = -1;  // the kernel of kernel.h

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

struct FormConfig {
    int form;    // index into kForms, or kAnyChip
    int splits;  // of K
    int pieces;  // of the wide rows
};

// Not fitted: HBM, L2 and latencies are those that block_scaled_gemm's forms were fitted to on an H200, multiplications
// the tensor cores' rate.
constexpr double kReadRate = 4.4e6, kWriteRate = 3.0e6, kL2Rate = 11e6;  // bytes a microsecond
constexpr double kClock = 1850;                                          // cycles a microsecond
constexpr double kProductsACycle = 4096, kLeastCycles = 128;  // of a multiprocessor; of a step, however narrow
constexpr double kLatencyUs = 0.8;                            // of a copy by TMA
constexpr double kStoreUs = 9.2e-5;                           // of an element of the tile
constexpr double kStartUs = 2.1, kSplitUs = 1.32, kPartUs = 0.56;
constexpr double kOverlap = 0.33;  // of the shorter of arithmetic and HBM that is not hidden
constexpr int kClusterWaste = 4;   // CTA slots that clusters cannot use, for each further CTA in one

constexpr double estimated_us(const Form& f, int splits, int64_t m, int64_t n, int64_t k, int units) {
    const auto most = [](double a, double b) { return a > b ? a : b; };
    const int64_t wide = f.swapped ? n : m, narrow = f.swapped ? m : n, pieces = tiles::ceil_div(wide, f.wide());
    const int64_t height = tiles::ceil_div(tiles::ceil_div(wide, 8), pieces) * 8;
    const int64_t ctas = pieces * tiles::ceil_div(narrow, f.narrow) * splits;
    const int64_t slots = int64_t(units) * f.slots - kClusterWaste * (splits - 1);
    const int64_t room = slots < splits ? splits : slots / splits * splits;
    const int64_t together = ctas < room ? ctas : room, sharing = tiles::ceil_div(together, units);
    // Of a step of 128 k: what the tensor cores take, L2's bytes, or a copy's latency.
    const double multiplying =
        f.warpgroups * f.tiles *
        most(double(tiles::kWgmmaHeight) * f.narrow * tiles::kStep / kProductsACycle, kLeastCycles);
    double step_us = multiplying * double(sharing) / kClock;
    step_us = most(step_us, double(height + f.narrow) * tiles::kStep * double(together) / kL2Rate);
    step_us = most(step_us, kLatencyUs / stages(f));
    const double steps = double(tiles::ceil_div(tiles::ceil_div(k, tiles::kStep), splits));
    const double us = double(tiles::ceil_div(ctas, room)) * (steps * step_us + double(f.wide()) * f.narrow * kStoreUs);
    const double hbm_us = (double(m) * k + double(n) * k) / kReadRate + double(m) * n * 2 / kWriteRate;
    return most(us, hbm_us) + kOverlap * (us < hbm_us ? us : hbm_us) + kStartUs +
           (splits > 1 ? kSplitUs + kPartUs * splits : 0);
}

// Swapped forms take rows that fill their narrow ones at least half, or 16.
constexpr bool suits(const Form& f, int64_t m) {
    return f.swapped ? m <= f.narrow && (f.narrow == 16 || 2 * m > f.narrow) : m > 16;
}

constexpr FormConfig config_of(int form, int splits, int64_t m, int64_t n) {
    return {form, splits, int(tiles::ceil_div(kForms[form].swapped ? n : m, kForms[form].wide()))};
}

constexpr FormConfig pick_form(int64_t m, int64_t n, int64_t k, int multiprocessors) {
    FormConfig best{kAnyChip, 1, 1};
    double best_us = 0;
    const int64_t steps = tiles::ceil_div(k, tiles::kStep);
    for (int i = 0; i < kFormCount; ++i) {
        const Form& f = kForms[i];
        if (!suits(f, m)) continue;
        for (int splits = 1; splits <= (f.splits() ? tiles::kMostSplits : 1) && splits <= steps; ++splits) {
            const double us = estimated_us(f, splits, m, n, k, multiprocessors);
            if (best.form == kAnyChip || us < best_us) best = config_of(i, splits, m, n), best_us = us;
        }
    }
    return best;
}

}  // namespace rocm_fp8::int8_gemm::cuda
