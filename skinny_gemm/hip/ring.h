// The ring of the warp-specialised GEMM kernel: how loading waves hand data over to multiplying waves.
//
// K is taken in steps of 256. A unit is 16 rows of a matrix by one step, 4 KiB. That is four 128-bit loads a lane, each
// of which covers 256 contiguous bytes of four rows. A workgroup has kTiles tiles of 16 columns, with the same steps
// for all.
//
//     waves      0 .. W-1       weight producers. Wave p loads tile p % kTiles, steps p / kTiles + i W / kTiles
//                W .. W+Q-1     row producers. Wave q loads all rows of A, steps q + i Q
//                W+Q .. W+Q+C-1 consumers. Wave c multiplies tile c % kTiles, steps c / kTiles + i C / kTiles
//     LDS        weights[W]     a slot a weight producer
//                rows[R]        the rows of step s have slot s % R, which one producer fills (R is a multiple of Q)
//
// Slots are handed over by words in LDS, because gfx9 has barriers for whole workgroups only. Every access to a word is
// an atomic of workgroup scope. On LDS that costs no more than the waits that correctness needs anyway:
//
//   word             written by            waited for by
//   weights_full[p]  producer p: i + 1     the consumer of its i-th unit, before reading the slot
//   weights_free[p]  that consumer: i + 1  producer p, before writing its unit i + 1
//   rows_full[r]     its producer: i + 1   the kTiles consumers of the slot's i-th step, before reading
//   rows_free[r][t]  that of tile t: i + 1 the producer, all tiles of it, before writing the slot's step i + 1
//
// Happens-before: each writer stores with release after its LDS accesses to the slot (writes, or reads that have
// arrived in registers: the release waits for them). Each waiter loads with acquire before its own accesses. So a slot
// is read after it was filled, and filled after it was read. A word has one writer, so no update is lost. Deadlock is
// impossible: a consumer waits for step s only, which the producers reach without waiting for a later step.
//
// All roles run the same number of steps, rounded up to a multiple of Shape::round. So no loop ends in its middle, and
// the compiler knows how many loads are in flight at each point. Loads of steps beyond the last give zeros and access
// no memory.
//
// A slot is laid out in chunks of 16 k: [16 chunks][16 rows][16 bytes], with rows permuted by row ^ (chunk % 8).
// Writers have 8 chunks of a row in 8 consecutive lanes. Readers have 4 or 8 consecutive rows of two neighbouring
// chunks in the lanes that access LDS together. In both cases these lanes access different banks, on both chips.
#pragma once

#include <cstddef>

#include "tile.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

constexpr int kRingStep = 256, kChunks = kRingStep / kChunk, kUnitRows = 16;
constexpr int kUnitBytes = kUnitRows * kRingStep, kUnitLoads = kUnitBytes / (kWave * 16);

// Byte offset of a chunk of a row in a slot of `rows` rows.
template <int rows>
__device__ constexpr int place(int row, int chunk) {
    return (chunk * rows + (row ^ (chunk % 8))) * 16;
}

template <class Shape>
struct Ring {
    static constexpr int kRowBytes = Shape::rows * kRingStep;
    alignas(16) char weights[Shape::weight_producers][kUnitBytes];
    alignas(16) char rows[Shape::row_slots][kRowBytes];
    uint32_t weights_full[Shape::weight_producers], weights_free[Shape::weight_producers];
    uint32_t rows_full[Shape::row_slots], rows_free[Shape::row_slots][Shape::tiles];

    // Called by one wave, before a barrier.
    __device__ void clear() {
        static_assert(sizeof(Ring) - offsetof(Ring, weights_full) <= kWave * sizeof(uint32_t));
        constexpr int kWords = 2 * Shape::weight_producers + Shape::row_slots * (1 + Shape::tiles);
        const int lane = threadIdx.x % kWave;
        weights_full[lane < kWords ? lane : 0] = 0;
    }
};

__device__ inline void wait_until(const uint32_t* word, uint32_t value) {
    // uniform(): the condition is the same in all lanes, so the loop is a scalar branch.
    while (uint32_t(uniform(__hip_atomic_load(word, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP))) != value) {
        __builtin_amdgcn_s_sleep(1);  // up to 64 clocks, in which working waves have the LDS to themselves
    }
}
__device__ inline void publish(uint32_t* word, uint32_t value) {
    __hip_atomic_store(word, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
}
}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
