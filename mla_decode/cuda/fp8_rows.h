// The rows' part of the kernel of caches of codes: online softmax of scores [64 tokens, rows] as wgmma leaves them.
//
// Lane 4 `token` + `pair` has tokens 16 `warp` + `token` and + 8 of the tile, of rows 8 n + 2 `pair` and + 1: n is a
// group. What all tokens of a row have in common lies in one lane for each group.
#pragma once

#include "fp8_shape.h"
#include "online.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

constexpr int kAllMeet = 8, kTeamMeets = 1;  // barriers: of all that multiply, of team 0

__device__ inline void write_transposed(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    ROCM_FP8_HOPPER("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
                    "r"(c), "r"(d) : "memory");
}
template <Format format, DType type, int kRows>
class Fp8Rows {
  protected:
    using Roles = Fp8Roles<format, kRows>;
    using Memory = Fp8Memory<format, kRows>;
    static constexpr bool kMixed = format == Format::mixed;
    static constexpr DType kMath = cuda::kMath<format, type>;
    static constexpr int kGroups = kRows / 8;
    // Exponentials of float16 are lifted by so many powers of two: it has few below 1.
    static constexpr float kLift = kMath == DType::f16 ? 15 : 0;

    __device__ Fp8Rows(Memory& shared, const Launch& l, const Work& w)
        : shared(shared),
          l(l),
          w(w),
          warpgroup(__shfl_sync(kWholeWarp, int(threadIdx.x) / kWarpgroup, 0)),
          warp(__shfl_sync(kWholeWarp, int(threadIdx.x) / kWarp % kWarpsOfWarpgroup, 0)),
          token(threadIdx.x % kWarp / 4),
          pair(threadIdx.x % 4) {
        least_seen = l.args.causal ? max(0, w.length - l.args.queries + 1) : w.length;
        factor = l.args.softmax_scale * kLog2E * cache_scale();
    }

    __device__ float cache_scale() const {
        if constexpr (kMixed) return 1.0f;
        else return load_float(l.args.cache.scale);
    }
    __device__ int team() const { return warpgroup / Roles::kTeam; }
    __device__ int member() const { return warpgroup % Roles::kTeam; }
    __device__ int row_of(int n, int c) const { return 8 * n + 2 * pair + c; }
    __device__ void team_meets() const { warpgroups_meet(kTeamMeets + team(), Roles::kTeam * kWarpgroup); }

    // Of each row over the lanes that have tokens of it; lane 4 n + pair gets those of group n % kGroups. Lanes halve
    // the groups that they still have, as long as they have several.
    template <class Join>
    __device__ float2 over_tokens(float (&v)[kGroups][2], const Join& join) const {
#pragma unroll
        for (int half = kGroups / 2; half > 0; half /= 2) {
            const bool upper = token & half;
#pragma unroll
            for (int n = 0; n < half; ++n) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const float sent = upper ? v[n][c] : v[n + half][c], kept = upper ? v[n + half][c] : v[n][c];
                    v[n][c] = join(kept, __shfl_xor_sync(kWholeWarp, sent, 4 * half));
                }
            }
        }
#pragma unroll
        for (int distance = 4 * kGroups; distance < kWarp; distance *= 2) {
#pragma unroll
            for (float& own : v[0]) own = join(own, __shfl_xor_sync(kWholeWarp, own, distance));
        }
        return {v[0][0], v[0][1]};
    }
    __device__ void share(float2 of_group) {
        if (token < kGroups) *reinterpret_cast<float2*>(&shared.met[warpgroup][warp][row_of(token, 0)]) = of_group;
    }

    __device__ void scale_and_mask(float (&scores)[kGroups][4], int first) {
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float of_row = factor * shared.lifted[row_of(n, c)];
                scores[n][c] *= of_row, scores[n][c + 2] *= of_row;
            }
        }
        if (first + kTileTokens > least_seen) mask(scores, first + warp * 16 + token);
        float most[kGroups][2];
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) most[n][c] = fmaxf(scores[n][c], scores[n][c + 2]);
        }
        share(over_tokens(most, [](float a, float b) { return fmaxf(a, b); }));
    }

    // own: the lane's first token.
    __device__ void mask(float (&scores)[kGroups][4], int own) const {
        int row = w.row + 2 * pair;
        asm volatile("" : "+r"(row));  // what follows from it is rare, and no loop's constant
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int seen = seen_by_row(l, w, row + 8 * n + c);
                if (own >= seen) scores[n][c] = kNoScore;
                if (own + 8 >= seen) scores[n][c + 2] = kNoScore;
            }
        }
    }

    // A lane has the largest scores of the rows of one group; lane 4 n + pair has those of group n. Returns whether
    // sums of values are to be multiplied by `by`. count: the team's tiles.
    __device__ bool take_largest(int count, float (&by)[kGroups][2]) {
        const int row = row_of(token % kGroups, 0);
        float kept[2], all[2] = {kNoScore, kNoScore};
#pragma unroll
        for (int i = 0; i < Roles::kTeam; ++i) {
            if (i >= count) break;
#pragma unroll
            for (int other = 0; other < kWarpsOfWarpgroup; ++other) {
                const float (&of)[kRows] = shared.met[team() * Roles::kTeam + i][other];
                all[0] = fmaxf(all[0], of[row]), all[1] = fmaxf(all[1], of[row + 1]);
            }
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) kept[c] = raise(largest[c], all[c]), sum[c] *= kept[c];
        if (!__any_sync(kWholeWarp, kept[0] != 1.0f || kept[1] != 1.0f)) return false;
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) by[n][c] = of_group(kept[c], n);
        }
        return true;
    }
    __device__ float of_group(float v, int n) const { return __shfl_sync(kWholeWarp, v, 4 * n + pair); }

    __device__ void put_exponentials(const float (&scores)[kGroups][4]) {
        uint32_t rounded[kGroups][2];  // tokens `token` and token + 8
        float added[kGroups][2] = {};
        const float own_base[2] = {base_of(largest[0], kLift), base_of(largest[1], kLift)};
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
            const float base[2] = {of_group(own_base[0], n), of_group(own_base[1], n)};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 e = {exp2_of(scores[n][2 * i] - base[0]), exp2_of(scores[n][2 * i + 1] - base[1])};
                added[n][0] += e.x, added[n][1] += e.y;
                rounded[n][i] = Pairs<kMath>::round(e);
            }
        }
        const float2 of_warp = over_tokens(added, [](float a, float b) { return a + b; });
        sum[0] += of_warp.x, sum[1] += of_warp.y;
        const int lane = threadIdx.x % kWarp, matrix = lane / 8;
#pragma unroll
        for (int n = 0; n < kGroups; n += 2) {
            const int row = 8 * (n + matrix / 2) + lane % 8;
            write_transposed(shared_address(shared.p[warpgroup] + swizzled(row, 2 * warp + matrix % 2)), rounded[n][0],
                             rounded[n][1], rounded[n + 1][0], rounded[n + 1][1]);
        }
    }

    // All warpgroups' sums of p. by: what the own sums of values are multiplied by.
    __device__ void meet_sums(float (&by)[kGroups][2]) {
        // Barrier: the largest scores of the last tile have been read.
        warpgroups_meet(kAllMeet, Roles::kMultiplying);
        share({sum[0], sum[1]});
        if (warp == 0 && member() == 0 && token < kGroups)
            *reinterpret_cast<float2*>(&shared.team_largest[team()][row_of(token, 0)]) = {largest[0], largest[1]};
        // Barrier: the sums are there, and no warpgroup reads codes any more.
        warpgroups_meet(kAllMeet, Roles::kMultiplying);
        const float scale = cache_scale();
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int row = row_of(n, c);
                float most = kNoScore, total = 0;
#pragma unroll
                for (int t = 0; t < Roles::kTeams; ++t) most = fmaxf(most, shared.team_largest[t][row]);
                const auto share_of = [&](int of) {
                    const float its = shared.team_largest[of][row];
                    return its == most ? 1.0f : exp2_of(its - most);
                };
#pragma unroll
                for (int i = 0; i < Roles::kWarpgroups; ++i) {
                    float all = 0;
#pragma unroll
                    for (int other = 0; other < kWarpsOfWarpgroup; ++other) all += shared.met[i][other][row];
                    total += all * share_of(i / Roles::kTeam);
                }
                by[n][c] = total == 0 ? 0.0f : scale / total * share_of(team());
                if (warpgroup == 0 && warp == 0 && token == 0) store_lse(row, most, total);
            }
        }
    }

    // Where a row of the tile stands in the result or in a split's part; -1 behind the last one.
    __device__ int64_t place_of(int row) const {
        const int of_sequence = w.row + row, rows = l.args.rows();
        if (of_sequence >= rows) return -1;
        return l.partial.splits > 1 ? l.partial.row(w.b, w.split, rows, of_sequence) : w.b * rows + of_sequence;
    }
    __device__ void store_lse(int row, float most, float total) const {
        const int64_t at = place_of(row);
        float* const to = l.partial.splits > 1 ? l.partial.lse : l.args.lse;
        if (at >= 0 && to) to[at] = total == 0 ? kNoScore : (most - kLift) * kLn2 + __logf(total);
    }

    Memory& shared;
    const Launch& l;
    const Work& w;
    const int warpgroup, warp, token, pair;
    int least_seen;
    float factor;
    // Of the rows of one group, see take_largest; the sum is the warp's.
    float largest[2] = {kNoScore, kNoScore}, sum[2] = {};
};

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
