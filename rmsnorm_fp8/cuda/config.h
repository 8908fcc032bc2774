// How a launch of rmsnorm_fp8 on CUDA is cut into CTAs: a function of the sizes alone, with no CUDA in it, so that it
// can be tested anywhere. The measurements behind the rules: docs/journal/rmsnorm_fp8-cuda.md, entries 4 to 8.
#pragma once

#include "../../common/types.h"

namespace rocm_fp8::rms_norm::cuda {

// Who computes a row. The fast kernels read it in vectors of 8 elements (16 bytes).
enum class RowOwner : int {
    warp,     // 8 rows a block
    block,    // up to 1024 threads
    cluster,  // 2, 4 or 8 blocks
    any       // 256 threads, element by element: odd widths, odd strides, more than 65536 elements
};

struct Config {
    RowOwner owner;
    int vectors;  // a thread holds
    int threads;  // a block
    int rows;     // a block
    int cluster;  // blocks a row
};

// The compiled forms of the fast kernel. To be able to fetch rows ahead costs nothing with four vectors a thread; with two it
// cost few rows 2 % (H200), so that there are both.
struct RowForm {
    RowOwner owner;
    int vectors;
    bool fetches_ahead;
};
constexpr RowForm kRowForms[] = {{RowOwner::warp, 1, false},    {RowOwner::warp, 2, false},
                                 {RowOwner::warp, 4, false},    {RowOwner::block, 2, false},
                                 {RowOwner::block, 2, true},    {RowOwner::block, 4, true},
                                 {RowOwner::cluster, 1, false}, {RowOwner::cluster, 4, false}};
constexpr int kRowFormCount = sizeof(kRowForms) / sizeof(kRowForms[0]);

constexpr int form_of(const Config& c, bool ahead) {
    const bool fetches = c.owner == RowOwner::block && (ahead || c.vectors == 4);
    const auto is = [&](const RowForm& f) {
        return f.owner == c.owner && f.vectors == c.vectors && f.fetches_ahead == fetches;
    };
    int form = 0;
    while (form + 1 < kRowFormCount && !is(kRowForms[form])) ++form;
    return form;
}

constexpr int kVector = 8;  // elements
constexpr int kMostThreads = 1024, kSmallBlock = 256;

// aligned: rows of all tensors start at multiples of 16 bytes (those of an FP8 result of 8), d is a multiple of 8.
// clusters: whether the chip has them.
constexpr Config pick_config(int64_t rows, int64_t d, int multiprocessors, bool clusters, bool aligned) {
    constexpr int kWarpLanes = 32, kMaxHeld = 4, kMaxCluster = 8;
    const int64_t vectors = d / kVector;
    if (!aligned || vectors > 2 * kMaxHeld * kMostThreads) {
        return {RowOwner::any, 0, kSmallBlock, 1, 1};
    }
    if (vectors <= 4 * kWarpLanes) {
        const int held = vectors <= kWarpLanes ? 1 : vectors <= 2 * kWarpLanes ? 2 : 4;
        return {RowOwner::warp, held, kSmallBlock, kSmallBlock / kWarpLanes, 1};
    }
    const auto threads = [&](int64_t held, int64_t blocks) {
        return int((vectors + held * blocks * kWarpLanes - 1) / (held * blocks * kWarpLanes)) * kWarpLanes;
    };
    // Few rows: a row is spread over several multiprocessors, but no block is smaller than it is worth. So long as two such blocks a
    // multiprocessor hold all rows: beside skinny_gemm's blocks, which leave few registers, a row's one large block finds no room
    // before they end (a decoder layer with 17 to 33 rows of 8192: 2.5 to 4.6 % shorter so, of 16384 1 %, of 4096 0.2 to 5.6 %; H200).
    for (int cluster = clusters ? kMaxCluster : 1; cluster > 1; cluster /= 2) {
        if (vectors >= cluster * kSmallBlock / 2 && threads(1, cluster) <= kMostThreads) {
            if (rows * cluster > 2 * multiprocessors) break;  // smaller clusters of them are no faster than a block
            return {RowOwner::cluster, 1, threads(1, cluster), 1, cluster};
        }
    }
    // As many threads a row as there may be; of long rows, where multiprocessors have more than one, fewer, with more loads each.
    for (int held : {2, 4}) {
        if (held < kMaxHeld && rows > multiprocessors && d > 8192) continue;
        if (threads(held, 1) <= kMostThreads) return {RowOwner::block, held, threads(held, 1), 1, 1};
    }
    // Too long for a block.
    if (clusters) return {RowOwner::cluster, kMaxHeld, threads(kMaxHeld, 2), 1, 2};
    return {RowOwner::any, 0, kSmallBlock, 1, 1};
}

// How many rows, the first ones, are fetched into L2 before the wait for the kernel before. What has room on the chip at
// once and a little more is read sooner so; of many rows, what the first blocks read while the kernel before ends: beyond
// that, fetching is in the way of what is needed now (H200: 512 rows of 16384 17.2 -> 16.0 us, 2048 60.0 -> 58.3).
constexpr int64_t rows_to_fetch(int64_t rows, int64_t row_bytes, int multiprocessors) {
    constexpr int64_t kAll = 64 << 10, kFirst = 32 << 10;  // bytes a multiprocessor
    if (rows * row_bytes <= kAll * multiprocessors) return rows;
    const int64_t each = kFirst / row_bytes;
    return (each > 1 ? each : 1) * multiprocessors;
}

// How many rows ahead of its own a block fetches one into L2 while it normalises: nearly as many as are under way at once,
// so that memory has something to do meanwhile, and what is fetched is read before other rows drive it out. (H200, 2048 rows
// of 16384: 132, 200, 230, 264, 300 rows ahead 57.8, 56.5, 56.3, 56.6, 57.5 us, without 58.3; before the exchange of the sums
// 57.4; before the row itself is there 65.2.) 0: none. With fewer rows than that twice it gained nothing, or lost 2 %.
constexpr int64_t rows_ahead(int64_t rows, const Config& c, int multiprocessors) {
    if (c.owner != RowOwner::block) return 0;
    constexpr int kRegisters = 64 << 10;  // of a multiprocessor; a thread takes 48, or with four vectors 64
    const int64_t at_once = int64_t(kRegisters / (c.vectors <= 2 ? 48 : 64) / c.threads) * multiprocessors;
    const int64_t ahead = at_once * 7 / 8;
    return rows >= 2 * ahead ? ahead : 0;
}

// Four vectors a thread, more than a row a multiprocessor: always (192 rows of 16384: 7.98 us, later 8.02). The kernel knows it without
// its arguments, for which it would have to wait.
ROCM_FP8_HD constexpr bool always_next_at_once(RowOwner owner, int vectors) {
    return owner == RowOwner::block && vectors == 4;
}

// Whether the next kernel may start as soon as this one runs, or only when the one before has ended. skinny_gemm of up to 32 rows
// uses an early start for its weights (a decoder layer's kernels in a graph, 8192 or 4096 wide: 2 to 7 % shorter so). But in a
// series of this kernel alone it lets three and four launches stand in line, which then get in each other's way: the later start is
// faster from 8 rows on, by a third at 64 to 256 rows of 4096 (H200). It is taken where no skinny_gemm follows, or hardly gains; not
// of rows in several rounds, whose next kernel finds no place before the end anyway (512 rows of 16384: 1 % slower).
constexpr bool next_at_once(int64_t rows, int64_t d, const Config& c, int multiprocessors) {
    constexpr int64_t kElements = 1 << 18;
    return always_next_at_once(c.owner, c.vectors) || rows * d <= kElements || rows > 2 * multiprocessors;
}

}  // namespace rocm_fp8::rms_norm::cuda
