// The bulk copy engine (Hopper and later): tiles of a matrix from global to shared memory, completing on a barrier in
// shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cluster.h"

namespace rocm_fp8 {
namespace {

// A barrier in shared memory (mbarrier). It is passed when `arrivals` threads have arrived and all bytes announced to it
// have come; then it starts over, its parity flipped.
using Barrier = uint64_t;

__device__ inline void make_barrier(Barrier* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes fresh barriers known to the copy engine.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void arrive_expecting(Barrier* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Until the phase of that parity is over. (The instruction waits for some time by itself.)
__device__ inline void wait_for(Barrier* barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!done);
}

// Brings the description of a matrix to the copy engine, one latency before its first use.
__device__ inline void fetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Fetches the tile of `map` at (column, row) into L2.
__device__ inline void fetch_tile_to_l2(const CUtensorMap* map, int column, int row) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(column), "r"(row) : "memory");
}

// The tile of `map` at (column, row) to shared memory; zeros beyond the matrix. kOnce: read once, leaves L2 first.
template <bool kOnce>
__device__ inline void copy_tile(void* to, const CUtensorMap* map, int column, int row, Barrier* barrier) {
    // What createpolicy gives for evict_first and evict_last.
    constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictLast = 0x14F0000000000000;
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::
            "r"(shared_address(to)),
        "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(kOnce ? kEvictFirst : kEvictLast)
        : "memory");
}

}  // namespace
}  // namespace rocm_fp8
