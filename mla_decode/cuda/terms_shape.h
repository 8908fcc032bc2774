// What a CTA of the kernel for FP8 caches and many rows has in shared memory.
//
// q and p are multiplied as sums of two FP8 numbers, their terms: the nearest one, and the nearest to what is left.
// Queries of bfloat16 have 8 bits, two e4m3 numbers as many: nothing is lost. p is an e4m3 and an e5m2 number, which
// reaches further down; its error is bfloat16's, or at most 2^-20 of the largest p.
#pragma once

#include "fp8_shape.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

// Panels of 128 codes: the queries' larger terms, then the smaller ones; the last has both of the 64 rotated numbers,
// the smaller ones behind. p: a row's 64 larger terms, then the smaller ones.
constexpr int kLargerPanels = kLatent / kCodePanelColumns, kQueryPanels = 2 * kLargerPanels + 1;
constexpr int kSmallerAt = kPanelRow / 2;
constexpr int kTermsStages = 3;

struct TermsMemory {
    alignas(1024) uint8_t q[kQueryPanels][kPanelBytes];
    CodeTile codes[kTermsStages];
    uint8_t p[kBuffers][kPanelBytes];               // of each warpgroup's tile
    float reference[kBuffers][kTileRows];           // of its exponentials
    float factors[kBuffers][kTileRows];             // what sums of the tiles before are multiplied by
    uint32_t changed[kBuffers][kWarpsOfWarpgroup];  // whether one of a warp's factors is not 1
    float totals[2][kBuffers][kTileRows];           // by turns, as shape.h has them
    float of_scores[kTileRows];                     // what scores are multiplied by, in units of log2
    Barrier full[kTermsStages], empty[kTermsStages];
};
static_assert(sizeof(TermsMemory) <= 232448);

// Registers of a thread that loads, and of one that multiplies.
constexpr int kTermsFewRegisters = 24, kTermsManyRegisters = 240;
static_assert(kFeeders * kTermsFewRegisters + kMultiplyingThreads * kTermsManyRegisters <= kTilesThreads * 168);

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
