// The compiled forms of the Hopper kernel, without CUDA: the launcher, the configuration and the tests read them.
//
// The kernel multiplies "wide" rows (64 of them a warpgroup and tile) by "narrow" ones:
//
//     swapped = false   wide: rows of A, narrow: rows of B (columns of the result) that share scales of B
//     swapped = true    wide: rows of B, narrow: rows of A. For few rows of A, and for any scales of B
#pragma once

#include "../block_scaled_gemm.h"

namespace rocm_fp8::block_scaled_gemm::cuda {

struct Form {
    bool swapped;
    int warpgroups, tiles;  // that multiply; tiles of 64 wide rows of each
    int narrow;             // rows of the narrow operand
    int slots;              // CTAs that a multiprocessor holds at once

    // A tile of narrow rows may lie in two of their blocks of 128.
    constexpr bool two_blocks() const { return !swapped && kBlock % narrow != 0; }
    // Registers for the sums leave none for split-K's reduction in the large forms, and they have no use for it.
    constexpr bool splits() const { return tiles == 1 && narrow <= 128; }
    constexpr int wide() const { return 64 * warpgroups * tiles; }
    constexpr int stage_bytes() const { return (wide() + narrow) * kBlock; }
    // Of the result, before it is stored in whole lines.
    constexpr int staging_bytes() const {
        return swapped ? warpgroups * (narrow < 32 ? narrow : 32) * kSwappedRow : 4 * warpgroups * 16 * kStagedRow;
    }
    constexpr int factor_bytes() const { return (wide() + (swapped ? narrow : 2)) * 4; }
    constexpr int stages() const {
        // Of a multiprocessor 227 KiB, and 1 KiB a CTA for alignment and barriers.
        const int left = (227 * 1024) / slots - 2048 - staging_bytes(), fit = left / (stage_bytes() + factor_bytes());
        return fit < kMostStages ? fit : kMostStages;
    }

    static constexpr int kMostStages = 12;
    // Bytes of 64 staged columns, with padding against bank conflicts.
    static constexpr int kStagedRow = 64 * 4 + 32, kSwappedRow = 64 * 4 + 16;
};

constexpr Form kForms[] = {
    {false, 2, 2, 128, 1}, {false, 2, 2, 112, 1}, {false, 2, 1, 192, 1}, {false, 2, 1, 144, 1}, {false, 2, 1, 128, 1},
    {false, 2, 1, 96, 1},  {false, 2, 1, 64, 1},  {false, 1, 1, 128, 1}, {false, 1, 1, 64, 2},  {false, 1, 1, 32, 2},
    {true, 1, 1, 16, 2},   {true, 2, 1, 16, 1},   {true, 1, 1, 32, 2},   {true, 2, 1, 32, 1},   {true, 1, 1, 64, 2},
    {true, 2, 1, 64, 1},   {true, 2, 1, 128, 1},
};
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);
constexpr int kPlain = -1;
constexpr int kWgmmaHeight = 64;  // wide rows of an instruction
constexpr int kMostSplits = 8;    // CTAs of a cluster

}  // namespace rocm_fp8::block_scaled_gemm::cuda
