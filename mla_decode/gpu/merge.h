// The second launch where tokens are split: a row's partial sums become one, in the order of the splits. For HIP and
// CUDA.
//
// Bytes: of each row 2 KiB a split, and 1 KiB of the result. Floor: those at the memory rate.
//
//     kColumns = 512   a workgroup has two rows, a thread four columns of one: few splits
//     kColumns = 64    a workgroup has an eighth of a row; its sixteen groups of 16 threads take every sixteenth split,
//                      and their sums meet in shared memory: so many splits are read at once that latency counts once
//
// Limit today: docs/journal/mla_decode-hip.md. Nothing has been measured.
#pragma once

#include "../../common/attention/gpu/merge.h"
#include "../../common/gpu/overlap.h"
#include "splits.h"

namespace rocm_fp8::mla_decode {
namespace {

constexpr int kMergeThreads = 256, kOwnColumns = 4;

struct MergeArgs {
    Partial partial;
    const int32_t* lengths;
    int64_t most, rows, batch;
    void* out;
    float* lse;
};

template <DType type, int kColumns>
__global__ __launch_bounds__(kMergeThreads) void mla_merge(MergeArgs a) {
    constexpr int kGroup = kColumns / kOwnColumns, kGroups = kMergeThreads / kGroup;
    constexpr int kParts = kLatent / kColumns, kRows = kParts == 1 ? kGroups : 1, kSharers = kGroups / kRows;
    const int group = threadIdx.x / kGroup, lane = threadIdx.x % kGroup;
    const int64_t row = int64_t(blockIdx.x) / kParts * kRows + (kParts == 1 ? group : 0);
    const int column = int(blockIdx.x % kParts) * kColumns + lane * kOwnColumns;
    const bool has_row = row < a.batch * a.rows;
    wait_for_previous_kernel();
    let_next_kernel_start();

    auto merged = attention::MergedRow<kOwnColumns>::nothing();
    int64_t b = 0, in_sequence = 0;
    int32_t used = 0;
    if (has_row) {
        b = row / a.rows, in_sequence = row - b * a.rows;
        const int64_t length = global<int32_t>(a.lengths)[b], seen = length < 0 ? 0 : length < a.most ? length : a.most;
        used = used_splits(int32_t(ceil_div(seen, a.partial.tile)), a.partial.splits);
    }
    constexpr int kAtOnce = 4;
    for (int32_t first = kSharers == 1 ? 0 : group; first < used; first += kAtOnce * kSharers) {
        float lse[kAtOnce];
        Vector128 four[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            // Behind the last one that again: a branch around loads would keep them from being in flight together.
            const int32_t split = first + i * kSharers < used ? first + i * kSharers : first;
            const int64_t at = a.partial.row(b, split, a.rows, in_sequence);
            lse[i] = global<float>(a.partial.lse)[at];
            four[i] = load_vector(a.partial.out + at * kLatent, VectorIndex(column) * 4);
        }
        keep_order();  // the loads first
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (first + i * kSharers < used) merged.add(lse[i], [&](int c) { return bits_float(word(four[i], c)); });
        }
    }
    if constexpr (kSharers > 1) {
        __shared__ attention::MergedRow<kOwnColumns> met[kSharers][kGroup];
        met[group][lane] = merged;
        __syncthreads();  // closes: all sums are there
        if (group != 0) return;
#pragma unroll
        for (int i = 1; i < kSharers; ++i) merged.add(met[i][lane]);
    }
    if (!has_row) return;
    uint32_t rounded[kOwnColumns / 2];
#pragma unroll
    for (int i = 0; i < kOwnColumns / 2; ++i) {
        rounded[i] = Pairs<type>::round_any_nan(f32x2{merged.column(2 * i), merged.column(2 * i + 1)});
    }
    const int64_t at = row * kLatent + column;
    global<uint32_t>(a.out)[at / 2] = rounded[0];
    global<uint32_t>(a.out)[at / 2 + 1] = rounded[1];
    if (a.lse && column == 0) global<float>(a.lse)[row] = merged.lse();
}

// From so many splits on a workgroup has an eighth of a row.
constexpr int kManySplits = 9;

template <DType type, class Vendor>
Status launch_merge(const MergeArgs& a, const Vendor& vendor) {
    const int64_t rows = a.batch * a.rows;
    if (a.partial.splits < kManySplits) {
        constexpr int kRows = kMergeThreads * kOwnColumns / kLatent;
        return vendor.launch(mla_merge<type, kLatent>, ceil_div(rows, kRows), kMergeThreads, 1, a);
    }
    constexpr int kParts = 8;
    return vendor.launch(mla_merge<type, kLatent / kParts>, rows * kParts, kMergeThreads, 1, a);
}

}  // namespace
}  // namespace rocm_fp8::mla_decode
