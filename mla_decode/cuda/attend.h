// The kernel for Hopper: the multiplying warpgroups, and the whole. See mla_decode.cu.
#pragma once

#include "feed.h"
#include "online.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

constexpr int kScoresMeet = 1, kProbabilitiesMeet = 2, kQueriesMeet = 3;  // barriers of both multiplying warpgroups

using Scores = float[8][4];   // 64 rows by 64 tokens, as wgmma.h says
using Values = float[32][4];  // 64 rows by 256 columns

// The half that is there first begins.
template <DType type, int buffer>
__device__ inline void multiply_keys(Scores& scores, Memory& shared, uint32_t parity) {
    const uint32_t q = swizzled_rows(shared.q), keys = swizzled_rows(shared.keys[buffer]);
    constexpr int kStep = 32;  // bytes
    constexpr int kFirstPanel = (1 - last_half(buffer)) * kHalfPanels, kLater = last_half(buffer) * kHalfPanels;
    const auto multiply_panel = [&](int panel, bool first) __attribute__((always_inline)) {
#pragma unroll
        for (int k = 0; k < kPanelRow; k += kStep) {
            const uint32_t a = further(q, panel * kPanelBytes + k), b = further(keys, panel * kPanelBytes + k);
            if constexpr (type == DType::bf16) multiply_bf16_async(scores, a, b, !first || k > 0);
            else multiply_f16_async(scores, a, b, !first || k > 0);
        }
    };
    wait_for(&shared.full[buffer][1 - last_half(buffer)], parity);
    begin_multiplications();
#pragma unroll
    for (int p = 0; p < kHalfPanels; ++p) multiply_panel(kFirstPanel + p, p == 0);
    commit_multiplications();
    wait_for(&shared.full[buffer][last_half(buffer)], parity);
    begin_multiplications();
#pragma unroll
    for (int p = 0; p < kHalfPanels; ++p) multiply_panel(kLater + p, false);
    multiply_panel(kRopePanel, false);
    commit_multiplications();
}

// A: p of 64 tokens in registers, or the address of a panel of it.
template <DType type, class P>
__device__ inline void multiply_values(Values& sums, const P& p, const Memory& shared, int buffer, int half) {
    constexpr int kStep = 16, kSteps = kTileTokens / kStep;
    const uint32_t values = swizzled_columns(shared.keys[buffer][half * kValuePanels / 2], kPanelBytes);
    begin_multiplications();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
        const uint32_t b = further(values, k * kStep * kPanelRow);
        if constexpr (std::is_same_v<P, uint32_t>) {
            if constexpr (type == DType::bf16) multiply_bf16_by_columns(sums, further(p, k * kStep * 2), b);
            else multiply_f16_by_columns(sums, further(p, k * kStep * 2), b);
        } else {
            if constexpr (type == DType::bf16) multiply_bf16_by_columns(sums, p[k], b);
            else multiply_f16_by_columns(sums, p[k], b);
        }
    }
    commit_multiplications();
}

// Of one of the thread's two rows.
struct RowState {
    float largest = kNoScore, sum = 0;  // in units of log2
};

__device__ inline float max_of_row(float v) {
    v = fmaxf(v, __shfl_xor_sync(kWholeWarp, v, 1));
    return fmaxf(v, __shfl_xor_sync(kWholeWarp, v, 2));
}

// A tile of tokens is a warpgroup's: it makes that tile's scores and p of all 64 rows. Both then add p times values of
// both tiles to their half of the columns.
template <DType type, int own>
class Attend {
    // Exponentials of float16 are lifted by so many powers of two: it has few below 1.
    static constexpr float kLift = type == DType::f16 ? 15 : 0;

  public:
    __device__ Attend(Memory& shared, const Launch& l, const Work& w)
        : shared(shared), row(threadIdx.x / kWarp % kWarpsOfWarpgroup * 16 + threadIdx.x % kWarp / 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) seen[i] = seen_by_row(l, w, w.row + row + 8 * i);
        // All rows of the tile see what its last row sees or less; rows behind the last are not written.
        least_seen = l.args.causal ? max(0, w.length - l.args.queries + 1) : w.length;
        factor = l.args.softmax_scale * kLog2E;
#pragma unroll
        for (auto& group : sums)
            for (float& v : group) v = 0;
    }

    // Tiles first / kTileTokens and the next one.
    __device__ void pair(int first, int end, uint32_t parity) {
        const int mine = first + own * kTileTokens;
        const bool both = first + kTileTokens < end, has = mine < end;
        Scores scores;
        float largest[2] = {kNoScore, kNoScore};
        if (has) {
            multiply_keys<type, own>(scores, shared, parity);
            wait_for_multiplications<0>();
            scale_and_mask(scores, mine, largest);
        }
        const int lane = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            largest[i] = max_of_row(largest[i]);
            if (lane == 0) shared.largest[own][row + 8 * i] = largest[i];
        }
        // Closes: the other warpgroup's largest scores are there.
        warpgroups_meet(kScoresMeet, kMultiplyingThreads);
        float kept[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            kept[i] = raise(rows[i].largest, fmaxf(largest[i], shared.largest[1 - own][row + 8 * i]));
            rows[i].sum *= kept[i];
        }
        uint32_t p[4][4];
        if (has) {
            take_exponentials(scores, p);
            put(p);
        }
        if (kept[0] != 1.0f || kept[1] != 1.0f) {
#pragma unroll
            for (auto& group : sums) group[0] *= kept[0], group[1] *= kept[0], group[2] *= kept[1], group[3] *= kept[1];
        }
        publish_to_multiplications();
        if (both) {
            multiply_values<type>(sums, p, shared, own, own);
            // Closes: the other warpgroup's p is there, and the largest scores have been read.
            warpgroups_meet(kProbabilitiesMeet, kMultiplyingThreads);
            wait_for(&shared.full[1 - own][own], parity);
            multiply_values<type>(sums, swizzled_rows(shared.keys[1 - own][kRopePanel]), shared, 1 - own, own);
            // Closes: this half of the own tile has been read; then that of the other.
            wait_for_multiplications<1>();
            release(own);
            wait_for_multiplications<0>();
            release(1 - own);
        } else {
            // Closes: the same. There is the first warpgroup's tile alone, and none after it.
            warpgroups_meet(kProbabilitiesMeet, kMultiplyingThreads);
            if constexpr (own == 0) {
                multiply_values<type>(sums, p, shared, 0, own);
            } else {
                wait_for(&shared.full[0][own], parity);
                multiply_values<type>(sums, swizzled_rows(shared.keys[0][kRopePanel]), shared, 0, own);
            }
            wait_for_multiplications<0>();
        }
    }

    // Both warpgroups' sums of p, then the result or its part.
    __device__ void finish(const Launch& l, const Work& w) {
        const Args& a = l.args;
        const int lane = threadIdx.x % 4;
        float total[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            total[i] = rows[i].sum + __shfl_xor_sync(kWholeWarp, rows[i].sum, 1);
            total[i] += __shfl_xor_sync(kWholeWarp, total[i], 2);
            if (lane == 0) shared.largest[own][row + 8 * i] = total[i];
        }
        // Closes: the other warpgroup's sums are there.
        warpgroups_meet(kScoresMeet, kMultiplyingThreads);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int of_sequence = w.row + row + 8 * i;
            if (of_sequence >= a.rows()) continue;
            const float all = shared.largest[0][row + 8 * i] + shared.largest[1][row + 8 * i];
            const float by = all == 0 ? 0.0f : 1.0f / all;
            const float lse = all == 0 ? kNoScore : (rows[i].largest - kLift) * kLn2 + __logf(all);
            const bool split = l.partial.splits > 1;
            const int64_t at =
                split ? l.partial.row(w.b, w.split, a.rows(), of_sequence) : w.b * a.rows() + of_sequence;
            float* const of_lse = split ? l.partial.lse : a.lse;
            if (own == 0 && lane == 0 && of_lse) of_lse[at] = lse;
            const int64_t column = at * kLatent + own * kLatent / 2 + 2 * lane;
#pragma unroll
            for (int n = 0; n < 32; ++n) {
                const float2 v = {sums[n][2 * i] * by, sums[n][2 * i + 1] * by};
                if (split) *reinterpret_cast<float2*>(l.partial.out + column + 8 * n) = v;
                else static_cast<uint32_t*>(a.out)[(column + 8 * n) / 2] = Pairs<type>::round(v);
            }
        }
    }

  private:
    __device__ void scale_and_mask(Scores& scores, int first, float (&largest)[2]) {
        const int column = first + 2 * (threadIdx.x % 4);
        const bool masks = first + kTileTokens > least_seen;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& s = scores[n][e];
                s *= factor;
                if (masks && column + 8 * n + e % 2 >= seen[e / 2]) s = kNoScore;
                largest[e / 2] = fmaxf(largest[e / 2], s);
            }
        }
    }

    __device__ void take_exponentials(Scores& scores, uint32_t (&p)[4][4]) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 e = {exp2_of(scores[n][2 * i] - base_of(rows[i].largest, kLift)),
                                  exp2_of(scores[n][2 * i + 1] - base_of(rows[i].largest, kLift))};
                rows[i].sum += e.x + e.y;
                p[n / 2][n % 2 * 2 + i] = Pairs<type>::round(e);
            }
        }
    }

    // p for the other warpgroup, in the place of the tile's rotated numbers: these are keys alone, and read.
    __device__ void put(const uint32_t (&p)[4][4]) {
        uint8_t* const panel = shared.keys[own][kRopePanel];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
                *reinterpret_cast<uint32_t*>(panel + swizzled(row + 8 * i, n) + threadIdx.x % 4 * 4) =
                    p[n / 2][n % 2 * 2 + i];
        }
    }

    __device__ void release(int buffer) { arrive_if(threadIdx.x % kWarp == 0, &shared.empty[buffer][own]); }

    Memory& shared;
    const int row;  // the thread's rows of the tile: row and row + 8
    int seen[2], least_seen;
    float factor;
    RowState rows[2];
    Values sums;
};

template <class A>
__device__ inline void attend_to(Memory& shared, const Launch& l, const Work& w) {
    A attend(shared, l, w);
    uint32_t parity = 0;
    for (int first = w.begin; first < w.end; first += kBuffers * kTileTokens, parity ^= 1)
        attend.pair(first, w.end, parity);
    attend.finish(l, w);
}

template <DType type>
__global__ __launch_bounds__(kTilesThreads, 1) void mla_decode_tiles(const __grid_constant__ Launch l,
                                                                     const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    auto& shared = dynamic_shared<Memory>();
    if (threadIdx.x == 0) {
        for (int i = 0; i < kBuffers * kHalves; ++i) {
            make_barrier(&shared.full[0][0] + i, kWarp);
            make_barrier(&shared.empty[0][0] + i, kWarpsOfWarpgroup);
        }
        publish_barriers();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    const Work w = work_of<kTileTokens>(l, kTileRows);
    // The merge knows that this one has left nothing.
    if (l.partial.splits > 1 && w.begin >= w.end) return;
    // Closes: mbarriers are used below by threads that did not initialise them.
    __syncthreads();
    // The warpgroups that load are the first.
    if (threadIdx.x < kFeeders) {
        leave_registers<kFewRegisters>();
        feed(shared, l, &map, w);
    } else {
        take_registers<kManyRegisters>();
        feed_queries<kMultiplyingThreads>(shared, l, w, threadIdx.x - kFeeders);
        // Closes: the queries are there.
        warpgroups_meet(kQueriesMeet, kMultiplyingThreads);
        if (threadIdx.x < kFeeders + kWarpgroup) attend_to<Attend<type, 0>>(shared, l, w);
        else attend_to<Attend<type, 1>>(shared, l, w);
    }
#endif
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
