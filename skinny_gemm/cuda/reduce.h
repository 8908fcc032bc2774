// From the warps' sums in registers to one sum a number: over the warps of a CTA, in shared memory; with split-K over the
// CTAs of a cluster. Shapes and memory: bulk.h.
#pragma once

#include "../../common/cuda/mma.h"
#include "fours.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

// TMA's swizzle puts bytes 16 c ... 16 c + 15 of row r at 16 (c ^ r % 8). Lane 4 g + t reads 8 bytes, half of chunk 2 w
// + t / 2. The lane's row is g with its three bits reversed, for two reasons. Sixteen lanes with four values of g then
// read eight different chunks. And store_sums writes the sums of lanes t = 0 ... 3 to different banks.
__device__ inline int row_of(int g) { return (g & 1) << 2 | (g & 2) | g >> 2; }

// Reduction, first half: stores a warp's sums in shared memory, with all columns moved up by `shift`.
template <class B>
__device__ inline void store_sums(typename B::Shared& shared, const Sums (&sums)[B::kWide][B::kNarrow], int warp,
                                  int lane, int shift) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int w = 0; w < B::kWide; ++w) {
#pragma unroll
        for (int n = 0; n < B::kNarrow; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int of_wide = w * kMmaWide + row_of(g) + i / 2 * 8;
                const int of_narrow = n * kMmaNarrow + row_of(2 * t + i % 2);
                const int column = B::group_column(warp) + (B::kRowsWide ? of_narrow : of_wide);
                shared.parts[warp % B::kGroupWarps][B::kRowsWide ? of_wide : of_narrow][column + shift] = sums[w][n][i];
            }
        }
    }
}

// Reduction, second half: the CTA's sum of one element over the warps that share K.
template <class B>
__device__ inline float sum_of_one(const typename B::Shared& shared, int m, int column) {
    float c = shared.parts[0][m][column];
#pragma unroll
    for (int p = 1; p < B::kGroupWarps; ++p) c += shared.parts[p][m][column];
    return c;
}

// Split-K: sends the CTA's sums to the CTAs of the cluster, each of which finishes `share` columns.
template <class B>
__device__ inline void send_sums(const Args& a, typename B::Shared& shared, int part, int share) {
    if constexpr (B::kByFours) {
        send_by_fours<B>(a, shared, part, share);
    } else {
        const int column = threadIdx.x % B::kColumns, owner = column / share;
        const uint32_t to = address_in_cta(shared.sums, owner) + (part * B::kRows * share + column - owner * share) * 4;
        const uint32_t barrier = address_in_cta(&shared.sums_full, owner);
        constexpr int kRowsAtOnce = B::kConsumers * kWarp / B::kColumns;
        for (int m = threadIdx.x / B::kColumns; m < int(a.m) && threadIdx.x < kRowsAtOnce * B::kColumns;
             m += kRowsAtOnce) {
            send_in_cluster(to + m * share * 4, sum_of_one<B>(shared, m, column), barrier);
        }
    }
}

// Split-K: the sum of one element over the cluster, in the order of the parts.
template <class B>
__device__ inline float sum_over_cluster(const typename B::Shared& shared, int m, int own, int share, int splits) {
    const float* from = shared.sums + m * share + own;
    const auto of_part = [&](int p) { return from[p * B::kRows * share]; };
    float c = of_part(0);
    if (B::kByFours && splits == 4) {
        // All loads before the first addition, so that they cost one latency.
        const float others[] = {of_part(1), of_part(2), of_part(3)};
        for (float other : others) c += other;
    } else {
        for (int p = 1; p < splits; ++p) c += of_part(p);
    }
    return c;
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda
