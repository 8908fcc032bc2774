// The multiplying waves of the warp-specialised GEMM kernel. See ring.h for the hand-over.
#pragma once

#include "ring.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

// Consumer c: makes the sums of its tile over its steps.
template <class Shape>
__device__ inline TileSum<Shape::rows> consume(Ring<Shape>& ring, int c, int steps) {
    constexpr int kRows = Shape::rows, kTiles = Shape::tiles, kSteps = kRingStep / kStep;
    constexpr int kEvery = Shape::consumers / kTiles, kWeightsEvery = Shape::weight_producers / kTiles;
    const int tile = c % kTiles, lane = threadIdx.x % kWave, j = lane % 16, g = lane / 16;
    TileSum<kRows> sum;
    // Closes: the ring's words are zero from here on.
    __syncthreads();

    for (int step = c / kTiles; step < steps; step += kEvery) {
        const int row_slot = step % Shape::row_slots, producer = step % kWeightsEvery * kTiles + tile;
        wait_until(&ring.rows_full[row_slot], step / Shape::row_slots + 1);
        const char* rows = ring.rows[row_slot];
        RowFragment<kRows> a[kSteps];
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
            const int chunk = 4 * s + g;
            if constexpr (kRows == 8) {
                a[s].k = *reinterpret_cast<const u32x2*>(rows + place<8>(j / 2, chunk) + 8 * (j % 2));
            } else {
#pragma unroll
                for (int t = 0; t < kRows / 16; ++t) {
                    a[s].k[t] = *reinterpret_cast<const u32x4*>(rows + t * kUnitBytes + place<kUnitRows>(j, chunk));
                }
            }
        }
        wait_until(&ring.weights_full[producer], step / kWeightsEvery + 1);
        const char* weights = ring.weights[producer];
        u32x4 b[kSteps];
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
            b[s] = *reinterpret_cast<const u32x4*>(weights + place<kUnitRows>(j, 4 * s + g));
        // Both slots are free as soon as their bytes are in registers; the release waits for that.
        publish(&ring.weights_free[producer], step / kWeightsEvery + 1);
        publish(&ring.rows_free[row_slot][tile], step / Shape::row_slots + 1);
#pragma unroll
        for (int s = 0; s < kSteps; ++s) sum.multiply(a[s], b[s]);
    }
    return sum;
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
