// How a launch of skinny_gemm.cu is cut into blocks: a function of the sizes alone, with no CUDA in it, so that it can be
// tested anywhere.
#pragma once

#include "../common/launch.h"

namespace rocm_fp8 {

// One compiled form of the bulk kernel.
struct BulkShape {
    int columns;                    // of the result a block
    int slots8, slots16, slots32;   // of the ring, by rows of A: two blocks a multiprocessor fit
};
constexpr BulkShape kBulkShapes[] = {{64, 6, 5, 4}, {32, 5, 4, 3}};
constexpr int kBulkShapeCount = sizeof(kBulkShapes) / sizeof(kBulkShapes[0]);
constexpr int kWideTiles = 0, kNarrowTiles = 1;  // indices of them
constexpr int kPlain = -1;
constexpr int kMaxClusterSplits = 8;

// k of a slot of the ring: 16 KiB of weights.
ROCM_FP8_HD constexpr int bulk_step(int columns) { return (16 << 10) / columns; }

// The first step of the bulk kernel that belongs to a part of K; that of part `splits` is one beyond the last.
ROCM_FP8_HD constexpr int first_bulk_step(int columns, int64_t k, int part, int splits) {
    // All shapes cut K at the same places, where each of their steps begins.
    constexpr int kUnit = bulk_step(kBulkShapes[kNarrowTiles].columns);
    const int64_t units = (k + kUnit - 1) / kUnit, step = bulk_step(columns);
    const int64_t at = units * part / splits * (kUnit / step), end = (k + step - 1) / step;
    return int(at < end ? at : end);
}

struct SkinnyGemmCudaConfig {
    int shape;   // index into kBulkShapes, or kPlain
    int splits;  // of K: the blocks of a cluster
};

// bulk: the chip has the bulk copy engine, rows of a and b start at multiples of 16 bytes, k is a multiple of 16.
//
// A row's bits depend on `splits`, which is no function of m: they do not depend on how many other rows there are.
//
// What was seen on an H200 (132 multiprocessors): as many blocks as are resident at once, all of one size, read fastest;
// narrow tiles until there are more than 3.5 blocks a multiprocessor (and with more than 16 rows, which every block
// reads, more than 2); K is split until there are 1.7, except where one each is nearly reached without. Clusters of more
// blocks than free multiprocessors of a part of the chip wait for them.
constexpr SkinnyGemmCudaConfig pick_cuda_config(int64_t m, int64_t n, int64_t k, int multiprocessors, bool bulk) {
    constexpr int64_t kShortestSplit = 1024;   // of k: below, adding the parts takes longer
    constexpr int64_t kEnoughForARing = 1024;  // k: below, filling the ring takes longer than using it
    if (!bulk || k < kEnoughForARing) return {kPlain, 1};
    const int64_t tiles = (n + kBulkShapes[kNarrowTiles].columns - 1) / kBulkShapes[kNarrowTiles].columns;
    if (2 * tiles > (m <= 16 ? 7 : 4) * int64_t(multiprocessors)) return {kWideTiles, 1};
    if (10 * tiles >= 9 * int64_t(multiprocessors)) return {kNarrowTiles, 1};
    int splits = 1;
    while (splits < kMaxClusterSplits && 10 * tiles * (splits + 1) <= 17 * int64_t(multiprocessors) &&
           k / (splits + 1) >= kShortestSplit) {
        ++splits;
    }
    return {kNarrowTiles, splits};
}

}  // namespace rocm_fp8
