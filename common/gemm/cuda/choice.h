// Which form of a Hopper GEMM takes a size, in how many parts of K and pieces of the wide rows: without CUDA.
//
// Every legal configuration is estimated, and the fastest is taken, unless one was measured for the size. An operator
// gives the costs of its main loop.
#pragma once

#include "tiling.h"

namespace rocm_fp8::tiles {

constexpr int kFallback = -1;  // the operator's kernel for any chip

struct Config {
    int form = kFallback;  // index into the operator's forms
    int splits = 1;        // of K
    int pieces = 1;        // of the wide rows
};

struct Size {
    int64_t m, n, k;
    int multiprocessors;
};

// Where the estimate picks a configuration that was measured to be more than 3 % slower. All forms are Hopper's.
struct Measured {
    int multiprocessors;
    int64_t rows, n, k;  // rows: of a row class
    FormName form;
    int splits, pieces;  // pieces 0: the fewest
};
constexpr int kH200 = 132;  // multiprocessors, also of an H100 SXM

// Hopper GPUs by their memory: HBM3e on 6144 bits, or HBM3 on 5120.
enum class Hopper { h200, h100 };
constexpr Hopper hopper_of(int memory_bits) { return memory_bits > 5120 ? Hopper::h200 : Hopper::h100; }

// Fitted to measured times of all configurations on one chip.
struct Costs {
    double read_rate, write_rate;  // bytes a microsecond, HBM
    double l2_rate;                // bytes a microsecond from L2, all multiprocessors together
    double clock;                  // cycles a microsecond
    double least_cycles;           // of a step's multiplications of 64 wide rows, however narrow
    double latency_us;             // of a copy by TMA
    double store_us;               // of an element of the tile
    double start_us;
    double split_us, part_us;  // of split-K in each round, whose CTAs have one tile; of each part
    double overlap;            // of the shorter of arithmetic and HBM: what is not hidden
    double tail;               // of CTA slots that the last of several rounds leaves free: what HBM's time grows by
    double cluster_fill = 1;   // of CTA slots, what clusters of three or more fill at once
};
constexpr double kProductsACycle = 4096;  // multiplications and additions of a multiprocessor
constexpr int kClusterWaste = 4;          // CTA slots that clusters cannot use, for each further CTA in one

// What a form needs for each step of 128 k beside its multiplications, and the stages that its ring has.
struct Step {
    double cycles;
    int stages;
};

// Whether TMA's coordinates, signed numbers of 32 bits, reach all rows and the end of the last step.
constexpr int64_t kMostOfTma = (int64_t(1) << 31) - 2 * kStep;
constexpr bool reaches(const Size& s) { return s.m <= kMostOfTma && s.n <= kMostOfTma && s.k <= kMostOfTma; }

constexpr int64_t room_of(const Form& f, int splits, int multiprocessors, double cluster_fill = 1) {
    const int64_t all = int64_t(multiprocessors) * f.slots, left = all - kClusterWaste * (splits - 1);
    const int64_t filled = splits > 2 ? int64_t(double(all) * cluster_fill) : all,
                  slots = left < filled ? left : filled;
    return slots < splits ? splits : slots / splits * splits;
}
constexpr int64_t height_of(int64_t wide, int64_t pieces) { return ceil_div(ceil_div(wide, 8), pieces) * 8; }

constexpr double estimated_us(const Form& f, const Step& step, const Costs& c, int splits, int64_t pieces,
                              const Size& s) {
    const auto most = [](double a, double b) { return a > b ? a : b; };
    const int64_t narrow = f.swapped ? s.m : s.n, height = height_of(f.swapped ? s.n : s.m, pieces);
    const int64_t ctas = pieces * ceil_div(narrow, f.narrow) * splits,
                  room = room_of(f, splits, s.multiprocessors, c.cluster_fill);
    const int64_t together = ctas < room ? ctas : room, sharing = ceil_div(together, s.multiprocessors);
    // Of a step: what the tensor cores take for all CTAs of a multiprocessor, a warpgroup's chain, L2's bytes, or a
    // copy's latency.
    const double own = f.tiles * most(double(kWgmmaHeight) * f.narrow * kStep / kProductsACycle, c.least_cycles);
    double step_us = most(own * f.warpgroups * double(sharing), own + f.tiles * step.cycles) / c.clock;
    step_us = most(step_us, double(height + f.narrow) * kStep * double(together) / c.l2_rate);
    step_us = most(step_us, c.latency_us / step.stages);
    const double steps = double(ceil_div(ceil_div(s.k, kStep), splits));
    const int64_t rounds = ceil_div(ctas, room);
    const double us = double(rounds) * (steps * step_us + double(f.wide()) * f.narrow * c.store_us);
    const double uneven = rounds > 1 ? double(rounds * room) / double(ctas) - 1 : 0;
    const double hbm_us = ((double(s.m) + double(s.n)) * s.k / c.read_rate + double(s.m) * s.n * 2 / c.write_rate) *
                          (1 + c.tail * uneven);
    return most(us, hbm_us) + c.overlap * (us < hbm_us ? us : hbm_us) + c.start_us +
           (splits > 1 ? double(rounds) * (c.split_us + c.part_us * splits) : 0);
}

// Pieces of a form's whole height; or, of few rows' columns, as many as fill the CTA slots best, so that all
// multiprocessors read the same share of the weights. Those have one height: pieces of 48 and 56 columns of 4096 were
// slower than 64 pieces of 64, which leave a quarter of the slots free (H200).
constexpr int64_t fewest_pieces(const Form& f, const Size& s) { return ceil_div(f.swapped ? s.n : s.m, f.wide()); }
constexpr int64_t even_pieces(const Form& f, int splits, const Size& s) {
    const int64_t fewest = fewest_pieces(f, s);
    if (!f.swapped || s.n % 8 != 0) return fewest;
    const int64_t eights = s.n / 8, tiles = ceil_div(s.m, f.narrow), room = room_of(f, splits, s.multiprocessors);
    const int64_t rounds = ceil_div(fewest * tiles * splits, room), most = rounds * room / (tiles * splits);
    for (int64_t height = ceil_div(eights, most); height < f.wide() / 8; ++height) {
        if (eights % height == 0 && eights / height > fewest) return eights / height;
    }
    return fewest;
}

// Whether all measured forms are there.
template <int count, int known_count>
constexpr bool all_known(const Form (&forms)[count], const Measured (&known)[known_count]) {
    for (const Measured& one : known) {
        if (place_of(forms, one.form) < 0) return false;
    }
    return true;
}

// size.m: of the row class. suits(form), step_of(form)
template <int count, int known_count, class Suits, class StepOf>
constexpr Config pick(const Form (&forms)[count], const Costs& costs, const Measured (&known)[known_count],
                      const Size& size, const Suits& suits, const StepOf& step_of) {
    if (!reaches(size)) return {};
    for (const Measured& one : known) {
        if (one.multiprocessors != size.multiprocessors || one.rows != size.m || one.n != size.n || one.k != size.k)
            continue;
        const int form = place_of(forms, one.form);
        if (suits(forms[form])) {
            return {form, one.splits, one.pieces ? one.pieces : int(fewest_pieces(forms[form], size))};
        }
    }
    Config best;
    double best_us = 0;
    const int64_t steps = ceil_div(size.k, kStep);
    for (int i = 0; i < count; ++i) {
        const Form& f = forms[i];
        if (!suits(f)) continue;
        for (int splits = 1; splits <= (f.splits() ? kMostSplits : 1) && splits <= steps; ++splits) {
            const int64_t fewest = fewest_pieces(f, size), even = even_pieces(f, splits, size);
            for (int64_t pieces = even;; pieces = fewest) {
                // Where the estimates are alike, even ones were faster.
                const double us =
                    estimated_us(f, step_of(f), costs, splits, pieces, size) * (pieces == even ? 1 : 1.01);
                if (best.form == kFallback || us < best_us) best = {i, splits, int(pieces)}, best_us = us;
                if (pieces == fewest) break;
            }
        }
    }
    return best;
}

// Whether a form can take a configuration that the user names: pieces 0 are the fewest.
constexpr bool takes(const Form& f, const Config& named, const Size& s) {
    const int64_t wide = f.swapped ? s.n : s.m, steps = ceil_div(s.k, kStep);
    if (!reaches(s) || named.splits > (f.splits() ? steps : 1)) return false;
    return named.pieces == 0 ||
           (f.swapped && named.pieces <= ceil_div(wide, 8) && height_of(wide, named.pieces) <= f.wide());
}

}  // namespace rocm_fp8::tiles
