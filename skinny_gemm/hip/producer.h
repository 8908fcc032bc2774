// The loading waves of the warp-specialised GEMM kernel. See ring.h for the hand-over.
//
// A producer keeps kDepth units in flight, in registers. It waits for the oldest one, writes it to its slot and hands
// it over. Then it starts to load the unit kDepth steps further on. The wait is partial, because vmcnt counts loads in
// order, so the other units stay in flight.
//
// Loads go through buffer descriptors. Their bounds check gives zeros for rows and columns beyond the last, for k
// beyond K and for units beyond the last step. That needs no branch and accesses no memory.
#pragma once

#include "ring.h"

namespace rocm_fp8::skinny_gemm::hip {
namespace {

// Cache policies of a load on gfx942 and gfx950.
constexpr int kCached = 0, kNonTemporal = 2;

// `count` rows of `width` bytes.
__device__ inline Buffer rows_at(const uint8_t* first, int64_t count, int64_t stride, int64_t width) {
    return Buffer(first, uint32_t((count - 1) * stride + width));
}

// kLoads loads of 16 bytes a lane: lane l has chunk l % 16 of rows l / 16 + 4 i.
template <int kLoads>
struct UnitLoader {
    Buffer rows;
    uint32_t row_offset[kLoads];
    uint32_t k, end;  // this lane's chunk of step 0; the end of the rows

    __device__ UnitLoader(Buffer from, int64_t count, int64_t stride, int64_t end_k)
        : rows(from), k(threadIdx.x % kChunks * kChunk), end(uint32_t(end_k)) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int row = threadIdx.x % kWave / kChunks + 4 * i;
            row_offset[i] = row < count ? uint32_t(row * stride) : kNowhere;
        }
    }
    // Loads one chunk from each of the lane's rows. `first` is the k of the lane's own chunk.
    template <int policy>
    __device__ void request(u32x4 (&into)[kLoads], uint32_t first) const {
        const uint32_t at = first < end ? first : kNowhere;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) into[i] = rows.template load<policy>(at + row_offset[i]);
    }
};

// Weight producer p of a workgroup whose first column is `column`. It loads steps [begin, begin + real_steps) of K,
// then zeros up to `steps`.
template <class Shape>
__device__ inline void produce_weights(const Args& a, Ring<Shape>& ring, int p, int64_t column, int begin,
                                       int real_steps, int steps) {
    constexpr int kEvery = Shape::weight_producers / Shape::tiles, kDepth = Shape::depth;
    const int first = p / Shape::tiles, units = steps / kEvery;  // a multiple of kDepth
    column += p % Shape::tiles * kTileColumns;
    const int64_t columns = a.n - column < kTileColumns ? a.n - column : kTileColumns;
    // A tile wholly beyond the last column is all zeros.
    const int64_t base = columns > 0 ? column : 0;
    const UnitLoader<kUnitLoads> loader(rows_at(a.b + base * a.b_stride, columns > 0 ? columns : 1, a.b_stride, a.k),
                                        columns, a.b_stride, a.k);
    const auto k_of = [&](int unit) {
        const int step = first + unit * kEvery;
        return step < real_steps ? loader.k + uint32_t(begin + step) * kRingStep : kNowhere;
    };
    u32x4 flying[kDepth][kUnitLoads];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) loader.template request<kNonTemporal>(flying[d], k_of(d));
    // Closes: the ring's words are zero from here on.
    __syncthreads();

    char* slot = ring.weights[p];
    const int lane = threadIdx.x % kWave, row = lane / kChunks, chunk = lane % kChunks;
    for (int unit = 0; unit < units; unit += kDepth) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
            wait_until(&ring.weights_free[p], unit + d);
#pragma unroll
            for (int i = 0; i < kUnitLoads; ++i) {
                *reinterpret_cast<u32x4*>(slot + place<kUnitRows>(row + 4 * i, chunk)) = flying[d][i];
            }
            publish(&ring.weights_full[p], unit + d + 1);
            loader.template request<kNonTemporal>(flying[d], k_of(unit + d + kDepth));
        }
    }
}

// Row producer q. The rows come from the L2 cache: every workgroup reads them.
template <class Shape>
__device__ inline void produce_rows(const Args& a, Ring<Shape>& ring, int q, int begin, int real_steps, int steps) {
    constexpr int kLoads = Shape::rows * kRingStep / (kWave * 16), kEvery = Shape::row_producers,
                  kDepth = Shape::row_depth;
    const UnitLoader<kLoads> loader(rows_at(a.a, a.m, a.a_stride, a.k), a.m, a.a_stride, a.k);
    const auto k_of = [&](int step) {
        return step < real_steps ? loader.k + uint32_t(begin + step) * kRingStep : kNowhere;
    };
    u32x4 flying[kDepth][kLoads];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) loader.template request<kCached>(flying[d], k_of(q + d * kEvery));
    // Closes: the ring's words are zero from here on.
    __syncthreads();

    const int lane = threadIdx.x % kWave, row = lane / kChunks, chunk = lane % kChunks;
    for (int first = q; first < steps; first += kDepth * kEvery) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
            const int step = first + d * kEvery, slot = step % Shape::row_slots, round = step / Shape::row_slots;
#pragma unroll
            for (int t = 0; t < Shape::tiles; ++t) wait_until(&ring.rows_free[slot][t], round);
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
                u32x4 v = flying[d][i];
                if constexpr (Shape::rows == 8) {
                    // The sparse instruction's layout: see RowFragment<8>.
                    const u32x2 low = low_pairs(v), high = high_pairs(v);
                    v = u32x4{low.x, low.y, high.x, high.y};
                    *reinterpret_cast<u32x4*>(ring.rows[slot] + place<8>(row + 4 * i, chunk)) = v;
                } else {
                    char* tile = ring.rows[slot] + i / kUnitLoads * kUnitBytes;
                    *reinterpret_cast<u32x4*>(tile + place<kUnitRows>(row + 4 * (i % kUnitLoads), chunk)) = v;
                }
            }
            publish(&ring.rows_full[slot], round + 1);
            loader.template request<kCached>(flying[d], k_of(step + kDepth * kEvery));
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::hip
