// How a launch of rmsnorm_fp8 on CUDA is cut into CTAs: a function of the sizes alone, with no CUDA in it, so that it
// can be tested anywhere. The measurements behind the rules: docs/journal/rmsnorm_fp8-cuda.md, entries 4 to 8.
#pragma once

#include <initializer_list>

#include "../../common/rows/gpu/forms.h"
#include "../../common/types.h"

namespace rocm_fp8::rms_norm::cuda {

// Who computes a row. The fast kernels read it in vectors of 8 elements (16 bytes): a warp, 8 rows a CTA; a CTA of up to
// 1024 threads; a cluster of 2, 4 or 8 CTAs. The fallback has 256 threads a row, element by element: odd widths, odd
// strides, more than 65536 elements.
struct Config : RowForm {
    int threads;  // per CTA
    int rows;     // per CTA
    int cluster;  // CTAs per row

    constexpr bool is_fallback() const { return held == 0; }
};
constexpr RowForm kFallback{Holder::workgroup, 0};

// The compiled forms of the fast kernel. To be able to fetch rows ahead costs nothing with four vectors a thread; with
// two it cost few rows 2 % (H200), so that there are both.
struct Form : RowForm {
    bool fetches_ahead;
};
constexpr Form kForms[] = {{{Holder::wave, 1}, false},     {{Holder::wave, 2}, false},
                           {{Holder::wave, 4}, false},     {{Holder::workgroup, 2}, false},
                           {{Holder::workgroup, 2}, true}, {{Holder::workgroup, 4}, true},
                           {{Holder::cluster, 1}, false},  {{Holder::cluster, 4}, false}};
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);

constexpr int form_of(const RowForm& wanted, bool ahead) {
    const bool fetches = wanted.holder == Holder::workgroup && (ahead || wanted.held == 4);
    int form = 0;
    while (form + 1 < kFormCount && !(kForms[form] == wanted && kForms[form].fetches_ahead == fetches)) ++form;
    return form;
}

// aligned: rows of all tensors start at multiples of 16 bytes (rows of an FP8 result: 8), and d is a multiple of 8.
// clusters: whether the chip has thread-block clusters.
constexpr Config pick_config(int64_t rows, int64_t d, int multiprocessors, bool clusters, bool aligned) {
    constexpr int kWarpLanes = 32, kMaxHeld = 4, kMaxCluster = 8;
    const int64_t vectors = d / kEight;
    if (!aligned || vectors > 2 * kMaxHeld * kMostRowThreads) {
        return {kFallback, kRowsThreads, 1, 1};
    }
    if (vectors <= 4 * kWarpLanes) {
        const int held = vectors <= kWarpLanes ? 1 : vectors <= 2 * kWarpLanes ? 2 : 4;
        return {{Holder::wave, held}, kRowsThreads, kRowsThreads / kWarpLanes, 1};
    }
    const auto threads = [&](int64_t held, int64_t ctas) {
        return int((vectors + held * ctas * kWarpLanes - 1) / (held * ctas * kWarpLanes)) * kWarpLanes;
    };
    // Few rows: a cluster spreads a row over several multiprocessors, in CTAs of a minimum size. This holds as long as
    // two such CTAs a multiprocessor are enough for all rows. The reason is skinny_gemm, whose CTAs leave few
    // registers: a row's one large CTA could not start before they end.
    for (int cluster = clusters ? kMaxCluster : 1; cluster > 1; cluster /= 2) {
        if (vectors >= cluster * kRowsThreads / 2 && threads(1, cluster) <= kMostRowThreads) {
            if (rows * cluster > 2 * multiprocessors) break;  // smaller clusters are no faster than one CTA
            return {{Holder::cluster, 1}, threads(1, cluster), 1, cluster};
        }
    }
    // As many threads a row as a CTA may have. Long rows, with more than one row a multiprocessor, take fewer threads
    // with more loads each.
    for (int held : {2, 4}) {
        if (held < kMaxHeld && rows > multiprocessors && d > 8192) continue;
        if (threads(held, 1) <= kMostRowThreads) return {{Holder::workgroup, held}, threads(held, 1), 1, 1};
    }
    // Too long for one CTA.
    if (clusters) return {{Holder::cluster, kMaxHeld}, threads(kMaxHeld, 2), 1, 2};
    return {kFallback, kRowsThreads, 1, 1};
}
static_assert(!pick_config(1, 65536, 132, true, true).is_fallback() &&
              pick_config(1, 65544, 132, true, true).is_fallback() &&
              pick_config(1, 16384, 132, true, false).is_fallback());

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
    if (c.holder != Holder::workgroup) return 0;
    constexpr int kRegisters = 64 << 10;  // per multiprocessor; a thread takes 48, or with four vectors 64
    const int64_t at_once = int64_t(kRegisters / (c.held <= 2 ? 48 : 64) / c.threads) * multiprocessors;
    const int64_t ahead = at_once * 7 / 8;
    return rows >= 2 * ahead ? ahead : 0;
}

// Four vectors a thread, with more than one row a multiprocessor: the next kernel always starts early. This is known at
// compile time, so that the kernel need not wait until its arguments are loaded.
ROCM_FP8_HD constexpr bool always_next_at_once(const RowForm& f) {
    return f.holder == Holder::workgroup && f.held == 4;
}

// Whether the next kernel may start as soon as this one runs, or only after the previous one has ended. A skinny_gemm
// of up to 32 rows uses the early start to load its weights: a decoder layer is 2 to 7 % shorter. But in a series of
// this kernel alone the early start lets three or four launches queue, which delay each other. There the later start is
// faster from 8 rows on, by a third at 64 to 256 rows of 4096 (H200). So it is used where no skinny_gemm follows, or
// where that hardly gains. Rows in several rounds keep the early start: their next kernel finds no free CTA slot before
// the end anyway.
constexpr bool next_at_once(int64_t rows, int64_t d, const Config& c, int multiprocessors) {
    constexpr int64_t kElements = 1 << 18;
    return always_next_at_once(c) || rows * d <= kElements || rows > 2 * multiprocessors;
}

}  // namespace rocm_fp8::rms_norm::cuda
