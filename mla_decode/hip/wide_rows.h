// A wave of 32 rows, by matrix instructions of 32 x 32: one wave a SIMD. The sums of 512 columns are all of its
// accumulation registers; its queries take 144 others.
//
// A tile is 32 tokens, in two places of LDS. As with 16 rows, what keys x queries gives is what values x exponentials
// takes: lane 32 h + j has row j, and of 8 tokens the 4 h ... + 3. So those of the next 8 tokens become exponentials
// while values are multiplied, and only a tile's first ones are waited for.
//
// Columns of the sums: of 128 columns b * 128, column 4 m + n is sums[b][n][r] of lane half h, where the matrix
// instruction has its row m = 8 (r / 4) + 4 h + r % 4.
#pragma once

#include "rows.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

using f32x16 = float __attribute__((ext_vector_type(16)));

__device__ inline void made_first(f32x16& sums) { asm volatile("" : "+a"(sums)::"memory"); }

// Matrix instructions as assembly: of builtins the compiler takes all results to the same kind of registers, and moves
// scores to and fro. It sees no wait states then: two from what writes an operand to its use are in here, those before
// results are read in settle().
//
// Of a sum in accumulation registers: values x exponentials.
template <DType type>
__device__ inline void multiply_wide(f32x16& sums, u32x2 left, u32x2 right) {
    if constexpr (type == DType::f16) {
        asm("s_nop 1\n\tv_mfma_f32_32x32x8_f16 %0, %1, %2, %0" : "+a"(sums) : "v"(left), "v"(right));
    } else {
        asm("s_nop 1\n\tv_mfma_f32_32x32x8_bf16 %0, %1, %2, %0" : "+a"(sums) : "v"(left), "v"(right));
    }
}
// Of keys x queries, a chunk's instruction n: two on gfx942, one of twice the k on gfx950. The first makes the sum: one
// of zeros would be kept in registers for it.
#if defined(__gfx950__)
constexpr int kOfAChunk = 1;
#define ROCM_FP8_WIDE "s_nop 1\n\tv_mfma_f32_32x32x16_"
__device__ inline u32x4 operand_of(u32x4 chunk, int) { return chunk; }
#else
constexpr int kOfAChunk = 2;
#define ROCM_FP8_WIDE "s_nop 1\n\tv_mfma_f32_32x32x8_"
__device__ inline long operand_of(u32x4 chunk, int n) { return half_of(chunk, n); }
#endif
template <DType type>
__device__ inline void multiply_chunk(f32x16& scores, u32x4 keys, u32x4 queries, int n, bool first) {
    const auto left = operand_of(keys, n), right = operand_of(queries, n);
    if constexpr (type == DType::f16) {
        if (first) asm(ROCM_FP8_WIDE "f16 %0, %1, %2, 0" : "=&v"(scores) : "v"(left), "v"(right));
        else asm(ROCM_FP8_WIDE "f16 %0, %1, %2, %0" : "+v"(scores) : "v"(left), "v"(right));
    } else {
        if (first) asm(ROCM_FP8_WIDE "bf16 %0, %1, %2, 0" : "=&v"(scores) : "v"(left), "v"(right));
        else asm(ROCM_FP8_WIDE "bf16 %0, %1, %2, %0" : "+v"(scores) : "v"(left), "v"(right));
    }
    asm volatile("" : "+v"(scores)::"memory");  // before later reads of LDS, as made_first
}
#undef ROCM_FP8_WIDE
// Zeros, of 0 * 0 + 0: as numbers of C++ they would be in the other registers first.
__device__ inline void clear_wide(f32x16& sums) {
    asm volatile("s_nop 1\n\tv_mfma_f32_32x32x8_f16 %0, %1, %1, 0" : "=a"(sums) : "v"(0l));
}
// Results of instructions before may be read.
__device__ inline void settle() {
    __builtin_amdgcn_sched_barrier(0);
    asm volatile("s_nop 15" ::: "memory");
    __builtin_amdgcn_sched_barrier(0);
}

// keys_ahead: reads of LDS that are ahead of the multiplications.
template <DType type, int keys_ahead>
class WideRows {
  protected:
    static constexpr int kSteps = kWidth / 16, kBlocks = kLatent / 128, kKeysAhead = keys_ahead;
    using Softmax = attention::OnlineSoftmax<type, 32>;
    u32x4 q[kSteps];
    f32x16 sums[kBlocks][4];
    int32_t seen;  // the tokens before it count
    float scale;   // of scores, to logarithms to base 2

  public:
    static constexpr int kRows = 32, kRegion = kRows * 64 * 4;
    static constexpr int kColumnBlocks = kLatent / 64;
    Softmax softmax;

    __device__ void start(const Launch& launch, const Item& item, int first, int32_t length, int32_t end, float by) {
        const uint32_t lane = fresh_lane();
        const OwnRow own = own_row(launch, item, first + int(lane % 32), length, end);
        seen = own.seen, scale = by;
        const uint8_t* const from = own.q + lane / 32 * kNumbers * 2;
#pragma unroll
        for (int c = 0; c < kSteps; ++c) q[c] = load_unaligned(from + c * 32);
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x16& each : block) clear_wide(each);
        }
    }
    // As of 16 rows.
    __device__ void ready() {
#pragma unroll
        for (u32x4& eight : q) have_computed(eight);
    }

    // A tile. first, second: the places of its halves. The wave has the SIMD to itself, so all else is done while the
    // matrix unit is busy, a little behind each instruction:
    //
    //     during_keys(c, n), c < kKeySteps    n = 0, 1: two instructions a step
    //     during_values(i), i < kValueSteps   four instructions a step; the second half's are from kValueSteps / 2 on
    //     between()                           ahead of those
    static constexpr int kKeySteps = kSteps, kHalfSteps = 2 * kBlocks, kValueSteps = 2 * kHalfSteps;
    template <class Keys, class Between, class Values>
    __device__ void attend(const char* first, const char* second, int32_t tile, const Keys& during_keys,
                           const Between& between, const Values& during_values) {
        const uint32_t lane = fresh_lane(), j = lane % 32, h = lane / 32;
        f32x16 scores = keys_by_queries(j < 16 ? lds_address(first) : lds_address(second), j, h, during_keys);
        const uint32_t of_first = first_value(first), of_second = of_first + uint32_t(second - first);
        const auto read = [&](u32x2(&token)[4], int step, int r) {
            read_value(token[r], step < kHalfSteps ? of_first : of_second, step % kHalfSteps, r);
        };
        // Read while exponentials are computed.
        u32x2 token[4], turned[2][4];
#pragma unroll
        for (int r = 0; r < 4; ++r) read(token, 0, r);
        settle();
        refer(scores, tile);
        f32x4 p;
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = softmax.exponential(scores[i]);
#pragma unroll
        for (int n = 0; n < 4; ++n) turned[0][n] = column_of(token, n);
#pragma unroll
        for (int r = 0; r < 4; ++r) read(token, 1, r);
        u32x2 exponentials = softmax.rounded(p);
        __builtin_amdgcn_sched_barrier(0);
#pragma unroll
        for (int step = 0; step < kValueSteps; ++step) {
            if (step == kHalfSteps) between();
            const int b = step % kBlocks, later = (step / kBlocks + 1) * 4;  // scores of the next eight tokens
            const bool more = step + 1 < kValueSteps, reads = step + 2 < kValueSteps;
            u32x2(&now)[4] = turned[step % 2], (&next)[4] = turned[(step + 1) % 2];
            const auto multiply = [&](int n) {
                multiply_wide<type>(sums[b][n], now[n], exponentials);
                made_first(sums[b][n]);
                __builtin_amdgcn_sched_barrier(0);
            };
            multiply(0);
            if (later < 16) p[b] = softmax.exponential(scores[later % 16 + b]);
            __builtin_amdgcn_sched_barrier(0);
            multiply(1);
            during_values(step);
            __builtin_amdgcn_sched_barrier(0);
            multiply(2);
            if (more) {
#pragma unroll
                for (int n = 0; n < 3; ++n) next[n] = column_of(token, n);
            }
            __builtin_amdgcn_sched_barrier(0);
            multiply(3);
            if (more) next[3] = column_of(token, 3);
            if (reads) {
#pragma unroll
                for (int r = 0; r < 4; ++r) read(token, step + 2, r);
            }
            if (b + 1 == kBlocks && later < 16) exponentials = softmax.rounded(p);
            __builtin_amdgcn_sched_barrier(0);
        }
    }

    __device__ void rescale(float factor) {
        settle();
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x16& each : block) {
                made_first(each);
                each *= factor;
                made_first(each);
                __builtin_amdgcn_sched_barrier(0);
            }
        }
    }

  protected:
    // Makes scores logarithms to base 2, by which the reference may be taken anew.
    __device__ void refer(f32x16& scores, int32_t tile) {
        float by = scale;
        have_computed(by);
        scores *= by;
        const int32_t left = seen - tile * 32 - int32_t(fresh_lane() / 32 * 4);  // of this lane's tokens
        if (any_lane(left < 28)) [[unlikely]] {
            keep_branch();
#pragma unroll
            for (int r = 0; r < 16; ++r) scores[r] = r / 4 * 8 + r % 4 < left ? scores[r] : -__builtin_inff();
        }
        float largest = scores[0];
#pragma unroll
        for (int r = 1; r < 16; ++r) largest = __builtin_fmaxf(largest, scores[r]);
        softmax.refer_to(largest, [&](float factor) { rescale(factor); });
    }
    // tile: the address of the place that has token j.
    template <class During>
    __device__ f32x16 keys_by_queries(uint32_t tile, uint32_t j, uint32_t h, const During& during) const {
        const uint32_t first = tile + place(j % 16, h);
        // Two chunks further is in bits 5 and 6 of the place: rows of LDS are multiples of 128 bytes.
        const auto read = [&](int c) { return of_lds<u32x4>((first ^ c % 4 * 2 * kChunk) + c / 4 * 128); };
        u32x4 keys[kKeysAhead];
#pragma unroll
        for (int c = 0; c < kKeysAhead; ++c) keys[c] = read(c);
        f32x16 scores;
#pragma unroll
        for (int c = 0; c < kSteps; ++c) {
            u32x4& now = keys[c % kKeysAhead];
            multiply_chunk<type>(scores, now, q[c], 0, c == 0);
            __builtin_amdgcn_sched_barrier(0);
            during(c, 0);
            __builtin_amdgcn_sched_barrier(0);
            if (kOfAChunk == 2) multiply_chunk<type>(scores, now, q[c], 1, false);
            during(c, 1);
            if (c + kKeysAhead < kSteps) now = read(c + kKeysAhead);
            __builtin_amdgcn_sched_barrier(0);
        }
        return scores;
    }
    // Of step `step` of a half: tokens step / kBlocks * 8 + 4 h + r, columns step % kBlocks * 128 + 4 j ... + 3.
    __device__ static void read_value(u32x2& token, uint32_t first, int step, int r) {
        const int at = step / kBlocks * 8 * kTokenBytes + step % kBlocks * 256;
        token = of_lds<u32x2>((first ^ r * kChunk) + r * kTokenBytes + at);
    }
    __device__ static uint32_t first_value(const char* lds) {
        const uint32_t lane = fresh_lane(), j = lane % 32, h = lane / 32;
        return lds_address(lds) + place(4 * h, j / 2) + j % 2 * 8;
    }
    // Column n of four, of four tokens.
    __device__ static u32x2 column_of(const u32x2 (&token)[4], int n) {
        const auto pair = [&](int r) {
            const uint32_t first = token[r][n / 2], second = token[r + 1][n / 2];
            return n % 2 ? halves_of<1>(first, second) : halves_of<0>(first, second);
        };
        return {pair(0), pair(2)};
    }

  public:
    // As of 16 rows: 64 columns, [32 rows][16 chunks of four].
    __device__ void put(char* region, int b, float factor) const {
        const uint32_t lane = fresh_lane(), j = lane % 32, h = lane / 32;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int r = b % 2 * 8 + i;
            const auto& of = sums[b / 2];
            const f32x4 four{of[0][r], of[1][r], of[2][r], of[3][r]};
            const uint32_t chunk = uint32_t(i / 4 * 8 + i % 4) + 4 * h;
            *reinterpret_cast<f32x4*>(region + j * 256 + (chunk ^ j % 16) * 16) = four * factor;
        }
    }
    // The sums may be read. Where branches meet only assembly may use them: else the compiler has them in the other
    // registers there, of which there are not enough.
    __device__ void finished() {
        settle();
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x16& each : block) made_first(each);
        }
    }
    __device__ void clear(bool row) {
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x16& each : block) {
                made_first(each);
                each = row ? f32x16(0) : each;
                made_first(each);
                __builtin_amdgcn_sched_barrier(0);
            }
        }
    }
};

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
