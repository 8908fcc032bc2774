// A tile that came through registers, against a wave's rows. Values are turned there, by v_perm.
#pragma once

#include "rows.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

// Low halves, or high ones, of two words.
template <int which>
__device__ inline uint32_t halves_of(uint32_t first, uint32_t second) {
    constexpr uint32_t kLow = 0x05040100u, kHigh = 0x07060302u;
    return __builtin_amdgcn_perm(second, first, which ? kHigh : kLow);
}
// Column n of four, of four tokens.
__device__ inline u32x2 column_of(const u32x2 (&token)[4], int n) {
    const auto pair = [&](int r) {
        const uint32_t first = token[r][n / 2], second = token[r + 1][n / 2];
        return n % 2 ? halves_of<1>(first, second) : halves_of<0>(first, second);
    };
    return {pair(0), pair(2)};
}

struct Nothing {
    __device__ void keys(int, int) const {}
    __device__ void between() const {}
    __device__ void values(int) const {}
};

// 16 rows: other waves on the SIMD, or other groups', fill the gaps.
template <const Form& form, DType type>
__device__ inline void attend(Rows<form, type, Tile<16>>& rows, const Tile<16>& in_lds, int32_t tile) {
    typename Rows<form, type, Tile<16>>::Scores scores;
    rows.score(scores, in_lds.keys(), Nothing());
    constexpr int kSteps = Tile<16>::kValueSteps;
    u32x2 values[form.values_ahead][4];
    const auto read = in_lds.values();
    const auto ask = [&](int step) {
#pragma unroll
        for (int r = 0; r < 4; ++r) values[step % form.values_ahead][r] = read(step, r);
    };
    // Read while exponentials are computed.
#pragma unroll
    for (int step = 0; step < form.values_ahead; ++step) ask(step);
    rows.refer(scores, tile);
    const u32x2 exponentials = rows.exponentials(scores, 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        u32x2 turned[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) turned[n] = column_of(values[step % form.values_ahead], n);
        if (step + form.values_ahead < kSteps) ask(step + form.values_ahead);
#pragma unroll
        for (int n = 0; n < 4; ++n) multiply_values<type>(rows.sums[4 * step + n], turned[n], exponentials);
#pragma unroll
        for (int n = 0; n < 4; ++n) made_first(rows.sums[4 * step + n]);
        keep_order();
    }
}

// 32 rows. The wave has the SIMD to itself, so all else is done while the matrix unit is busy, a little behind each
// instruction:
//
//     during.keys(step, n)     n = 0, 1, step < Tile::kKeySteps
//     during.between()         ahead of the second half's values
//     during.values(step)      step < Tile::kValueSteps, four instructions a step; the second half's are from the middle on
//
// Scores of the next 8 tokens become exponentials while values are multiplied, so only a tile's first ones are waited for.
template <const Form& form, DType type, class During>
__device__ inline void attend(Rows<form, type, Tile<32>>& rows, const Tile<32>& in_lds, int32_t tile,
                              const During& during) {
    typename Rows<form, type, Tile<32>>::Scores scores;
    rows.score(scores, in_lds.keys(), during);
    constexpr int kBlocks = Tile<32>::kBlocks, kSteps = Tile<32>::kValueSteps;
    const auto read = in_lds.values();
    u32x2 token[4], turned[2][4];
    const auto ask = [&](int step) {
#pragma unroll
        for (int r = 0; r < 4; ++r) token[r] = read(step, r);
    };
    // Read while exponentials are computed.
    ask(0);
    settle();
    rows.refer(scores, tile);
    f32x4 p;
    u32x2 exponentials = rows.exponentials(scores, 0);
#pragma unroll
    for (int n = 0; n < 4; ++n) turned[0][n] = column_of(token, n);
    ask(1);
    keep_order();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps / 2) during.between();
        const int b = step % kBlocks, later = (step / kBlocks + 1) * 4;  // scores of the next eight tokens
        const bool more = step + 1 < kSteps;
        const auto multiply = [&](int n) {
            multiply_values<type>(rows.sums[4 * b + n], turned[step % 2][n], exponentials);
            keep_order();
        };
        const auto turn = [&](int n) {
            if (more) turned[(step + 1) % 2][n] = column_of(token, n);
        };
        multiply(0);
        if (later < 16) p[b] = rows.softmax.exponential(scores[later + b]);
        keep_order();
        multiply(1);
        during.values(step);
        keep_order();
        multiply(2);
        turn(0), turn(1), turn(2);
        keep_order();
        multiply(3);
        turn(3);
        keep_order();  // its registers are free for the next read
        if (step + 2 < kSteps) ask(step + 2);
        if (b + 1 == kBlocks && later < 16) exponentials = rows.softmax.rounded(p);
        keep_order();
    }
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
