// The simple kernel: for chips without wgmma, and for operands that are not at multiples of 16 bytes.
//
// A CTA of eight warps has 16 rows and takes 32 tokens at a time to shared memory. Scores: a warp multiplies 8 tokens
// by half of the 576. Values: a warp has 64 columns.
#pragma once

#include "../../common/cuda/mma.h"
#include "../../common/exponential.h"
#include "codes.h"
#include "shape.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

constexpr int kFallbackRows = kFallbackForm.rows, kFallbackTokens = kFallbackForm.tokens;
constexpr int kFallbackThreads = 256, kFallbackWarps = kFallbackThreads / kWarp;
constexpr int kPadded = kWidth + 8, kPaddedTokens = kFallbackTokens + 8;  // rows of other banks than their neighbours'
constexpr int kEights = kWidth / 8;

struct FallbackMemory {
    alignas(16) uint16_t q[kFallbackRows][kPadded], keys[kFallbackTokens][kPadded], p[kFallbackRows][kPaddedTokens];
    float scores[2][kFallbackRows][kFallbackTokens + 1];
    float kept[kFallbackRows], sum[kFallbackRows], largest[kFallbackRows];
};

template <class T>
__device__ inline T read_bytes(const uint8_t* p) {
    uint32_t v = 0;
#pragma unroll
    for (int i = 0; i < int(sizeof(T)); ++i) v |= uint32_t(p[i]) << 8 * i;
    return T(v);
}

template <DType type>
__device__ inline uint16_t narrowed(float v) {
    return uint16_t(Pairs<type>::round({v, v}));
}

// Number `column` of a token as `type`.
template <Format format, DType type>
__device__ inline uint16_t number_of(const uint8_t* token, int column) {
    if constexpr (format == Format::wide) return reinterpret_cast<const uint16_t*>(token)[column];
    if constexpr (format == Format::mixed) {
        if (column >= kLatent) {
            const uint32_t bits = read_bytes<uint16_t>(token + kRopeAt + 2 * (column - kLatent));
            return narrowed<type>(bits_float(bits << 16));
        }
        const float scale = bits_float(read_bytes<uint32_t>(token + kScalesAt + column / kScaleGroup * 4));
        return narrowed<type>(fp8_decode<DType::e4m3fn>(token[column]) * scale);
    }
    return narrowed<type>(fp8_decode<DType::e4m3fn>(token[column]));
}

// Numbers 8 i to 8 i + 7.
template <Format format, DType type, bool vectors>
__device__ inline uint4 eight_of(const uint8_t* token, int i) {
    if constexpr (!vectors) {
        uint4 v{};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const uint32_t low = number_of<format, type>(token, 8 * i + 2 * w);
            set_word(v, w, low | uint32_t(number_of<format, type>(token, 8 * i + 2 * w + 1)) << 16);
        }
        return v;
    } else if constexpr (format == Format::wide) {
        return load(token + 16 * i);
    } else {
        constexpr bool kMixed = format == Format::mixed;
        if (kMixed && i >= kLatent / 8) return from_bf16<type>(load(token + kRopeAt + 16 * (i - kLatent / 8)));
        const uint2 codes = *reinterpret_cast<const uint2*>(token + 8 * i);
        const float scale = kMixed ? load_float(token + kScalesAt + i * 8 / kScaleGroup * 4) : 1.0f;
        return joined(decoded<type, kMixed>(codes.x, scale), decoded<type, kMixed>(codes.y, scale));
    }
}

__device__ inline void load_matrices(uint32_t (&r)[4], const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}
// Two matrices, of rows as they lie or turned.
template <bool turned>
__device__ inline Four load_two(const void* p) {
    Four r;
    if constexpr (turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r.low), "=r"(r.high)
                     : "r"(shared_address(p)));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r.low), "=r"(r.high)
                     : "r"(shared_address(p)));
    return r;
}

template <DType type>
__device__ inline void multiply_rows(Sums& sums, const uint32_t (&a)[4], Four b) {
    const Four first{a[0], a[2]}, second{a[1], a[3]};
    if constexpr (type == DType::bf16) multiply_bf16(sums, first, second, b);
    else multiply(sums, first, second, b);
}

template <Format format, DType type, bool vectors>
__global__ __launch_bounds__(kFallbackThreads) void mla_decode_fallback(const __grid_constant__ Launch l,
                                                                        const __grid_constant__ CUtensorMap) {
    auto& shared = dynamic_shared<FallbackMemory>();
    const Args& a = l.args;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const Work w = work_of<kFallbackTokens>(l, kFallbackRows, blockIdx.x);
    if (l.partial.splits > 1 && w.begin >= w.end) return;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const attention::PagedRows tokens = rows_of(l, w.b);
    for (int i = threadIdx.x; i < kFallbackRows * kEights; i += kFallbackThreads) {
        const int r = i / kEights, column = i % kEights;
        uint4 v{};
        if (w.row + r < a.rows()) {
            const uint32_t query = divide(uint32_t(w.row + r), l.heads), head = w.row + r - query * l.heads.divisor;
            const int64_t at = w.b * a.q_batch_stride + query * a.q_query_stride + head * a.q_head_stride;
            v = eight_of<Format::wide, type, vectors>(static_cast<const uint8_t*>(a.q) + at * 2, column);
        }
        *reinterpret_cast<uint4*>(&shared.q[r][column * 8]) = v;
    }
    if (threadIdx.x < kFallbackRows) shared.largest[threadIdx.x] = -__builtin_inff(), shared.sum[threadIdx.x] = 0;
    const float cache_scale = format == Format::fp8 ? load_float(a.cache.scale) : 1.0f;
    const float factor = a.softmax_scale * cache_scale;
    Sums sums[8] = {};
    for (int first = w.begin; first < w.end; first += kFallbackTokens) {
        __syncthreads();  // closes: the tokens before have been read
        for (int i = threadIdx.x; i < kFallbackTokens * kEights; i += kFallbackThreads) {
            const int n = i / kEights, column = i % kEights, token = first + n;
            uint4 v{};
            if (token < w.end)
                v = eight_of<format, type, vectors>(tokens.row_of(token, tokens.entry_of(token)), column);
            *reinterpret_cast<uint4*>(&shared.keys[n][column * 8]) = v;
        }
        __syncthreads();  // closes: the tokens are there
        {
            constexpr int kStep = 16, kHalf = kWidth / 2;
            const int n = warp % 4 * 8, half = warp / 4;
            Sums s = {};
            for (int k = half * kHalf; k < (half + 1) * kHalf; k += kStep) {
                uint32_t q[4];
                load_matrices(q, &shared.q[lane % 16][k + lane / 16 * 8]);
                multiply_rows<type>(s, q, load_two<false>(&shared.keys[n + lane % 8][k + lane / 8 % 2 * 8]));
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) shared.scores[half][g + e / 2 * 8][n + 2 * t + e % 2] = s[e];
        }
        __syncthreads();  // closes: both halves of the scores are there
        {
            // Sixteen lanes have a row, each two tokens.
            const int r = threadIdx.x / 16, n = threadIdx.x % 16;
            const int seen = seen_by_row(l, w, w.row + r);
            float s[2], largest = -__builtin_inff();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int token = n + 16 * i;
                s[i] = (shared.scores[0][r][token] + shared.scores[1][r][token]) * factor;
                if (first + token >= seen) s[i] = -__builtin_inff();
                largest = fmaxf(largest, s[i]);
            }
#pragma unroll
            for (int d = 1; d < 16; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, d));
            const float before = shared.largest[r], all = fmaxf(before, largest);
            const float base = all == -__builtin_inff() ? 0.0f : all;
            float sum = 0;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float e = exp_of_negative(s[i] - base);
                sum += e;
                shared.p[r][n + 16 * i] = narrowed<type>(e);
            }
#pragma unroll
            for (int d = 1; d < 16; d *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, d);
            const float kept = before == -__builtin_inff() ? 1.0f : exp_of_negative(before - base);
            __syncwarp();  // closes: the row's lanes have read what the first one writes
            if (n == 0) shared.largest[r] = all, shared.kept[r] = kept, shared.sum[r] = shared.sum[r] * kept + sum;
        }
        __syncthreads();  // closes: p is there
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[j][e] *= shared.kept[g + e / 2 * 8];
        }
        for (int k = 0; k < kFallbackTokens; k += 16) {
            uint32_t p[4];
            load_matrices(p, &shared.p[lane % 16][k + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 8; ++j)
                multiply_rows<type>(sums[j], p, load_two<true>(&shared.keys[k + lane % 16][warp * 64 + j * 8]));
        }
    }
    __syncthreads();  // closes: the last sums are there
    for (int i = 0; i < 2; ++i) {
        const int r = g + 8 * i, of_sequence = w.row + r;
        if (of_sequence >= a.rows()) continue;
        const float all = shared.sum[r], by = all == 0 ? 0.0f : cache_scale / all;
        const bool split = l.partial.splits > 1;
        const int64_t at = split ? l.partial.row(w.b, w.split, a.rows(), of_sequence) : w.b * a.rows() + of_sequence;
        float* const of_lse = split ? l.partial.lse : a.lse;
        if (warp == 0 && t == 0 && of_lse) of_lse[at] = all == 0 ? -__builtin_inff() : shared.largest[r] + __logf(all);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int64_t column = at * kLatent + warp * 64 + j * 8 + 2 * t;
            const float2 v = {sums[j][2 * i] * by, sums[j][2 * i + 1] * by};
            if (split) *reinterpret_cast<float2*>(l.partial.out + column) = v;
            else static_cast<uint32_t*>(a.out)[column / 2] = Pairs<type>::round(v);
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
