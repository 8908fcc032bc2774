// Which form of a Hopper GEMM takes a size, in how many parts of K and pieces of the wide rows: without CUDA.
//
// Every legal configuration is estimated, and the fastest is taken, unless one was measured for the size. What the estimate
// reckons with is in costs.h.
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
    bool operator==(const Size&) const = default;
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

// What the estimate reckons with: costs.h has the values.
struct Costs {
    double read_rate, write_rate;  // bytes a microsecond, HBM
    double l2_rate, sm_rate;       // bytes a microsecond from L2: all multiprocessors together, one of them
    double ragged;                 // of a row's bytes: what more is read where K is no multiple of a line's 128
    double clock;                  // cycles a microsecond
    double least_cycles;           // of a step's multiplications of 64 wide rows, however narrow
    double latency_us;             // of a copy by TMA
    double store_us, tile_us;      // of an element of the tile; of a tile's begin and end
    double between;                // of these, what is left between two tiles of a CTA, whose copies go on
    double start_us;               // of a launch
    double cta_us;                 // of each CTA of the launch
    double split_us, sum_us;       // of split-K in each round, whose CTAs have one tile; of an element of that tile
    double overlap;                // of the shorter of arithmetic and HBM: what is not hidden
    double add_cycles;             // of a step and warpgroup for each narrow row beside its multiplications
    double swapped_cost;           // times add_cycles where each column has a scale of its own
};
constexpr double kProductsACycle = 4096;  // multiplications and additions of a multiprocessor
// Clusters of 1, 2 and so on CTAs that kH200 multiprocessors hold at once, one CTA each: by the steps in measured times
// (H200, 2026-11-30). A cluster's CTAs are in one GPC, so that some multiprocessors are left over.
constexpr int kClusters[kMostSplits] = {kH200, 66, 38, 30, 24, 18, 15, 15};

// Whether TMA's coordinates, signed numbers of 32 bits, reach all rows and the end of the last step.
constexpr int64_t kMostOfTma = (int64_t(1) << 31) - 2 * kStep;
constexpr bool reaches(const Size& s) { return s.m <= kMostOfTma && s.n <= kMostOfTma && s.k <= kMostOfTma; }

// CTAs at once.
constexpr int64_t room_of(const Form& f, int splits, int multiprocessors) {
    const int64_t clusters = int64_t(kClusters[splits - 1]) * f.slots * multiprocessors / kH200;
    return (clusters ? clusters : 1) * splits;
}
constexpr int64_t height_of(int64_t wide, int64_t pieces) { return ceil_div(ceil_div(wide, 8), pieces) * 8; }

// stages: that the form's ring has.
constexpr double estimated_us(const Form& f, int stages, const Costs& c, int splits, int64_t pieces, const Size& s) {
    const auto most = [](double a, double b) { return a > b ? a : b; };
    const int64_t narrow = f.swapped ? s.m : s.n, height = height_of(f.swapped ? s.n : s.m, pieces);
    const int64_t ctas = pieces * ceil_div(narrow, f.narrow) * splits, room = room_of(f, splits, s.multiprocessors);
    const double ragged = s.k % kStep != 0 ? 1 + c.ragged : 1, bytes = double(height + f.narrow) * kStep * ragged;
    const double own = f.tiles * most(double(kWgmmaHeight) * f.narrow * kStep / kProductsACycle, c.least_cycles);
    const double beside = c.add_cycles * f.narrow * (f.swapped ? c.swapped_cost : 1);
    // Of a step: what the tensor cores take for all CTAs of a multiprocessor, a warpgroup's chain, L2's bytes, those of a
    // multiprocessor, or a copy's latency.
    const auto step_us = [&](int64_t together) {
        const double sharing = double(ceil_div(together, s.multiprocessors));
        const double arithmetic = most(own * f.warpgroups * sharing, own + f.tiles * beside) / c.clock;
        const double copies = most(bytes * double(together) / c.l2_rate, bytes * sharing / c.sm_rate);
        return most(most(arithmetic, copies), c.latency_us / stages);
    };
    const double steps = double(ceil_div(ceil_div(s.k, kStep), splits));
    const int64_t full = ceil_div(ctas, room) - 1, first = ctas < room ? ctas : room;  // rounds but for the last
    const double tile_us = double(f.wide()) * f.narrow * c.store_us + c.tile_us;
    const double us =
        steps * (double(full) * step_us(room) + step_us(ctas - full * room)) + (1 + double(full) * c.between) * tile_us;
    const double hbm_us =
        (double(s.m) + double(s.n)) * s.k * ragged / c.read_rate + double(s.m) * s.n * 2 / c.write_rate;
    const double sums_us = splits > 1 ? double(full + 1) * (c.split_us + double(f.wide()) * f.narrow * c.sum_us) : 0;
    return most(us, hbm_us) + c.overlap * (us < hbm_us ? us : hbm_us) + c.start_us + c.cta_us * double(first) + sums_us;
}

// Pieces of a form's whole height; or, of few rows' columns, as many as fill the CTA slots best, so that all
// multiprocessors read the same share of the weights. Those have one height, where one divides the columns: pieces of 48
// and 56 columns of 4096 were slower than 64 pieces of 64, which leave a quarter of the slots free (H200).
constexpr int64_t fewest_pieces(const Form& f, const Size& s) { return ceil_div(f.swapped ? s.n : s.m, f.wide()); }
constexpr int64_t filling_pieces(const Form& f, int splits, const Size& s) {
    const int64_t fewest = fewest_pieces(f, s);
    if (!f.swapped) return fewest;
    const int64_t eights = ceil_div(s.n, 8), tiles = ceil_div(s.m, f.narrow),
                  room = room_of(f, splits, s.multiprocessors);
    const int64_t rounds = ceil_div(fewest * tiles * splits, room), most = rounds * room / (tiles * splits);
    const int64_t least = ceil_div(eights, most);
    for (int64_t height = least; height < f.wide() / 8; ++height) {
        if (eights % height == 0) return eights / height;
    }
    return eights % (f.wide() / 8) == 0 ? fewest : ceil_div(eights, least);
}

// Whether all measured forms are there.
template <int count, int known_count>
constexpr bool all_known(const Form (&forms)[count], const Measured (&known)[known_count]) {
    for (const Measured& one : known) {
        if (place_of(forms, one.form) < 0) return false;
    }
    return true;
}

// size.m: of the row class. suits(form), stages_of(form)
template <int count, int known_count, class Suits, class StagesOf>
constexpr Config pick(const Form (&forms)[count], const Costs& costs, const Measured (&known)[known_count],
                      const Size& size, const Suits& suits, const StagesOf& stages_of) {
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
            const int64_t fewest = fewest_pieces(f, size), filling = filling_pieces(f, splits, size);
            for (int64_t pieces = filling;; pieces = fewest) {
                // Where the estimates are alike, those that fill the slots were faster.
                const double us =
                    estimated_us(f, stages_of(f), costs, splits, pieces, size) * (pieces == filling ? 1 : 1.01);
                if (best.form == kFallback || us < best_us) best = {i, splits, int(pieces)}, best_us = us;
                if (pieces == fewest) break;
            }
        }
    }
    return best;
}

// A thread's last choices, of one operator: Make is its own type. To estimate all configurations takes a host some 5 us.
// variant: what the choice depends on besides.
template <class Make>
Config remembered(const Size& size, int variant, const Make& make) {
    struct Choice {
        Size size{};
        int variant = 0;
        Config config;
    };
    thread_local Choice choices[256];
    constexpr uint64_t kSpread = 0x9E3779B97F4A7C15;
    const uint64_t hash = ((uint64_t(size.m) * kSpread ^ uint64_t(size.n)) * kSpread ^ uint64_t(size.k)) * kSpread;
    Choice& choice = choices[hash >> 56];
    if (choice.size != size || choice.variant != variant) choice = {size, variant, make()};
    return choice.config;
}

// Whether a form can take a configuration that the user names: pieces 0 are the fewest.
constexpr bool takes(const Form& f, const Config& named, const Size& s) {
    const int64_t wide = f.swapped ? s.n : s.m, steps = ceil_div(s.k, kStep);
    if (!reaches(s) || named.splits > (f.splits() ? steps : 1)) return false;
    return named.pieces == 0 ||
           (f.swapped && named.pieces <= ceil_div(wide, 8) && height_of(wide, named.pieces) <= f.wide());
}

}  // namespace rocm_fp8::tiles
