// How a launch of rmsnorm_fp8 on CUDA is cut into CTAs: a function of the sizes alone, with no CUDA in it, so that it
// can be tested anywhere. The measurements behind the rules: docs/journal/rmsnorm_fp8-cuda.md, entries 4 to 8.
#pragma once

#include "../../common/types.h"

namespace rocm_fp8::rms_norm::cuda {

// Who computes a row. The fast kernels read it in vectors of 8 elements (16 bytes).
enum class RowOwner : int {
    warp,     // 8 rows a CTA
    cta,      // one CTA of up to 1024 threads
    cluster,  // 2, 4 or 8 CTAs
    fallback  // 256 threads, element by element: odd widths, odd strides, more than 65536 elements
};

struct Config {
    RowOwner owner;
    int vectors;  // per thread
    int threads;  // per CTA
    int rows;     // per CTA
    int cluster;  // CTAs per row
};

// The compiled forms of the fast kernel. To be able to fetch rows ahead costs nothing with four vectors a thread; with
// two it cost few rows 2 % (H200), so that there are both.
struct RowForm {
    RowOwner owner;
    int vectors;
    bool fetches_ahead;
};
constexpr RowForm kRowForms[] = {{RowOwner::warp, 1, false},    {RowOwner::warp, 2, false},
                                 {RowOwner::warp, 4, false},    {RowOwner::cta, 2, false},
                                 {RowOwner::cta, 2, true},      {RowOwner::cta, 4, true},
                                 {RowOwner::cluster, 1, false}, {RowOwner::cluster, 4, false}};
constexpr int kRowFormCount = sizeof(kRowForms) / sizeof(kRowForms[0]);

constexpr int form_of(const Config& c, bool ahead) {
    const bool fetches = c.owner == RowOwner::cta && (ahead || c.vectors == 4);
    const auto is = [&](const RowForm& f) {
        return f.owner == c.owner && f.vectors == c.vectors && f.fetches_ahead == fetches;
    };
    int form = 0;
    while (form + 1 < kRowFormCount && !is(kRowForms[form])) ++form;
    return form;
}

constexpr int kVector = 8;  // elements
constexpr int kMostThreads = 1024, kSmallCta = 256;

// aligned: rows of all tensors start at multiples of 16 bytes (rows of an FP8 result: 8), and d is a multiple of 8.
// clusters: whether the chip has thread-block clusters.
constexpr Config pick_config(int64_t rows, int64_t d, int multiprocessors, bool clusters, bool aligned) {
    constexpr int kWarpLanes = 32, kMaxHeld = 4, kMaxCluster = 8;
    const int64_t vectors = d / kVector;
    if (!aligned || vectors > 2 * kMaxHeld * kMostThreads) {
        return {RowOwner::fallback, 0, kSmallCta, 1, 1};
    }
    if (vectors <= 4 * kWarpLanes) {
        const int held = vectors <= kWarpLanes ? 1 : vectors <= 2 * kWarpLanes ? 2 : 4;
        return {RowOwner::warp, held, kSmallCta, kSmallCta / kWarpLanes, 1};
    }
    const auto threads = [&](int64_t held, int64_t ctas) {
        return int((vectors + held * ctas * kWarpLanes - 1) / (held * ctas * kWarpLanes)) * kWarpLanes;
    };
    // Few rows: a cluster spreads a row over several multiprocessors, in CTAs of a minimum size. This holds as long as
    // two such CTAs a multiprocessor are enough for all rows. The reason is skinny_gemm, whose CTAs leave few
    // registers: a row's one large CTA could not start before they end.
    for (int cluster = clusters ? kMaxCluster : 1; cluster > 1; cluster /= 2) {
        if (vectors >= cluster * kSmallCta / 2 && threads(1, cluster) <= kMostThreads) {
            if (rows * cluster > 2 * multiprocessors) break;  // smaller clusters are no faster than one CTA
            return {RowOwner::cluster, 1, threads(1, cluster), 1, cluster};
        }
    }
    // As many threads a row as a CTA may have. Long rows, with more than one row a multiprocessor, take fewer threads
    // with more loads each.
    for (int held : {2, 4}) {
        if (held < kMaxHeld && rows > multiprocessors && d > 8192) continue;
        if (threads(held, 1) <= kMostThreads) return {RowOwner::cta, held, threads(held, 1), 1, 1};
    }
    // Too long for one CTA.
    if (clusters) return {RowOwner::cluster, kMaxHeld, threads(kMaxHeld, 2), 1, 2};
    return {RowOwner::fallback, 0, kSmallCta, 1, 1};
}

// How many of the first rows are fetched into L2 before the PDL wait. If all rows fit on the chip at once, or nearly,
// all are fetched. Of more rows only those that the first CTAs read are fetched, while the previous kernel ends.
// Further fetches would delay the loads that are needed now.
constexpr int64_t rows_to_fetch(int64_t rows, int64_t row_bytes, int multiprocessors) {
    constexpr int64_t kAll = 64 << 10, kFirst = 32 << 10;  // bytes per multiprocessor
    if (rows * row_bytes <= kAll * multiprocessors) return rows;
    const int64_t each = kFirst / row_bytes;
    return (each > 1 ? each : 1) * multiprocessors;
}

// While a CTA normalises its row, it fetches one row into L2. The result says how many rows ahead of its own that row
// is; 0: no fetch. It is nearly the number of rows in flight at once. So memory stays busy, and a fetched row is read
// before other rows evict it. With fewer rows than twice this number the fetch gains nothing, or loses 2 %.
constexpr int64_t rows_ahead(int64_t rows, const Config& c, int multiprocessors) {
    if (c.owner != RowOwner::cta) return 0;
    constexpr int kRegisters = 64 << 10;  // per multiprocessor; a thread takes 48, or with four vectors 64
    const int64_t at_once = int64_t(kRegisters / (c.vectors <= 2 ? 48 : 64) / c.threads) * multiprocessors;
    const int64_t ahead = at_once * 7 / 8;
    return rows >= 2 * ahead ? ahead : 0;
}

// Four vectors a thread, with more than one row a multiprocessor: the next kernel always starts early. This is known at
// compile time, so that the kernel need not wait until its arguments are loaded.
ROCM_FP8_HD constexpr bool always_next_at_once(RowOwner owner, int vectors) {
    return owner == RowOwner::cta && vectors == 4;
}

// Whether the next kernel may start as soon as this one runs, or only after the previous one has ended. A skinny_gemm
// of up to 32 rows uses the early start to load its weights: a decoder layer is 2 to 7 % shorter. But in a series of
// this kernel alone the early start lets three or four launches queue, which delay each other. There the later start is
// faster from 8 rows on, by a third at 64 to 256 rows of 4096 (H200). So it is used where no skinny_gemm follows, or
// where that hardly gains. Rows in several rounds keep the early start: their next kernel finds no free CTA slot before
// the end anyway.
constexpr bool next_at_once(int64_t rows, int64_t d, const Config& c, int multiprocessors) {
    constexpr int64_t kElements = 1 << 18;
    return always_next_at_once(c.owner, c.vectors) || rows * d <= kElements || rows > 2 * multiprocessors;
}

}  // namespace rocm_fp8::rms_norm::cuda
