// The GEMM kernel for Hopper and later: the copy engine fills a ring in shared memory, eight warps multiply.
//
//     HBM --> copy engine: 16 KiB of weights a slot --+
//     L2  --> copy engine: the rows' same k ----------+-> ring --> warp: 32 columns x 64 k of each slot --> registers
//
//     registers --> shared memory: added over the warps that share columns
//               --> with split K, to the block of the cluster that finishes the column: added over the blocks
#pragma once

#include "../common/cuda/bulk_copy.h"
#include "../common/cuda/overlap.h"
#include "skinny_gemm_cuda_config.h"
#include "skinny_gemm_finish.h"
#include "skinny_gemm_mma.h"

namespace rocm_fp8 {
namespace {

constexpr int kRowBytes = 128;  // of a row of the ring: all banks once, and k of a copy
constexpr int kConsumers = 8;   // warps
constexpr int kWarpColumns = 32, kWarpK = 64;

// kColumns of the result a block, up to 8 * kRowTiles rows of A, kSlots in the ring.
template <int kColumns_, int kRowTiles, int kSlots_>
struct Bulk {
    static constexpr int kColumns = kColumns_, kSlots = kSlots_, kRows = kRowTiles * kMmaRows;
    static constexpr int kGroups = kColumns / kWarpColumns;      // of warps that share k
    static constexpr int kParts = kConsumers / kGroups;          // warps that share columns: of k
    static constexpr int kBlocks = kParts * kWarpK / kRowBytes;  // copies of each matrix a slot
    static constexpr int kStep = kBlocks * kRowBytes;            // k of a slot
    static constexpr int kSlotBytes = (kColumns + kRows) * kStep;
    static constexpr int kThreads = (kConsumers + 1) * kWarp;

    struct Slot {
        uint8_t columns[kBlocks][kColumns][kRowBytes], rows[kBlocks][kRows][kRowBytes];
    };
    struct Shared {
        union {
            alignas(1024) Slot slots[kSlots];
            float parts[kParts][kRows][kColumns + 8];  // when the ring is done; 8 more: no two of a warp's writes in one bank
        };
        // Of this block's share of the columns, from each block of the cluster: [block][row][column].
        float sums[kRows * (kColumns + kMaxClusterSplits)];
        Barrier full[kSlots], empty[kSlots];
    };
};

// The engine's swizzle puts bytes 16 c ... 16 c + 15 of row r at 16 (c ^ r % 8). A lane 4 g + t reads chunk t or t + 4. So
// that eight neighbouring lanes (two values of g) meet eight different chunks, g stands for row 0, 4, 1, 5, 2, 6, 3, 7.
__device__ inline int row_of(int g) { return g >> 1 | (g & 1) << 2; }

// Among the consumers alone.
__device__ inline void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumers * kWarp) : "memory"); }

// A block's steps of K.
struct Steps {
    int begin, count;
    __device__ Steps(int all, int part, int splits)
        : begin(int(int64_t(all) * part / splits)), count(int(int64_t(all) * (part + 1) / splits) - begin) {}
};

template <class B>
__device__ inline void copy_weights(typename B::Shared& shared, int slot, const CUtensorMap* weights, int step, int first_column) {
    arrive_expecting(&shared.full[slot], B::kSlotBytes);
#pragma unroll
    for (int b = 0; b < B::kBlocks; ++b) {
        copy_tile<true>(shared.slots[slot].columns[b], weights, step * B::kStep + b * kRowBytes, first_column, &shared.full[slot]);
    }
}

// One thread. begun: the first round of weights is on its way.
template <class B>
__device__ inline void produce(typename B::Shared& shared, const CUtensorMap* weights, const CUtensorMap* rows, int first_column,
                               const Steps& steps, bool begun) {
    // The next kernel starts in the tail, not before: its blocks, which only wait, would take room from this one's.
    const int quarter = (steps.count + 3) / 4, tail = steps.count - (quarter < B::kSlots ? quarter : B::kSlots);
    int slot = 0;
    uint32_t parity = 1;
    for (int i = 0; i < steps.count; ++i) {
        if (i == tail) let_next_kernel_start();
        if (i >= B::kSlots) wait_for(&shared.empty[slot], parity);
        if (i >= B::kSlots || !begun) copy_weights<B>(shared, slot, weights, steps.begin + i, first_column);
#pragma unroll
        for (int b = 0; b < B::kBlocks; ++b) {
            copy_tile<false>(shared.slots[slot].rows[b], rows, (steps.begin + i) * B::kStep + b * kRowBytes, 0, &shared.full[slot]);
        }
        if (++slot == B::kSlots) slot = 0, parity ^= 1;
    }
}

template <class B, int kTiles, int kRowTiles>
__device__ inline void consume(typename B::Shared& shared, Sums (&sums)[kTiles][kRowTiles], int group, int k_part, int lane, int count) {
    const int g = lane / 4, t = lane % 4, row = row_of(g);
    const int at = row * kRowBytes + (((t ^ row) * kChunk) ^ (k_part % 2 * kWarpK));
    int slot = 0;
    uint32_t parity = 0;
    for (int i = 0; i < count; ++i) {
        wait_for(&shared.full[slot], parity);
        const uint8_t* columns = &shared.slots[slot].columns[k_part / 2][group * kWarpColumns][0] + at;
        const uint8_t* rows = &shared.slots[slot].rows[k_part / 2][0][0] + at;
        uint4 column[kTiles][2], row_chunks[kRowTiles];
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                column[c][h] = *reinterpret_cast<const uint4*>(columns + (c * kMmaColumns + h * 8) * kRowBytes);
            }
        }
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) row_chunks[r] = *reinterpret_cast<const uint4*>(rows + r * kMmaRows * kRowBytes);
        multiply_chunks(sums, column, row_chunks);
        __syncwarp();
        if (lane == 0) arrive(&shared.empty[slot]);
        if (++slot == B::kSlots) slot = 0, parity ^= 1;
    }
}

// Bounds for ten warps although there are nine: two blocks put five on a quarter of a multiprocessor, which leaves each
// thread 96 registers.
template <int kColumns, int kRowTiles, int kSlots>
__global__ __launch_bounds__(Bulk<kColumns, kRowTiles, kSlots>::kThreads + kWarp, 2) void skinny_gemm_bulk(
    SkinnyGemmArgs a, const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap rows) {
#if __CUDA_ARCH__ >= 900
    using B = Bulk<kColumns, kRowTiles, kSlots>;
    using Shared = typename B::Shared;
    extern __shared__ uint8_t unaligned[];
    Shared& shared = *reinterpret_cast<Shared*>(unaligned + (1024 - shared_address(unaligned) % 1024) % 1024);

    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int splits = blocks_in_cluster(), part = rank_in_cluster();
    const int first_column = blockIdx.x / splits * kColumns;
    const Steps steps(int((a.k + B::kStep - 1) / B::kStep), part, splits);

    const bool produces = warp == kConsumers && lane == 0;
    if (produces) {
        for (int s = 0; s < kSlots; ++s) {
            make_barrier(&shared.full[s], 1);
            make_barrier(&shared.empty[s], kConsumers);
        }
        publish_barriers();
        if (a.constant_b) {
            for (int s = 0; s < kSlots && s < steps.count; ++s) copy_weights<B>(shared, s, &weights, steps.begin + s, first_column);
        }
    }
    // Closes: barriers are used below by threads that did not make them.
    __syncthreads();
    // Closes: a block of the cluster may not be written to before it runs. (Where a block is alone there is no cluster,
    // and its barriers would be those of the block, which the two roles pass at different places.)
    if (splits > 1) arrive_at_cluster_barrier();
    wait_for_previous_kernel();

    if (warp == kConsumers) {
        if (produces) produce<B>(shared, &weights, &rows, first_column, steps, a.constant_b);
        __syncwarp();
        if (splits > 1) {
            wait_at_cluster_barrier();
            arrive_at_cluster_barrier();
            wait_at_cluster_barrier();
        }
        return;
    }

    // The block of the cluster that finishes a column gets its sums: `share` columns each. A thread stays with one.
    const int share = (kColumns + splits - 1) / splits;
    const int own = threadIdx.x % share, first_row = threadIdx.x / share, rows_apart = kConsumers * kWarp / share;
    const int64_t n = int64_t(first_column) + part * share + own;
    const bool finishes = first_row < rows_apart && part * share + own < kColumns && n < a.n;
    const Column result(a, finishes ? n : 0);

    constexpr int kTiles = kWarpColumns / kMmaColumns;
    const int group = warp % B::kGroups, k_part = warp / B::kGroups;
    Sums sums[kTiles][kRowTiles] = {};
    consume<B>(shared, sums, group, k_part, lane, steps.count);

    // Closes: the sums take the ring's place, which other warps may still be reading.
    consumers_meet();
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                shared.parts[k_part][r * kMmaRows + row_of(2 * t + i % 2)]
                            [group * kWarpColumns + c * kMmaColumns + row_of(g) + i / 2 * 8] = sums[c][r][i];
            }
        }
    }
    // Closes: the parts are added below by other threads.
    consumers_meet();
    const auto of_block = [&](int m, int column) {
        float c = shared.parts[0][m][column];
#pragma unroll
        for (int p = 1; p < B::kParts; ++p) c += shared.parts[p][m][column];
        return c;
    };
    if (splits == 1) {
        if (finishes) {
            for (int m = first_row; m < int(a.m); m += rows_apart) finish(a, m, result, of_block(m, own));
        }
        return;
    }
    wait_at_cluster_barrier();
    const int column = threadIdx.x % kColumns, owner = column / share;
    const uint32_t to = address_in_block(shared.sums, owner) + (part * B::kRows * share + column - owner * share) * 4;
    for (int m = threadIdx.x / kColumns; m < int(a.m); m += kConsumers * kWarp / kColumns) {
        store_in_cluster(to + m * share * 4, of_block(m, column));
    }
    // Closes: the sums are read below by threads and blocks that did not write them.
    arrive_at_cluster_barrier();
    wait_at_cluster_barrier();
    if (!finishes) return;
    for (int m = first_row; m < int(a.m); m += rows_apart) {
        const float* from = shared.sums + m * share + own;
        float c = from[0];
        for (int p = 1; p < splits; ++p) c += from[p * B::kRows * share];
        finish(a, m, result, c);
    }
#endif
}

}  // namespace
}  // namespace rocm_fp8
