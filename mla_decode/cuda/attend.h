// The kernel for Hopper: the multiplying warpgroups, and the whole. See mla_decode.cu.
#pragma once

#include "feed.h"
#include "online.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

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

// Four lanes that are neighbours have four words each of four vectors: lane i gets the i-th vector. All lanes call it.
__device__ inline uint4 transposed_in_quad(const uint32_t (&words)[4], int lane) {
    const bool odd = lane & 1, high = lane & 2;
    const uint32_t a = __shfl_xor_sync(kWholeWarp, odd ? words[0] : words[1], 1);
    const uint32_t b = __shfl_xor_sync(kWholeWarp, odd ? words[2] : words[3], 1);
    const uint2 first = odd ? make_uint2(a, words[1]) : make_uint2(words[0], a);
    const uint2 last = odd ? make_uint2(b, words[3]) : make_uint2(words[2], b);
    const uint32_t c = __shfl_xor_sync(kWholeWarp, high ? first.x : last.x, 2);
    const uint32_t d = __shfl_xor_sync(kWholeWarp, high ? first.y : last.y, 2);
    return high ? make_uint4(c, d, last.x, last.y) : make_uint4(first.x, first.y, c, d);
}

// Tiles of tokens belong to the warpgroups by turns. A tile's owner makes its scores and p of all 64 rows; both then add
// p times its values to their half of the columns. So one's softmax runs beside the other's multiplications:
//
//     warpgroup 0   | keys 0 | p 0 | values 0      | values 1 | keys 2 | p 2 | values 2 ...
//     warpgroup 1         | keys 1 | values 0, p 1 | values 1      | keys 3 | values 2, p 3 ...
//
// What exponentials refer to goes from tile to tile: the largest score so far, or up to 2^kSlack less. Both warpgroups
// see all references in the tiles' order, so their sums are always of the same one.
template <DType type, int own>
class Attend {
    static constexpr int kOther = 1 - own;
    static constexpr float kSlack = 8;
    // Exponentials of float16 are lifted by so many powers of two: it has few below 1.
    static constexpr float kLift = type == DType::f16 ? 15 - kSlack : 0;

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

    // Tiles first / kTileTokens and the next one. parities: bit b of buffer b's next wait.
    __device__ void pair(int first, int end, uint32_t& parities) {
        const bool both = first + kTileTokens < end, last = first + kBuffers * kTileTokens >= end;
        if constexpr (own == 0) {
            Scores scores;
            multiply_keys<type, own>(scores, shared, parities >> own & 1);
            wait_for_multiplications<0>();
            release_queries(last);
            float largest[2];
            scale_and_mask(scores, first, largest);
            uint32_t p[4][4];
            rescale(take_exponentials(scores, largest, p));
            multiply_own_values(p);
            if (both) {
                // Barrier: the other warpgroup's p is there.
                warpgroups_meet(kOfSecond, kMultiplyingThreads);
                release(own);
                multiply_others_values(parities >> kOther & 1);
            }
            release(both ? kOther : own);
        } else {
            Scores scores;
            float largest[2];
            if (both) {
                multiply_keys<type, own>(scores, shared, parities >> own & 1);
                wait_for_multiplications<0>();
                // Before the next multiplication: while one is at work these registers are only read.
                scale_and_mask(scores, first + kTileTokens, largest);
            }
            release_queries(last);
            // Barrier: the other warpgroup's p is there.
            warpgroups_meet(kOfFirst, kMultiplyingThreads);
            multiply_others_values(parities >> kOther & 1);
            uint32_t p[4][4];
            Factors factors;
            if (both) factors = take_exponentials(scores, largest, p);
            release(kOther);
            if (both) {
                rescale(factors);
                multiply_own_values(p);
                release(own);
            }
        }
        parities ^= both ? 3 : 1;
    }

    // Both warpgroups' sums of p, then the result or its part. turn: of the CTA's pieces of work, 0 and 1.
    __device__ void finish(const Launch& l, const Work& w, uint32_t turn) {
        const Args& a = l.args;
        float (&totals)[kBuffers][kTileRows] = shared.totals[turn];
        const int lane = threadIdx.x % 4;
        float total[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            total[i] = sum_of_row(rows[i].sum);
            if (lane == 0) totals[own][row + 8 * i] = total[i];
        }
        // Barrier: the other warpgroup's sums are there.
        warpgroups_meet(kTotalsMeet, kMultiplyingThreads);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int of_sequence = w.row + row + 8 * i;
            const float all = totals[0][row + 8 * i] + totals[1][row + 8 * i];
            const float by = all == 0 ? 0.0f : 1.0f / all;
            const float lse = all == 0 ? kNoScore : (rows[i].reference - kLift) * kLn2 + __logf(all);
            const bool split = l.partial.splits > 1, inside = of_sequence < a.rows();
            const int64_t at =
                split ? l.partial.row(w.b, w.split, a.rows(), of_sequence) : w.b * a.rows() + of_sequence;
            float* const of_lse = split ? l.partial.lse : a.lse;
            if (inside && own == 0 && lane == 0 && of_lse) of_lse[at] = lse;
            const int64_t column = at * kLatent + own * kLatent / 2;
            if (split) {
#pragma unroll
                for (int n = 0; n < 32; ++n) {
                    const float2 v = {sums[n][2 * i] * by, sums[n][2 * i + 1] * by};
                    if (inside) *reinterpret_cast<float2*>(l.partial.out + column + 2 * lane + 8 * n) = v;
                }
            } else {
#pragma unroll
                for (int n = 0; n < 32; n += 4) {
                    uint32_t words[4];
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        words[j] = Pairs<type>::round(float2{sums[n + j][2 * i] * by, sums[n + j][2 * i + 1] * by});
                    const uint4 v = transposed_in_quad(words, lane);
                    if (inside)
                        *reinterpret_cast<uint4*>(static_cast<char*>(a.out) + (column + 8 * (n + lane)) * 2) = v;
                }
            }
        }
    }

  private:
    // What sums are multiplied by, of each of the thread's rows.
    struct Factors {
        float of[2];
    };

    // Scores of the own tile become p: in registers, and in shared memory for the other warpgroup, with the reference.
    // largest: of the thread's rows.
    __device__ Factors take_exponentials(const Scores& scores, const float (&largest)[2], uint32_t (&p)[4][4]) {
        Factors factors;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            factors.of[i] = rows[i].refer_to(largest[i], kSlack);
            if (threadIdx.x % 4 == 0) shared.reference[own][row + 8 * i] = rows[i].reference;
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float base = base_of(rows[i].reference, kLift);
                const float2 e = {exp2_of(scores[n][2 * i] - base), exp2_of(scores[n][2 * i + 1] - base)};
                rows[i].sum += e.x + e.y;
                p[n / 2][n % 2 * 2 + i] = Pairs<type>::round(e);
            }
        }
        put(p);
        publish_to_multiplications();
        warpgroup_arrives(own == 0 ? kOfFirst : kOfSecond, kMultiplyingThreads);
        return factors;
    }

    // All multiplications of sums have ended.
    __device__ void rescale(const Factors& factors) {
        if (factors.of[0] == 1.0f && factors.of[1] == 1.0f) return;
#pragma unroll
        for (auto& group : sums) {
            group[0] *= factors.of[0], group[1] *= factors.of[0];
            group[2] *= factors.of[1], group[3] *= factors.of[1];
        }
    }

    __device__ void multiply_own_values(const uint32_t (&p)[4][4]) { multiply_values<type>(sums, p, shared, own, own); }
    // All multiplications of sums have ended.
    __device__ void multiply_others_values(uint32_t parity) {
        Factors factors;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            factors.of[i] = rows[i].refer_to(shared.reference[kOther][row + 8 * i], 0);
        }
        rescale(factors);
        wait_for(&shared.full[kOther][own], parity);
        multiply_values<type>(sums, swizzled_rows(shared.keys[kOther][kRopePanel]), shared, kOther, own);
    }

    // Barrier: the queries have been multiplied for the last time.
    __device__ void release_queries(bool last) { arrive_if(last && threadIdx.x % kWarp == 0, &shared.q_empty); }

    // The own half of a buffer, whose values the last multiplication read.
    __device__ void release(int buffer) {
        wait_for_multiplications<0>();
        arrive_if(threadIdx.x % kWarp == 0, &shared.empty[buffer][own]);
    }

    // Of the own tile, which begins at token `first`; and the largest of each of the thread's rows.
    __device__ void scale_and_mask(Scores& scores, int first, float (&largest)[2]) {
        const int column = first + 2 * (threadIdx.x % 4);
        const bool masks = first + kTileTokens > least_seen;
        largest[0] = largest[1] = kNoScore;
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
#pragma unroll
        for (float& v : largest) v = max_of_row(v);
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

    Memory& shared;
    const int row;  // the thread's rows of the tile: row and row + 8
    int seen[2], least_seen;
    float factor;
    RowState rows[2];
    Values sums;
};

// All the CTA's work. As feed.h has it: splits without tokens are left out, and are known as such by the merge.
template <class A>
__device__ inline void attend_to_all(Memory& shared, const Launch& l) {
    // In one register: parities of the next waits, of the buffers and of the queries, which the first time come otherwise;
    // and whose turn it is.
    constexpr uint32_t kQueries = 4, kFirst = 8, kTurn = 16;
    uint32_t parities = kFirst;
    for (uint32_t item = blockIdx.x; item < l.items; item += gridDim.x) {
        const Work w = work_of<kTileTokens>(l, kTileRows, item);
        const bool empty = w.begin >= w.end;
        if (empty && l.partial.splits > 1) continue;
        if (!empty && parities & kFirst) {
            parities ^= kFirst;
            feed_queries<kMultiplyingThreads>(shared, l, w, threadIdx.x - kFeeders);
            // Barrier: the queries are there.
            warpgroups_meet(kQueriesMeet, kMultiplyingThreads);
        } else if (!empty) {
            wait_for(&shared.q_full, parities / kQueries & 1);
            parities ^= kQueries;
        }
        A attend(shared, l, w);
        for (int first = w.begin; first < w.end; first += kBuffers * kTileTokens) attend.pair(first, w.end, parities);
        attend.finish(l, w, parities / kTurn & 1);
        parities ^= kTurn;
    }
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
        make_barrier(&shared.q_full, kFeeders);
        make_barrier(&shared.q_empty, kBuffers * kWarpsOfWarpgroup);
        publish_barriers();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    // Barrier: mbarriers are used below by threads that did not initialise them.
    __syncthreads();
    // The warpgroups that load are the first.
    if (threadIdx.x < kFeeders) {
        leave_registers<kFewRegisters>();
        feed(shared, l, &map);
    } else {
        take_registers<kManyRegisters>();
        if (threadIdx.x < kFeeders + kWarpgroup) attend_to_all<Attend<type, 0>>(shared, l);
        else attend_to_all<Attend<type, 1>>(shared, l);
    }
#endif
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
