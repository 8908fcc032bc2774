// How a launch of skinny_gemm on CUDA is cut into CTAs: a function of the sizes alone, with no CUDA in it, so that it
// can be tested anywhere. The measurements behind the rules: docs/journal/skinny_gemm-cuda.md, entries 9 to 27.
#pragma once

#include "../../common/types.h"

namespace rocm_fp8::skinny_gemm::cuda {

// The most columns of shapes with long steps, with any number of rows, of two blocks a multiprocessor, and of all.
constexpr int kNarrowColumns = 32, kWideColumns = 64, kWidestColumns = 112, kLargestColumns = 128;
// The most columns of a block that pick_config gives a part of K; and, with more than 16 rows, of a form that can have one
// without being for clusters.
constexpr int kClusterColumns = 80, kSplitColumns = 48;
constexpr int kWarps = 8, kLargeWarps = 16;  // that multiply: of two blocks a multiprocessor, or of one large block
constexpr int kLongStep = 512;               // k

// The compiled forms of the bulk kernel with so many columns.
struct BulkShape {
    int columns;                   // of the result a block, at most
    int slots8, slots16, slots32;  // of the ring, by rows of A, as many as find room. 0: there is no such form
    int warps = kWarps;
    bool clusters = false;  // a slot fewer, and room for sums of other blocks instead: see splits()

    ROCM_FP8_HD constexpr int slots(int64_t m) const { return m <= 8 ? slots8 : m <= 16 ? slots16 : slots32; }
    // A multiprocessor.
    ROCM_FP8_HD constexpr int blocks() const { return 2 * kWarps / warps; }
    // Groups of warps that share a block's columns. Where there are two of four warps, sums have another order.
    ROCM_FP8_HD constexpr int groups(int64_t m) const {
        return warps > kWarps || (m > 16 && columns > kWideColumns) ? 2 : 1;
    }
    // Whether K may be split over a cluster. Other wide blocks of more than 16 rows have a slot more instead of the shared memory
    // that it takes.
    ROCM_FP8_HD constexpr bool splits(int64_t m) const { return m <= 16 || columns <= kSplitColumns || clusters; }
    // Whether the form has warps that do not multiply: one that keeps the ring full, and one that paces its first round. Where
    // a thread has ten tiles of sums and more (16 by 8), it needs more than the 96 registers that two blocks of ten warps leave
    // it.
    ROCM_FP8_HD constexpr bool produces(int64_t m) const {
        const int rows = m <= 8 ? 8 : m <= 16 ? 16 : 32;
        return columns * rows < 10 * 16 * 8 * groups(m);
    }
    // Whether the form can pace the first round, with that warp or one of the others. (With 17 rows and more those have no
    // registers left for it: they lost up to 8 %.)
    ROCM_FP8_HD constexpr bool paces(int64_t m) const { return produces(m) || m <= 16; }
    // k of a slot of the ring: 10 to 32 KiB of weights.
    ROCM_FP8_HD constexpr int step(int64_t m) const {
        return columns <= kNarrowColumns ? kLongStep : 32 * warps / groups(m);
    }
};
constexpr BulkShape kBulkShapes[] = {{24, 0, 5, 3},
                                     {32, 5, 4, 3},
                                     {40, 0, 7, 5},
                                     {48, 7, 6, 5},
                                     {56, 0, 6, 5},
                                     {64, 6, 5, 4},
                                     {80, 5, 4, 8},
                                     {96, 4, 0, 7},
                                     {112, 3, 3, 6},
                                     {96, 0, 0, 7, kLargeWarps},
                                     {112, 0, 0, 6, kLargeWarps},
                                     {128, 0, 0, 5, kLargeWarps},
                                     {80, 0, 0, 7, kWarps, true}};
constexpr int kBulkShapeCount = sizeof(kBulkShapes) / sizeof(kBulkShapes[0]);
constexpr int kPlain = -1;
constexpr int kMaxClusterSplits = 8;

// The first of the bulk kernel's steps (of `step` k) that belongs to a part of K; that of part `splits` is one beyond the
// last.
ROCM_FP8_HD constexpr int first_bulk_step(int step, int64_t k, int part, int splits) {
    // All shapes cut K at the same places, where each of their steps begins.
    const int64_t units = (k + kLongStep - 1) / kLongStep;
    const int64_t at = units * part / splits * (kLongStep / step), end = (k + step - 1) / step;
    return int(at < end ? at : end);
}

// The columns of the result in pieces of one size, or of two that differ by one: a piece a block, or a cluster.
struct Pieces {
    int count, columns, larger;  // the first `larger` of them have a column more
    constexpr Pieces(int64_t n, int count) : count(count), columns(int(n / count)), larger(int(n % count)) {}
    // Of the largest.
    ROCM_FP8_HD constexpr int most_columns() const { return columns + (larger > 0); }
    // That of piece `count` is one beyond the last column.
    ROCM_FP8_HD constexpr int first_column(int piece) const {
        return piece * columns + (piece < larger ? piece : larger);
    }
};

struct Config {
    int shape;   // index into kBulkShapes, or kPlain
    int splits;  // of K: the blocks of a cluster
    int pieces;  // of the columns, each of no more than the shape's; 0 for kPlain
};

// As few pieces as blocks of that many columns allow.
constexpr int fewest_pieces(int columns, int64_t n) { return int((n + columns - 1) / columns); }

// `pieces`, where they are clearly more than the fewest, which then leave that many places of blocks empty.
constexpr int even_pieces(int columns, int64_t n, int64_t pieces) {
    const int fewest = fewest_pieces(columns, n);
    return 10 * int64_t(fewest) < 9 * pieces ? int(pieces) : fewest;
}

// The pieces go to the narrowest shape that holds them: what a block multiplies beyond its piece costs time and, where
// the chip's power is the limit, some of its clock as well.
constexpr Config in_pieces(int64_t m, int64_t n, int64_t pieces, int splits, int warps = kWarps) {
    const int columns = Pieces(n, int(pieces)).most_columns();
    for (int shape = 0; shape < kBulkShapeCount; ++shape) {
        const BulkShape& s = kBulkShapes[shape];
        const bool fits = s.warps == warps && s.columns >= columns && (splits == 1 || s.splits(m));
        if (fits && s.slots(m)) return {shape, splits, int(pieces)};
    }
    return {kPlain, 1, 0};
}

// How many clusters of so many blocks find room at once where each block is to be alone on a multiprocessor: what
// cudaOccupancyMaxActiveClusters says of an H200, and in proportion elsewhere. (The parts of a chip have 16 or 18 multiprocessors.)
constexpr int64_t clusters_alone(int blocks, int64_t multiprocessors) {
    constexpr int kOfAnH200[kMaxClusterSplits] = {132, 66, 39, 30, 22, 17, 15, 15};
    return kOfAnH200[blocks - 1] * multiprocessors / kOfAnH200[0];
}

// bulk: the chip has the bulk copy engine, rows of a and b start at multiples of 16 bytes, k is a multiple of 16.
//
// A row's bits depend on `splits`, not on the pieces, and on the shape only where four warps share K, not eight: so not on how
// many other rows there are, within 1 to 16 and within 17 to 32; and up to kWideColumns a place for a block within 1 to 32, but
// for clusters of four (16 to 18 columns a multiprocessor and a long K, below).
//
// What was seen on an H200 (132 multiprocessors, 50 sizes; benchmarks/cuda_pieces.py tries others): that all of them have
// the same to do is worth more than full tiles; and that every place for a block is taken, more than that this kernel alone is
// fast. In a series of one size a block a multiprocessor is often faster, by up to 10 %: the next kernel's finds room beside it.
// But of what follows in a decoder layer (benchmarks/gpu_layer.py), two blocks find room where one has just ended, and others
// idle: Llama 3.1 70B's on one of eight GPUs took 6 to 15 % longer, with 1 and 8 rows. By the columns that each has:
//
//     64 and more   two blocks at a time of up to 64 each, which hide each other's latencies; of up to 112 where that
//                   makes one round of two, the tile is well filled and k is short: what a round costs is seen then. With
//                   more than 16 rows of up to 112 wherever the tile is well filled: the rows, too, come less often. And
//                   with a long K one large block, if it is well filled: the rows come half as often again. It starts when
//                   the one before it has ended, which K has to be worth (from 16384 on; at 14336 it loses 3 %)
//     32 to 64      two blocks, with a long K and up to 48 columns by half of K each, else with half of the columns (full tiles of
//                   32 where k is below 5120). One where that costs nothing in a layer: with up to 8 rows if k is short, and with more
//                   up to 40 columns, beyond which eight warps are too slow
//     16 to 32      one block. From k = 6144 on two blocks by half of K each; below 22 columns one of twice the columns by half of
//                   K, in clusters of two; and with more than 16 rows up to 18 columns and a long k in clusters of four
//     4 to 16       one block, K split in two
//     the rest      tiles of 32, K split as often as clusters find room, and a part is worth its sums
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, int multiprocessors, bool bulk) {
    constexpr int64_t kEnoughForARing = 1024;    // k: below, filling the ring takes longer than using it
    constexpr int64_t kLongForOneBlock = 16384;  // k: below, one block after another costs more than it gains
    constexpr int64_t kWorthSums =
        6144;  // k: below, adding two parts, or two blocks instead of one, cost more than they gain
    constexpr int64_t kLongForParts = 8192;  // k: the same, of 32 to 48 columns a multiprocessor
    constexpr int64_t kWorthTwo = 22;        // columns a multiprocessor: fewer are not worth two blocks
    if (!bulk || k < kEnoughForARing) return {kPlain, 1, 0};
    const int64_t all = multiprocessors, half = all / 2;
    if (m > 16 && k >= kLongForOneBlock && n <= all * kLargestColumns) {
        const Config config = in_pieces(m, n, all, 1, kLargeWarps);
        if (8 * n >= 7 * all * kBulkShapes[config.shape].columns) return config;
    }
    if (n > 2 * all * kWideColumns && (m > 16 || (n <= 2 * all * kWidestColumns && k < 8192))) {
        const int64_t pieces = (fewest_pieces(kWidestColumns, n) + 2 * all - 1) / (2 * all) * (2 * all);
        const Config config = in_pieces(m, n, pieces, 1);
        const int columns = kBulkShapes[config.shape].columns;
        if (columns > kWideColumns && 20 * n >= 17 * pieces * columns) return config;
    }
    if (n > 2 * all * kNarrowColumns) {
        const int64_t rounds = (fewest_pieces(kWideColumns, n) + 2 * all - 1) / (2 * all);
        return in_pieces(m, n, even_pieces(kWideColumns, n, 2 * all * rounds), 1);
    }
    if (n > all * kNarrowColumns) {
        if (k >= kLongForParts && n <= all * kSplitColumns) return in_pieces(m, n, all, 2);
        if (m <= 8 ? k < kWorthSums : n <= all * 40) return in_pieces(m, n, all, 1);
        return in_pieces(m, n, k >= 5120 ? even_pieces(kNarrowColumns, n, 2 * all) : fewest_pieces(kNarrowColumns, n),
                         1);
    }
    if (n > half * kNarrowColumns) {
        const int64_t clusters = clusters_alone(4, all);
        if (m > 16 && k > 12288 && n <= clusters * kClusterColumns) return in_pieces(m, n, clusters, 4);
        if (k < kWorthSums) return in_pieces(m, n, all, 1);
        return in_pieces(m, n, n > all * kWorthTwo ? all : half, 2);
    } else if (n > half * 8 && k >= 2048) {
        return in_pieces(m, n, half, 2);
    }
    const auto shortest = [&](int parts) {
        return parts <= 4 && k >= 2048 ? 512 : 1024;
    };  // part of k that is worth its sums
    const int tiles = fewest_pieces(kNarrowColumns, n);
    int splits = 1;
    while (splits < kMaxClusterSplits && tiles <= clusters_alone(splits + 1, all) &&
           k / (splits + 1) >= shortest(splits + 1))
        ++splits;
    return in_pieces(m, n, tiles, splits);
}

// How a launch shares memory with the kernels beside it.
struct Overlap {
    int before_next;  // the next kernel may start when so many steps of a block are still to be asked for; or kAtOnce
    int window;  // of the ring's first round, so many slots are under way at a time, or, by forms that cannot pace it,
                 // are asked for before the wait for the kernel before; 0: all at once
    int ahead;   // slots beyond the ring that go to L2 before the wait for the kernel before
};
constexpr int kAtOnce = -1;  // before that wait

// What the next kernel gains by an early start is its launch and its first weights, which come while this one ends. What
// it costs is that this one's last rows and weights wait behind those in memory's queues: a multiprocessor that asks for
// 110 KiB at once has them 3 us long (n = k = 4096: 1.2 us from the wait to the first rows instead of 0.6). 27 KiB under
// way on each keep memory busy, so the first round is paced (where the weights may be fetched before the wait, and by the
// forms that can do so slot by slot):
//
//     places for blocks are free   three slots at a time, and the next kernel starts in the tail: early enough that it is
//                                  there when this one ends, and before blocks end (on an idle multiprocessor it would put
//                                  two of its own, and the kernel after that again: two steps less, and 4096 x 14336 took
//                                  13.5 or 21 us by what ran before). Where K is split in two by forms that cannot pace, three
//                                  slots before the wait
//     clusters of wide blocks      four slots of seven before the wait, and the next kernel some 2 us before the end: at once,
//                                  and two of its blocks find room on one multiprocessor (11.4 us, or 17)
//     none are free                two slots at a time, if k is not short; the next kernel finds places when this one ends. (In
//                                  a series of one size three are 1 to 2 % better, at 12288 x 4096 no pacing 7 %; in a decoder
//                                  layer two, by 0.4 to 3 % of all its kernels' time.) Forms that cannot pace leave one slot for
//                                  after the wait
//
// H200, 150 sizes; the limits are what was seen, no law. What is not paced: where it finds idle multiprocessors, in the
// tail; where each has one block and there are few rows, neither is in the other's way; with more rows, as soon as the ring
// is under way, or in the tail; with long k, at once (m = 16, 5120 x 13824: 18.2 us, in the tail 19 to 24, by chance).
constexpr Overlap pick_overlap(const Config& c, int64_t m, int64_t n, int64_t k, int multiprocessors, bool constant_b) {
    constexpr int kAhead = 2;
    constexpr int64_t kUnderWay = 48 << 10;
    constexpr int64_t kWorthPacing = 3072;  // k, where no place is free (2048: 1 % of a decoder layer lost)
    const BulkShape shape = kBulkShapes[c.shape];
    const int64_t blocks = int64_t(c.pieces) * c.splits, places = shape.blocks() * multiprocessors, part = k / c.splits;
    const int64_t bytes = n * k / multiprocessors;  // of weights
    const int step = shape.step(m), slots = shape.slots(m), count = int((part + step - 1) / step);
    const bool full = 20 * blocks >= 17 * places, paces = shape.paces(m);
    const bool all_fetch = constant_b && blocks <= places;  // ahead of the wait: every block, not the first round alone
    if (all_fetch && !paces && full) return {kAtOnce, slots - 1, kAhead};
    const int least = m > 16 && c.splits == 2 ? 8 : slots + 1;  // steps, of what is worth pacing
    const bool worth_pacing = all_fetch && paces && c.splits <= 2 && count >= least;
    if (worth_pacing && full && (m > 16 || k >= kWorthPacing)) return {kAtOnce, 2, kAhead};
    if (worth_pacing && !full) {
        const int64_t columns = Pieces(n, c.pieces).most_columns();
        const int64_t step_bytes = step * (columns < 28 ? 28 : columns);  // fewer columns take no less time
        const bool alone = blocks <= multiprocessors;
        // With more than 16 rows the ring is short: more of it through L2.
        if (m > 16) return {4, count < 7 ? 2 : 3, alone ? 6 : kAhead};
        // Two steps sooner, but for clusters that have more to multiply.
        const int sooner = c.splits == 1 || m <= 8 ? 2 : 0;
        const int before_end = int((kUnderWay + bytes / 12 + step_bytes / 2) / step_bytes) + sooner;
        return {before_end < count - 2 ? before_end : count - 2, 3, m > 8 && alone ? 4 : kAhead};
    }
    if (all_fetch && shape.clusters) return {7, 4, kAhead};
    if (all_fetch && !paces && c.splits == 2) return {5, 3, kAhead};
    if (2 * blocks > places) return {kAtOnce, 0, kAhead};
    const int quarter = (count + 3) / 4, tail = slots < quarter ? slots : quarter;
    if (blocks < multiprocessors) return {c.splits > 1 && m <= 16 ? kAtOnce : tail, 0, kAhead};
    if (m <= 8) return {kAtOnce, 0, kAhead};
    constexpr int64_t kShort = 4608;  // k
    if (part <= kShort) return {m > 16 ? (slots < 4 ? slots : 4) : bytes <= 90 << 10 ? kAtOnce : slots, 0, kAhead};
    return {bytes <= 100 << 10 || part >= (m <= 16 ? 8192 : 12288) ? kAtOnce : tail, 0, kAhead};
}

}  // namespace rocm_fp8::skinny_gemm::cuda
