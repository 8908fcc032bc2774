// How a launch of block_scaled_gemm on CUDA is cut into CTAs: a pure function of the sizes and the chip, without CUDA.
//
// Every form (forms.h), number of parts of K and, of the swapped forms, number of pieces of N is estimated; the
// fastest is taken. The order of a row's sums depends on the parts of K alone, and these are chosen by the row class.
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

// H200, measured: docs/journal/block_scaled_gemm-cuda.md.
constexpr double kReadRate = 4.4e6;       // bytes a microsecond from HBM
constexpr double kL2Rate = 7.0e6;         // from L2, all multiprocessors together
constexpr double kClock = 1650;           // cycles a microsecond under load
constexpr double kProductsACycle = 4096;  // multiplications and additions of a multiprocessor
constexpr double kStartUs = 2.0, kTileUs = 0.7, kSplitUs = 1.2;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr double estimated_us(const Form& f, int splits, int64_t pieces, int64_t m, int64_t n, int64_t k, int units) {
    const int64_t of_narrow = ceil_div(f.swapped ? m : n, f.narrow), tiles = pieces * of_narrow;
    const int64_t room = int64_t(units) * f.slots / splits * splits, ctas = tiles * splits;
    const int64_t together = ctas < room ? ctas : room, waves = ceil_div(ctas, room);
    const int64_t blocks = ceil_div(blocks_of(k), splits);
    const int64_t rows = ceil_div(f.swapped ? n : m, pieces);
    // Of one block of K: the multiplications of what shares a multiprocessor; its bytes from L2.
    const double sharing = together > units ? f.slots : 1;
    const double adding = (f.swapped ? 0.5 : 0.28) * f.narrow * f.tiles * f.warpgroups;
    double cycles = double(f.wide()) * f.narrow * kBlock / kProductsACycle;
    if (f.warpgroups == 1 && f.slots == 1) cycles += adding;
    const double latency = 180 + cycles;
    cycles = cycles * sharing + 16;
    if (cycles < latency) cycles = latency;
    const double block_us = cycles / kClock;
    const double l2_us = double(rows + f.narrow) * kBlock * double(together) / kL2Rate;
    const double hbm_us = (double(m) * k + double(n) * k) / kReadRate;
    const double written_us = double(m) * n * 2 / 3.0e6;
    double us = double(waves) * (double(blocks) * (block_us > l2_us ? block_us : l2_us) + kTileUs);
    if (us < hbm_us + written_us) us = hbm_us + written_us;
    return us + kStartUs + (splits > 1 ? kSplitUs + 0.1 * splits : 0);
}

// general_b: B's scales differ between the rows of a block and between blocks: swapped forms alone take them.
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, ChipKey chip, bool general_b) {
    const int64_t rows = row_class(m), blocks = blocks_of(k);
    Config best{kPlain, 1, 1};
    double best_us = 0;
    for (int i = 0; i < kFormCount; ++i) {
        const Form& f = kForms[i];
        if (!f.swapped && general_b) continue;
        // Few rows fill the narrow operand once.
        if (f.swapped && f.narrow > rows && f.narrow > 16) continue;
        if (f.swapped && f.narrow < 128 && f.narrow < rows) continue;
        for (int splits = 1; splits <= kMostSplits && splits <= blocks; ++splits) {
            const int64_t least = ceil_div(f.swapped ? n : rows, f.wide());
            int64_t pieces = least;
            if (f.swapped) {
                // As many pieces as fill the last round of CTAs, where that leaves them at least half as high.
                const int64_t of_narrow = ceil_div(rows, f.narrow), room = int64_t(chip.multiprocessors) * f.slots;
                const int64_t rounds = ceil_div(least * of_narrow * splits, room);
                const int64_t filling = rounds * (room / splits) / of_narrow;
                if (filling > pieces) pieces = filling;
                const int64_t most = ceil_div(n, 8);
                if (pieces > 2 * least) pieces = 2 * least;
                if (pieces > most) pieces = most;
                // Heights are multiples of 8: pieces that this leaves nothing for are not wanted.
                pieces = ceil_div(most, ceil_div(most, pieces));
            }
            const double us = estimated_us(f, splits, pieces, rows, n, k, chip.multiprocessors);
            if (best.form == kPlain || us < best_us) {
                best = {i, splits, int(f.swapped ? pieces : ceil_div(m, f.wide()))};
                best_us = us;
            }
        }
    }
    return best;
}

}  // namespace rocm_fp8::block_scaled_gemm::cuda
