// How a launch of mla_decode.cu is cut into CTAs: functions of the sizes alone, without CUDA.
#pragma once

#include "../mla_decode.h"

namespace rocm_fp8::mla_decode::cuda {

constexpr int kTileRows = 64, kTileTokens = 64;  // of the Hopper kernel
constexpr int kFallbackRows = 16, kFallbackTokens = 32;
constexpr int kMostSplits = 256;

struct Sizes {
    int64_t batch, row_tiles, rows, most;
    int tokens;  // of a tile
    int slots;   // CTAs that run at once
};

// What a launch takes, in us on an H200, to rank numbers of splits by: rounds of CTAs, each with its start and its
// tiles; then the merge.
constexpr double time_of(const Sizes& s, int splits) {
    constexpr double kTileUs = 1.7, kStartUs = 3.0, kMergeUs = 3.5, kBytesPerUs = 3e6;
    const int64_t ctas = s.batch * s.row_tiles * splits, tiles = ceil_div(ceil_div(s.most, s.tokens), splits);
    const double rounds = double(ceil_div(ctas, s.slots));
    const double partial = double(s.batch * s.rows) * splits * kLatent * 4;
    const double merge = splits == 1 ? 0.0 : kMergeUs + 2 * partial / kBytesPerUs;
    return rounds * (kStartUs + kTileUs * double(tiles) * s.tokens / kTileTokens) + merge;
}

constexpr int pick_splits(const Sizes& s) {
    const int64_t tiles = ceil_div(s.most, s.tokens);
    int best = 1;
    for (int splits = 2; splits <= kMostSplits && splits <= tiles; ++splits) {
        if (time_of(s, splits) < time_of(s, best)) best = splits;
    }
    return best;
}

}  // namespace rocm_fp8::mla_decode::cuda
