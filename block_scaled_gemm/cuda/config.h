// How a launch of block_scaled_gemm on CUDA is cut into CTAs: a pure function of the sizes and the chip, without CUDA.
//
// Every form (forms.h) and number of parts of K is estimated; the fastest is taken, unless one was measured for the
// shape. The order of a row's sums depends on the parts of K alone, and these are chosen by the row class.
#pragma once

#include "forms.h"

namespace rocm_fp8::block_scaled_gemm::cuda {

struct Config {
    int form;    // index into kForms, or kPlain
    int splits;  // of K
    int pieces;  // of the wide rows
};

struct ChipKey {
    int capability;  // 10 x major + minor
    int multiprocessors;
};

// Fitted to the times of all forms at 38 shapes on an H200: docs/journal/block_scaled_gemm-cuda.md.
constexpr double kReadRate = 4.4e6, kWriteRate = 3.0e6;  // bytes a microsecond, HBM
constexpr double kL2Rate = 11e6;                         // bytes a microsecond from L2, all multiprocessors together
constexpr double kClock = 1850;                          // cycles a microsecond
constexpr double kProductsACycle = 4096;                 // multiplications and additions of a multiprocessor
constexpr double kLeastCycles = 222;                     // of a block's multiplications of 64 wide rows, however narrow
constexpr double kAddCycles = 1.2;                       // of a column of narrow rows: scaling and adding
constexpr double kSwappedCost = 4;                       // times that where each column has a scale of its own
constexpr double kBlockCycles = 154;                     // of a block and warpgroup beside that
constexpr double kLatencyUs = 0.8;                       // of a copy by TMA
constexpr double kStoreUs = 9.2e-5;                      // of an element of the tile
constexpr double kStartUs = 2.1, kSplitUs = 1.32, kPartUs = 0.56;
constexpr double kOverlap = 0.33;  // of the shorter of arithmetic and HBM that is not hidden
constexpr int kClusterWaste = 4;   // CTA slots that clusters cannot use, for each further CTA in one

constexpr double estimated_us(const Form& f, int splits, int64_t m, int64_t n, int64_t k, int units) {
    const auto most = [](double a, double b) { return a > b ? a : b; };
    const int64_t wide = f.swapped ? n : m, narrow = f.swapped ? m : n, pieces = ceil_div(wide, f.wide());
    const int64_t height = ceil_div(ceil_div(wide, 8), pieces) * 8;
    const int64_t ctas = pieces * ceil_div(narrow, f.narrow) * splits;
    const int64_t slots = int64_t(units) * f.slots - kClusterWaste * (splits - 1);
    const int64_t room = slots < splits ? splits : slots / splits * splits;
    const int64_t together = ctas < room ? ctas : room, sharing = ceil_div(together, units);
    // Of one block of K: what the tensor cores take, for all CTAs of a multiprocessor, or a CTA's chain of steps.
    const double multiplying =
        f.warpgroups * f.tiles * most(double(tiles::kWgmmaHeight) * f.narrow * kBlock / kProductsACycle, kLeastCycles);
    const double adding = f.narrow * kAddCycles * (f.swapped ? kSwappedCost : 1) + kBlockCycles;
    double block_us = most(multiplying * double(sharing), multiplying / f.warpgroups + f.tiles * adding) / kClock;
    block_us = most(block_us, double(height + f.narrow) * kBlock * double(together) / kL2Rate);
    block_us = most(block_us, kLatencyUs / stages(f));
    const double tile_us = double(f.wide()) * f.narrow * kStoreUs;
    const double blocks = double(ceil_div(blocks_of(k), splits));
    const double us = double(ceil_div(ctas, room)) * (blocks * block_us + tile_us);
    const double hbm_us = (double(m) * k + double(n) * k) / kReadRate + double(m) * n * 2 / kWriteRate;
    return most(us, hbm_us) + kOverlap * (us < hbm_us ? us : hbm_us) + kStartUs +
           (splits > 1 ? kSplitUs + kPartUs * splits : 0);
}

// Whether a form may take a row class: swapped forms whose narrow rows are not mostly empty, and few rows fill them once.
constexpr bool suits(const Form& f, int64_t rows, bool general_b) {
    if (!f.swapped) return !general_b && (rows >= f.wide() || (f.wide() <= 128 && f.narrow <= 128));
    return f.narrow == 128 || f.narrow == rows || (f.narrow == 64 && rows < 64 && f.warpgroups == 1);
}

// Measured where the estimate picks a form that is more than 3 % slower (H200).
struct Measured {
    ChipKey chip;
    int64_t rows, n, k;  // rows: of a row class
    int form, splits;
};
constexpr ChipKey kH200{90, 132};
constexpr Measured kMeasured[] = {
    {kH200, 16, 7168, 2048, 9, 1},  {kH200, 16, 2112, 7168, 10, 2},  {kH200, 64, 2112, 7168, 9, 3},
    {kH200, 64, 4096, 7168, 9, 2},  {kH200, 64, 7168, 16384, 8, 2},  {kH200, 128, 4096, 7168, 6, 2},
    {kH200, 1024, 512, 7168, 6, 2}, {kH200, 1024, 1536, 7168, 5, 1},
};

constexpr Config config_of(int form, int splits, int64_t m, int64_t n) {
    return {form, splits, int(ceil_div(kForms[form].swapped ? n : m, kForms[form].wide()))};
}

// general_b: B's scales differ between the rows of a block and between blocks: swapped forms alone take them.
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, ChipKey chip, bool general_b) {
    const int64_t rows = row_class(m), blocks = blocks_of(k);
    for (const Measured& known : kMeasured) {
        if (known.chip.capability == chip.capability && known.chip.multiprocessors == chip.multiprocessors &&
            known.rows == rows && known.n == n && known.k == k && suits(kForms[known.form], rows, general_b)) {
            return config_of(known.form, known.splits, m, n);
        }
    }
    int best = kPlain, best_splits = 1;
    double best_us = 0;
    for (int i = 0; i < kFormCount; ++i) {
        const Form& f = kForms[i];
        if (!suits(f, rows, general_b)) continue;
        for (int splits = 1; splits <= (f.splits() ? kMostSplits : 1) && splits <= blocks; ++splits) {
            const double us = estimated_us(f, splits, rows, n, k, chip.multiprocessors);
            if (best == kPlain || us < best_us) best = i, best_splits = splits, best_us = us;
        }
    }
    return best == kPlain ? Config{kPlain, 1, 1} : config_of(best, best_splits, m, n);
}

}  // namespace rocm_fp8::block_scaled_gemm::cuda
