// How a launch of skinny_gemm on CUDA is cut into CTAs: a pure function of the sizes and the chip, without CUDA.
//
//     1  kRegimes   the first regime that covers the size and whose cut is legal and fills its form
//     2  the fallback
//
// A regime proposes one cut: the number of pieces of the columns and of parts of K. The narrowest legal form takes it.
// Unlike ROCm, no time is estimated: all legal cuts of a size read the same bytes. They differ in how they run beside
// other kernels of a decoder layer, which was measured (docs/journal/skinny_gemm-cuda.md, entries 9 to 27; H200).
//
// A row's bits depend on `splits`, and on whether two groups of warps share a CTA's columns. Within a row class (1 to
// 16, 17 to 32) neither depends on M.
#pragma once

#include "shapes.h"

namespace rocm_fp8::skinny_gemm::cuda {

struct ChipKey {
    int capability;  // 10 x major + minor
    int multiprocessors;
};

enum class PieceRule {
    half,      // a piece for two multiprocessors
    each,      // a piece a multiprocessor
    two,       // two pieces a multiprocessor and round, in the fewest rounds that the regime's width allows
    two_even,  // the same; full tiles of that width where those are nearly as many
    tiles,     // full tiles of that width
    clusters   // as many pieces as clusters of the regime's splits fit on the chip
};
constexpr int kFill = 0;  // splits: as many as clusters of them fit on the chip, see splits_that_fill()

struct Regime {
    const char* name;
    int rows_from, rows_to;        // of A
    int columns_from, columns_to;  // a multiprocessor: more than the first, at most the second
    int64_t k_from, k_to;          // at least the first, less than the second
    PieceRule rule;
    int width;       // columns of a tile, for `two`, `two_even` and `tiles`
    int splits;      // of K
    int warps;       // of a CTA
    int least_form;  // columns: narrower forms are not taken
    int least_fill;  // n, per mille of the columns of all pieces
};

constexpr int kAnyColumns = 1 << 30;
constexpr int64_t kAnyK = int64_t(1) << 62;
// Limits of K, as measured on an H200 (4.47 TB/s, 132 multiprocessors).
constexpr int64_t kEnoughForARing = 1024;  // below, filling the ring takes longer than using it
constexpr int64_t kLongForOneCta = 16384;  // from here one large CTA a multiprocessor gains (at 14336: 3 % slower)
constexpr int64_t kShortForRounds = 8192;  // below, the cost of another round of CTAs shows
constexpr int64_t kWorthSums = 6144;       // from here two parts, or two CTAs in place of one, gain more than they cost
constexpr int64_t kLongForParts = 8192;    // the same, of 32 to 48 columns a multiprocessor
constexpr int64_t kWorthHalfTiles = 5120;  // halves of the columns, in place of full tiles of 32
constexpr int64_t kLongForFour = 12289;    // clusters of four wide CTAs
constexpr int64_t kWorthTwoParts = 2048;   // two parts of K, of few columns

// The order matters: a size takes the first row that covers it and whose cut fits.
constexpr Regime kRegimes[] = {
    // name, rows, columns a multiprocessor, k, cut, width, splits, warps, least form, least fill
    {"one large CTA", 17, 32, 0, 128, kLongForOneCta, kAnyK, PieceRule::each, 0, 1, kLargeWarps, 0, 875},
    {"wide, many rows", 17, 32, 128, kAnyColumns, 0, kAnyK, PieceRule::two, kWidestColumns, 1, kWarps, 65, 850},
    {"wide, short K", 1, 16, 128, 224, 0, kShortForRounds, PieceRule::two, kWidestColumns, 1, kWarps, 65, 850},
    {"two CTAs a round", 1, 32, 64, kAnyColumns, 0, kAnyK, PieceRule::two_even, kWideColumns, 1, kWarps, 0, 0},
    {"two halves of K", 1, 32, 32, kSplitColumns, kLongForParts, kAnyK, PieceRule::each, 0, 2, kWarps, 0, 0},
    {"one CTA, few rows", 1, 8, 32, 64, 0, kWorthSums, PieceRule::each, 0, 1, kWarps, 0, 0},
    {"one CTA, to 40", 9, 32, 32, 40, 0, kAnyK, PieceRule::each, 0, 1, kWarps, 0, 0},
    {"half the columns", 1, 32, 32, 64, kWorthHalfTiles, kAnyK, PieceRule::two_even, kNarrowColumns, 1, kWarps, 0, 0},
    {"full tiles", 1, 32, 32, 64, 0, kWorthHalfTiles, PieceRule::tiles, kNarrowColumns, 1, kWarps, 0, 0},
    {"clusters of four", 17, 32, 16, 32, kLongForFour, kAnyK, PieceRule::clusters, 0, 4, kWarps, 0, 0},
    {"one CTA", 1, 32, 16, 32, 0, kWorthSums, PieceRule::each, 0, 1, kWarps, 0, 0},
    {"two halves, narrow", 1, 32, 22, 32, kWorthSums, kAnyK, PieceRule::each, 0, 2, kWarps, 0, 0},
    {"pairs of CTAs", 1, 32, 16, 22, kWorthSums, kAnyK, PieceRule::half, 0, 2, kWarps, 0, 0},
    {"pairs, few columns", 1, 32, 4, 16, kWorthTwoParts, kAnyK, PieceRule::half, 0, 2, kWarps, 0, 0},
    {"the rest", 1, 32, 0, 16, 0, kAnyK, PieceRule::tiles, kNarrowColumns, kFill, kWarps, 0, 0},
};

// The fewest pieces of at most that many columns.
constexpr int fewest_pieces(int columns, int64_t n) { return int((n + columns - 1) / columns); }

// How many clusters of that many CTAs run at once if each CTA has a multiprocessor for itself. For an H200, whose GPCs
// have 16 or 18 multiprocessors: cudaOccupancyMaxActiveClusters. For other chips: in proportion.
constexpr int64_t clusters_alone(int ctas, int64_t multiprocessors) {
    constexpr int kOfAnH200[kMaxClusterSplits] = {132, 66, 39, 30, 22, 17, 15, 15};
    return kOfAnH200[ctas - 1] * multiprocessors / kOfAnH200[0];
}

// The narrowest form that is legal for these pieces. Columns beyond the piece cost time, and clock rate where power is
// the limit.
constexpr Config in_pieces(int64_t m, int64_t n, int64_t pieces, int splits, int warps = kWarps) {
    const int columns = Pieces(n, int(pieces)).most_columns();
    for (int shape = 0; shape < kBulkShapeCount; ++shape) {
        const BulkShape& s = kBulkShapes[shape];
        const bool fits = s.warps == warps && s.columns >= columns && (splits == 1 || s.splits(m));
        if (fits && s.stages(m)) return {shape, splits, int(pieces)};
    }
    return {kFallback, 1, 0};
}

constexpr bool covers(const Regime& r, int64_t m, int64_t n, int64_t k, int64_t multiprocessors) {
    return m >= r.rows_from && m <= r.rows_to && n > r.columns_from * multiprocessors &&
           n <= r.columns_to * multiprocessors && k >= r.k_from && k < r.k_to;
}

constexpr int64_t pieces_of(const Regime& r, int64_t n, int64_t multiprocessors) {
    const int64_t two = 2 * multiprocessors;
    switch (r.rule) {
        case PieceRule::half: return multiprocessors / 2;
        case PieceRule::each: return multiprocessors;
        case PieceRule::clusters: return clusters_alone(r.splits, multiprocessors);
        case PieceRule::tiles: return fewest_pieces(r.width, n);
        case PieceRule::two:
        case PieceRule::two_even: break;
    }
    const int64_t fewest = fewest_pieces(r.width, n), pieces = (fewest + two - 1) / two * two;
    // Full tiles are taken where they leave at most a tenth of the CTA slots empty.
    return r.rule == PieceRule::two || 10 * fewest < 9 * pieces ? pieces : fewest;
}

// The most parts of K for which all clusters run at once and no part is too short.
constexpr int splits_that_fill(int64_t pieces, int64_t k, int64_t multiprocessors) {
    constexpr int64_t kShortPart = 512, kLongPart = 1024;  // k: of up to four parts, of more or of a short K
    const auto worth = [&](int parts) {
        return k / parts >= (parts <= 4 && k >= kWorthTwoParts ? kShortPart : kLongPart);
    };
    int splits = 1;
    while (splits < kMaxClusterSplits && pieces <= clusters_alone(splits + 1, multiprocessors) && worth(splits + 1)) {
        ++splits;
    }
    return splits;
}

// TMA's coordinates are signed numbers of 32 bits; a stage is at most kLongStep long.
constexpr int64_t kMostOfTma = (int64_t(1) << 31) - 2 * kLongStep;

// bulk: the chip has TMA, rows of a and b start at multiples of 16 bytes, k is a multiple of 16.
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, ChipKey chip, bool bulk) {
    if (!bulk || k < kEnoughForARing || k > kMostOfTma || n > kMostOfTma) return {kFallback, 1, 0};
    for (const Regime& r : kRegimes) {
        if (!covers(r, m, n, k, chip.multiprocessors)) continue;
        const int64_t pieces = pieces_of(r, n, chip.multiprocessors);
        const int splits = r.splits == kFill ? splits_that_fill(pieces, k, chip.multiprocessors) : r.splits;
        const Config config = in_pieces(m, n, pieces, splits, r.warps);
        if (config.shape == kFallback) continue;
        const int columns = kBulkShapes[config.shape].columns;
        if (columns >= r.least_form && 1000 * n >= r.least_fill * pieces * columns) return config;
    }
    return {kFallback, 1, 0};
}
static_assert(pick_config(8, 4096, 4096, {90, 132}, false).shape == kFallback &&
              pick_config(8, 4096, 1008, {90, 132}, true).shape == kFallback);

}  // namespace rocm_fp8::skinny_gemm::cuda
