// TMA (Hopper and later): copies tiles of a matrix from global to shared memory, and completes on an mbarrier.
#pragma once

#include <cuda.h>

#include "mbarrier.h"

namespace rocm_fp8 {
namespace {

// True in one lane of the warp, all of whose lanes must be here. Directly before a TMA copy it tells the compiler that
// one lane is active, so that the copy is one instruction. After `lane == 0` each copy becomes a loop over the lanes,
// which takes some 60 cycles.
__device__ inline bool elected() {
    uint32_t is;
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(is));
    return is;
}

// Prefetches a TMA descriptor, which saves one latency at its first use.
__device__ inline void fetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Fetches the tile of `map` at (column, row) into L2.
__device__ inline void fetch_tile_to_l2(const CUtensorMap* map, int column, int row) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(column), "r"(row)
                 : "memory");
}

// Copies the tile of `map` at (column, row) to shared memory, with zeros beyond the matrix. kOnce: data that are read
// once and evicted from L2 first.
template <bool kOnce>
__device__ inline void copy_tile(void* to, const CUtensorMap* map, int column, int row, Barrier* barrier) {
    // The policies that createpolicy returns for evict_first and evict_last.
    constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictLast = 0x14F0000000000000;
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::
            "r"(shared_address(to)),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(kOnce ? kEvictFirst : kEvictLast)
        : "memory");
}

// The same, of data that L2 keeps or evicts as it keeps others.
__device__ inline void copy_tile(void* to, const CUtensorMap* map, int column, int row, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
            "r"(shared_address(to)),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// The same of matrix `group` of a map of several.
__device__ inline void copy_tile_of(int group, void* to, const CUtensorMap* map, int column, int row,
                                    Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
            "r"(shared_address(to)),
        "l"(map), "r"(column), "r"(row), "r"(group), "r"(shared_address(barrier))
        : "memory");
}

}  // namespace
}  // namespace rocm_fp8
