// The compiled forms of Hopper's GEMM kernels, without CUDA: launchers, kernels, configurations and tests read them.
//
// A kernel multiplies "wide" rows (64 of them a warpgroup and tile) by "narrow" ones:
//
//     swapped = false   wide: rows of A, narrow: rows of B (columns of the result)
//     swapped = true    wide: rows of B, narrow: rows of A. For few rows of A
#pragma once

#include "../../types.h"
#include "../../form_name.h"

namespace rocm_fp8::tiles {

constexpr int kStep = 128;          // k of a stage: bytes of a row, TMA's swizzle
constexpr int kWgmmaHeight = 64;    // wide rows of an instruction
constexpr int kMostSplits = 8;      // parts of K: CTAs of a cluster
constexpr int kRowsOfColumns = 32;  // of the result that swapped forms store at once

struct Form {
    FormName name;
    bool swapped;
    int warpgroups, tiles;  // that multiply; tiles of 64 wide rows of each
    int narrow;             // rows of the narrow operand
    int slots;              // CTAs that a multiprocessor holds at once
    bool whole_k = false;   // K is never split
    int passed = 256;       // bytes of a row of the result that a warp stages at once, where rows are wide
    bool in_ring = false;   // split-K's sums take the ring's place, so that no stage is given up for them

    // Registers for the sums leave none for split-K's reduction in the large forms, and they have no use for it.
    constexpr bool splits() const { return !whole_k && tiles == 1 && narrow <= 128; }
    constexpr int wide() const { return kWgmmaHeight * warpgroups * tiles; }
    constexpr int stage_bytes() const { return (wide() + narrow) * kStep; }
    // Of the result, before it is stored in whole lines.
    constexpr int staging_bytes() const {
        const int rows = narrow < kRowsOfColumns ? narrow : kRowsOfColumns;
        return swapped ? warpgroups * rows * kSwappedRow : 4 * warpgroups * 16 * staged_row();
    }
    // Whether the sums that split-K sends to a CTA have a place of their own. In the ring's place they wait until all
    // CTAs of the cluster have left their rings.
    constexpr bool sums_apart() const { return splits() && !in_ring && swapped && narrow <= 32; }
    constexpr int sums_bytes() const { return sums_apart() ? most_sums(kMostSplits) : 0; }
    // more: bytes of a stage beside the operands; beside: bytes beside the ring.
    constexpr int stages(int more, int beside = 0) const {
        // Of a multiprocessor 227 KiB, and 1 KiB a CTA for alignment and barriers.
        const int left = (227 * 1024) / slots - 2048 - staging_bytes() - sums_bytes() - beside;
        const int fit = left / (stage_bytes() + more);
        return fit < kMostStages ? fit : kMostStages;
    }

    // Bytes that one of up to `splits` CTAs is sent, with room for its own: four sums a thread for each group of 8 narrow
    // rows that it finishes.
    constexpr int most_sums(int splits) const {
        if (splits < 2) return 0;
        const int fewer = most_sums(splits - 1);
        const int own = splits * int(ceil_div(tiles * narrow / 8, splits)) * warpgroups * 128 * 16;
        return own > fewer ? own : fewer;
    }

    static constexpr int kMostStages = 12;
    // Bytes of what is staged of a row, of 64 columns in swapped forms, with padding against bank conflicts.
    ROCM_FP8_HD constexpr int staged_row() const { return passed + 32; }
    static constexpr int kSwappedRow = 64 * 4 + 16;
};

// stages(form): of its ring. With fewer than three nothing is in flight while two are multiplied.
template <int count, class Stages>
constexpr bool stages_are_enough(const Form (&forms)[count], const Stages& stages) {
    for (const Form& f : forms) {
        if (stages(f) < 3 || stages(f) > Form::kMostStages || f.slots < 1 || f.slots > 2) return false;
    }
    return true;
}

}  // namespace rocm_fp8::tiles
