// The epilogue of wide CTAs with more than 16 rows: each thread finishes four neighbouring columns. It adds the sums of
// the warps that divide K, in shared memory. The totals go to the result, or to the CTA of the cluster that finishes
// the columns.
//
// Other CTAs use one thread a column. That writes 2 bytes at a time, and most 32-byte sectors of the result in two
// halves. Where all CTAs end together this costs 0.3 to 0.5 us (28672 x 4096 with 32 rows, H200). Narrower CTAs are
// faster with one column a thread, because this code is longer and runs only once a launch.
#pragma once

#include "../../common/cuda/mbarrier.h"
#include "end.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

__device__ inline float4 four_at(const float* p) { return *reinterpret_cast<const float4*>(p); }

// The sums of row m, columns `column` to `column` + 3, over the warps of a group.
template <class B>
__device__ inline float4 sum_of_four(const typename B::Shared& shared, int m, int column) {
    float4 c = four_at(&shared.parts[0][m][column]);
#pragma unroll
    for (int p = 1; p < B::kGroupWarps; ++p) {
        const float4 v = four_at(&shared.parts[p][m][column]);
        c.x += v.x, c.y += v.y, c.z += v.z, c.w += v.w;
    }
    return c;
}

// finish() for those of the columns n ... n + 3 that are in [first, end).
template <class To>
__device__ inline void finish_four(const Args& a, const To& to_others, int64_t m, int64_t n, int64_t first, int64_t end,
                                   float4 scale_b, float4 bias, float scale_a, float4 c) {
    const gemm::Epilogue& e = a.epilogue;
    const float v[4] = {
        gemm::finished(e, c.x, scale_a, scale_b.x, bias.x), gemm::finished(e, c.y, scale_a, scale_b.y, bias.y),
        gemm::finished(e, c.z, scale_a, scale_b.z, bias.z), gemm::finished(e, c.w, scale_a, scale_b.w, bias.w)};
    const int64_t at = m * e.out.row_stride + n;
    const bool all = n >= first && n + 4 <= end;
    const auto is_ours = [&](int i) { return n + i >= first && n + i < end; };
    // Pairs are whole: a sender's columns begin and end with even ones.
    const auto send = [&](const auto& bits, int word_columns) {
        if constexpr (To::kSends) {
            constexpr int kWords = sizeof(bits) / sizeof(bits[0]);
            const int64_t byte = (m * a.n + n) * (4 / word_columns);
            if (all) return to_others.send(byte, bits);
#pragma unroll
            for (int w = 0; w < kWords; ++w) {
                const uint32_t one[1] = {bits[w]};
                if (is_ours(w * word_columns)) to_others.send(byte + 4 * w, one);
            }
        }
    };
    if (e.out.dtype == DType::f32) {
        const uint32_t bits[4] = {float_bits(v[0]), float_bits(v[1]), float_bits(v[2]), float_bits(v[3])};
        send(bits, 1);
        float* to = global<float>(e.out.data) + at;
        if (all && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
            *reinterpret_cast<float4*>(to) = {v[0], v[1], v[2], v[3]};
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (is_ours(i)) to[i] = v[i];
            }
        }
        return;
    }
    const uint32_t low = gemm::rounded_pair(e.out.dtype, {v[0], v[1]}),
                   high = gemm::rounded_pair(e.out.dtype, {v[2], v[3]});
    const uint32_t bits[2] = {low, high};
    send(bits, 2);
    uint16_t* to = global<uint16_t>(e.out.data) + at;
    if (all && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
        store(to, uint2{low, high});
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (is_ours(i)) to[i] = uint16_t((i < 2 ? low : high) >> (i % 2 * 16));
        }
    }
}

// Without split-K: the results of `width` columns from first_column on. In shared memory the columns are moved up by
// `shift`, so that a thread's four columns begin at a multiple of four in the result.
template <class B, class To>
__device__ inline void finish_by_fours(const Args& a, const To& to, const typename B::Shared& shared, int first_column,
                                       int width, int shift) {
    constexpr int kLanesARow = 32, kRowsAtOnce = B::kConsumers * kWarp / kLanesARow;
    static_assert(B::kColumns / 4 + 1 <= kLanesARow);
    const int four = threadIdx.x % kLanesARow * 4;
    if (four >= shift + width) return;
    const float4 scale_b = four_at(shared.scale_b + four), bias = four_at(shared.bias + four);
    for (int m = threadIdx.x / kLanesARow; m < int(a.m); m += kRowsAtOnce) {
        finish_four(a, to, m, first_column - shift + four, first_column, first_column + width, scale_b, bias,
                    shared.scale_a[m], sum_of_four<B>(shared, m, four));
    }
}

// Split-K: sends the CTA's sums to the CTAs of the cluster, each of which finishes `share` columns, a multiple of four.
template <class B>
__device__ inline void send_by_fours(const Args& a, typename B::Shared& shared, int part, int share) {
    constexpr int kFours = B::kColumns / 4, kRowsAtOnce = B::kConsumers * kWarp / kFours;
    const int column = threadIdx.x % kFours * 4, owner = column / share;
    const uint32_t to = address_in_cta(shared.sums, owner) + (part * B::kRows * share + column - owner * share) * 4;
    const uint32_t barrier = address_in_cta(&shared.sums_full, owner);
    if (threadIdx.x >= kRowsAtOnce * kFours) return;
#pragma unroll
    for (int i = 0; i < (B::kRows + kRowsAtOnce - 1) / kRowsAtOnce; ++i) {
        const int m = threadIdx.x / kFours + i * kRowsAtOnce;
        if (m >= int(a.m)) return;
        send_in_cluster(to + m * share * 4, sum_of_four<B>(shared, m, column), barrier);
    }
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda
