// How a launch of mla_decode.cu is cut into CTAs: functions of the sizes alone, without CUDA.
#pragma once

#include "../mla_decode.h"

namespace rocm_fp8::mla_decode::cuda {

constexpr int kMostSplits = 256;

// A kernel's tile, and what it takes on an H200, in us: a CTA's start and end, and each 64 tokens between them.
struct Form {
    int rows, tokens;
    double start_us, tokens_us;
    int ctas;  // of a multiprocessor
};
constexpr int kTileTokens = 64;
constexpr Form kWideForm{64, kTileTokens, 3.0, 1.7, 1}, kFallbackForm{16, 32, 3.0, 1.7, 3};
// Caches of codes (fp8_attend.h, terms_attend.h).
constexpr Form kFp8Forms[]{
    {16, kTileTokens, 4.0, 1.2, 1}, {32, kTileTokens, 6.0, 1.4, 1}, {64, kTileTokens, 12.0, 1.8, 1}};
constexpr Form kMixedForms[]{
    {16, kTileTokens, 4.0, 1.9, 1}, {32, kTileTokens, 6.0, 2.6, 1}, {64, kTileTokens, 14.0, 3.1, 1}};

struct Sizes {
    int64_t batch, rows, most;
    int multiprocessors;
};

constexpr int64_t row_tiles(const Form& form, const Sizes& s) { return ceil_div(s.rows, form.rows); }

// What a launch takes, to rank forms and numbers of splits by: rounds of CTAs; then the merge.
constexpr double time_of(const Form& form, const Sizes& s, int splits) {
    constexpr double kMergeUs = 3.5, kBytesPerUs = 3e6;
    const int64_t ctas = s.batch * row_tiles(form, s) * splits;
    const int64_t tiles = ceil_div(ceil_div(s.most, form.tokens), splits);
    const double rounds = double(ceil_div(ctas, int64_t(s.multiprocessors) * form.ctas));
    const double partial = double(s.batch * s.rows) * splits * kLatent * 4;
    const double merge = splits == 1 ? 0.0 : kMergeUs + 2 * partial / kBytesPerUs;
    return rounds * (form.start_us + form.tokens_us * double(tiles) * form.tokens / kTileTokens) + merge;
}

constexpr int pick_splits(const Form& form, const Sizes& s) {
    const int64_t tiles = ceil_div(s.most, form.tokens);
    int best = 1;
    for (int splits = 2; splits <= kMostSplits && splits <= tiles; ++splits) {
        if (time_of(form, s, splits) < time_of(form, s, best)) best = splits;
    }
    return best;
}

struct Picked {
    Form form;
    int splits;
};
constexpr Picked pick(bool hopper, Format format, const Sizes& s) {
    if (!hopper) return {kFallbackForm, pick_splits(kFallbackForm, s)};
    if (format == Format::wide) return {kWideForm, pick_splits(kWideForm, s)};
    Picked best{};
    double least = 0;
    for (const Form& form : format == Format::fp8 ? kFp8Forms : kMixedForms) {
        const int splits = pick_splits(form, s);
        const double us = time_of(form, s, splits);
        if (best.splits == 0 || us < least) best = {form, splits}, least = us;
    }
    return best;
}

}  // namespace rocm_fp8::mla_decode::cuda
