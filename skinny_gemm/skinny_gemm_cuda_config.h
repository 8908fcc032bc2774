// How a launch of skinny_gemm.cu is cut into blocks: a function of the sizes alone, with no CUDA in it, so that it can be
// tested anywhere.
#pragma once

#include <cstdint>

namespace rocm_fp8 {

// One compiled form of the bulk kernel.
struct BulkShape {
    int columns;                    // of the result a block
    int slots8, slots16, slots32;   // of the ring, by rows of A: two blocks a multiprocessor fit
};
constexpr BulkShape kBulkShapes[] = {{64, 5, 5, 4}, {32, 5, 4, 3}};
constexpr int kBulkShapeCount = sizeof(kBulkShapes) / sizeof(kBulkShapes[0]);
constexpr int kWideTiles = 0, kNarrowTiles = 1;  // indices of them
constexpr int kPlain = -1;
constexpr int kMaxClusterSplits = 8;

struct SkinnyGemmCudaConfig {
    int shape;   // index into kBulkShapes, or kPlain
    int splits;  // of K: the blocks of a cluster
};

// bulk: the chip has the bulk copy engine, rows of a and b start at multiples of 16 bytes, k is a multiple of 16.
//
// Not a function of m: a row's bits do not depend on how many others there are.
//
// What was seen on an H200 (132 multiprocessors): as many blocks as are resident at once, all of one size, read fastest;
// narrow tiles until there are more than 3.5 blocks a multiprocessor; K is split until there are 1.7, except where one
// each is nearly reached without. Clusters of more blocks than free multiprocessors of a part of the chip wait for them.
constexpr SkinnyGemmCudaConfig pick_cuda_config(int64_t n, int64_t k, int multiprocessors, bool bulk) {
    constexpr int64_t kShortestSplit = 1024;   // of k: below, adding the parts takes longer
    constexpr int64_t kEnoughForARing = 1024;  // k: below, filling the ring takes longer than using it
    if (!bulk || k < kEnoughForARing) return {kPlain, 1};
    const int64_t tiles = (n + kBulkShapes[kNarrowTiles].columns - 1) / kBulkShapes[kNarrowTiles].columns;
    if (2 * tiles > 7 * int64_t(multiprocessors)) return {kWideTiles, 1};
    if (10 * tiles >= 9 * int64_t(multiprocessors)) return {kNarrowTiles, 1};
    int splits = 1;
    while (splits < kMaxClusterSplits && 10 * tiles * (splits + 1) <= 17 * int64_t(multiprocessors) &&
           k / (splits + 1) >= kShortestSplit) {
        ++splits;
    }
    return {kNarrowTiles, splits};
}

}  // namespace rocm_fp8
