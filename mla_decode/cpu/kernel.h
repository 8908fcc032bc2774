// Decode attention on the CPU, over any of common/cpu/simd_*.h. amx.cpp has an `attend` of its own, for bfloat16.
//
// Bytes: those of the tokens, once for each kMostRows rows; work: 2 * (576 + 512) operations a row and token.
//
//     kBlock tokens --> float32 in the nearest cache (the same for every format) --> scores of 4 rows by 2 or 4 tokens
//                   --> online softmax --> sums of 4 rows by 4 registers of values
//
// A part is a range of a sequence's tokens for up to kMostRows of its rows. Its sums are not divided yet:
// mla_decode.cpp has the parts made on all threads, then `finish` adds those of a row in their order, divides and
// rounds.
//
// Order of a score's sum: a register of lanes adds products along the 576, then the lanes are added in a tree.
#pragma once

#include <algorithm>
#include <cmath>

#include "../../common/attention/cpu/softmax.h"
#include "../../common/cpu/half.h"
#include "../../common/cpu/kept_memory.h"
#include "../../common/gemm/cpu/gemm.h"
#include "../mla_decode.h"

namespace rocm_fp8::mla_decode {

// A part's rows at most, a sequence's parts at most; tokens that are taken together, of which parts are multiples.
constexpr int kMostRows = 64, kMostParts = 64, kBlock = 16;

// Tokens [begin, end) of rows [row, row + count) of sequence b, and where their sums go.
struct Part {
    int64_t b, begin, end;
    int32_t row, count;
    float* values;     // [count][512], not divided
    Softmax* softmax;  // [count]
};

// Rows [begin, end) of all sequences, each with the sums of `parts` parts. Row i of the first part lies at values +
// i * kLatent, of the next one part_stride rows on.
struct Finish {
    const Args& args;
    const float* values;
    const Softmax* softmax;
    int64_t parts, part_stride;
};

struct Kernels {
    void (*attend)(const Args& args, const Part& part);
    void (*finish)(const Finish& job, int64_t begin, int64_t end);
};

namespace {

// Where token n of sequence b begins.
inline const uint8_t* token(const Args& a, int64_t b, int64_t n) {
    const Cache& c = a.cache;
    int64_t page = b;
    if (a.table) {
        page = a.table[b * a.table_stride + n / c.page_size];
        page = page < 0 ? 0 : page < c.pages ? page : c.pages - 1;
        n %= c.page_size;
    }
    return c.data + page * c.page_stride + n * c.row_stride;
}

constexpr int bytes_of(Format format) {
    return format == Format::wide ? kWidth * 2 : format == Format::fp8 ? kWidth : kMixedBytes;
}

inline void prefetch_token(const Cache& c, const uint8_t* from) {
    constexpr int kLine = 64;
    for (int i = 0; i < bytes_of(c.format); i += kLine) prefetch(from + i);
}

// The query of a row of sequence b: an offset in elements.
inline int64_t query_at(const Args& a, int64_t b, int64_t row) {
    return b * a.q_batch_stride + row / a.heads * a.q_query_stride + row % a.heads * a.q_head_stride;
}

// What scores are multiplied with, and sums of values at the end.
inline float cache_scale(const Args& a) { return a.cache.format == Format::fp8 ? *a.cache.scale : 1.0f; }

template <class R, DType dtype>
class Attention {
    using L = Lanes<R>;
    using V = typename L::V;
    using Whole = std::integral_constant<int, L::block>;
    static constexpr int kLanes = R::width;

  public:
    static void attend(const Args& a, const Part& part) {
        static thread_local KeptMemory memory;
        constexpr int64_t kQueries = int64_t(kMostRows) * kWidth, kKeys = int64_t(kBlock) * kWidth;
        auto* const q = reinterpret_cast<float*>(memory.at_least((kQueries + kKeys + kMostRows * kBlock) * 4));
        float *const keys = q + kQueries, *const scores = keys + kKeys;
        const int64_t length = a.length_of(part.b);
        int64_t seen[kMostRows], most = 0;
        for (int i = 0; i < part.count; ++i) {
            const int64_t row = part.row + i;
            seen[i] = a.seen_by(row / a.heads, length);
            most = std::max(most, seen[i]);
            widen(at<dtype>(a.q, query_at(a, part.b, row)), kWidth, q + i * kWidth);
            part.softmax[i] = {};
        }
        std::fill_n(part.values, int64_t(part.count) * kLatent, 0.0f);
        const float factor = a.softmax_scale * cache_scale(a);
        const int64_t end = std::min(part.end, most);
        for (int64_t first = part.begin; first < end; first += kBlock) {
            const int tokens = int(std::min<int64_t>(kBlock, end - first));
            for (int n = 0; n < tokens; ++n) {
                const uint8_t* const next = n + kBlock < end - first ? token(a, part.b, first + n + kBlock) : nullptr;
                load_token(a.cache, token(a, part.b, first + n), next, keys + n * kWidth);
            }
            // A row without a token: its number of p is 0, and 0 times what was there could be NaN.
            std::fill_n(keys + tokens * kWidth, int64_t(kBlock - tokens) * kWidth, 0.0f);
            const auto rows = [&]<int M>(int i) {
                multiply_keys<M>(q + i * kWidth, keys, scores);
                for (int m = 0; m < M; ++m) {
                    float* const of_row = scores + m * kBlock;
                    const int64_t visible = seen[i + m] - first;
                    for (int n = 0; n < kBlock; ++n)
                        of_row[n] = n < visible && n < tokens ? of_row[n] * factor : kNoScore;
                    const float kept = take_scores(part.softmax[i + m], of_row, kBlock);
                    float* const sums = part.values + (i + m) * kLatent;
                    if (kept != 1.0f)
                        for (int d = 0; d < kLatent; ++d) sums[d] *= kept;
                }
                add_values<M>(scores, keys, part.values + i * kLatent);
            };
            int i = 0;
            for (; i + 4 <= part.count; i += 4) rows.template operator()<4>(i);
            if (part.count - i == 3) rows.template operator()<3>(i);
            if (part.count - i == 2) rows.template operator()<2>(i);
            if (part.count - i == 1) rows.template operator()<1>(i);
        }
    }

    static void finish(const Finish& job, int64_t begin, int64_t end) {
        const Args& a = job.args;
        const float scale = cache_scale(a);
        for (int64_t row = begin; row < end; ++row) {
            Softmax all;
            for (int64_t p = 0; p < job.parts; ++p) {
                const float largest = job.softmax[row + p * job.part_stride].largest;
                all.largest = largest > all.largest ? largest : all.largest;
            }
            float shares[kMostParts];
            for (int64_t p = 0; p < job.parts; ++p) {
                const Softmax& part = job.softmax[row + p * job.part_stride];
                shares[p] = share_of(part, all.largest);
                all.sum += part.sum * shares[p];
            }
            const float factor = all.sum == 0 ? 0.0f : scale / all.sum;
            void* const out = at<dtype>(a.out, row * kLatent);
            for (int d = 0; d < kLatent; d += L::block) {
                auto sum = L::set1(0);
                for (int64_t p = 0; p < job.parts; ++p) {
                    const int64_t from = row + p * job.part_stride;
                    const auto values = L::template load<DType::f32, dtype>(job.values + from * kLatent + d, Whole());
                    sum = L::add(sum, L::mul(L::set1(shares[p]), values));
                }
                sum = L::template round_to<dtype>(L::tame_nan(L::mul(sum, L::set1(factor))));
                L::template store<dtype, dtype>(at<dtype>(out, d), sum, Whole());
            }
            if (a.lse) a.lse[row] = all.sum == 0 ? kNoScore : all.largest + std::log(all.sum);
        }
    }

  private:
    static void widen(const void* from, int count, float* to) {
        for (int i = 0; i < count; i += L::block) {
            const auto x = L::template load<dtype, dtype>(at<dtype>(from, i), Whole());
            L::template store<DType::f32, dtype>(to + i, x, Whole());
        }
    }

    // codes times scale, by way of float16, whose exponents hold those of FP8 but for a power of two.
    template <DType format>
    static void widen_codes(const uint8_t* codes, int count, float scale, float* to) {
        using F = Fp8Format<format>;
        constexpr uint16_t kNan = 0x7E00;
        uint16_t halves[kWidth];
        for (int i = 0; i < count; ++i) {
            const uint16_t code = codes[i], magnitude = code & 0x7Fu;
            const bool nan = F::has_negative_zero ? magnitude == 0x7Fu : code == 0x80u;
            halves[i] = uint16_t((nan ? kNan : magnitude << 7) | (code & 0x80u) << 8);
        }
        for (int i = 0; i < count; i += L::block) {
            const auto x =
                L::mul(L::template load<DType::f16, DType::f16>(halves + i, Whole()), L::set1(F::half_scale));
            L::template store<DType::f32, DType::f16>(to + i, L::mul(x, L::set1(scale)), Whole());
        }
    }

    static void round(float* values, int count) {
        for (int i = 0; i < count; i += L::block) {
            const auto x = L::tame_nan(L::template load<DType::f32, dtype>(values + i, Whole()));
            L::template store<DType::f32, dtype>(values + i, L::template round_to<dtype>(x), Whole());
        }
    }

    static void load_token(const Cache& c, const uint8_t* from, const uint8_t* next, float* to) {
        if (next) prefetch_token(c, next);
        if (c.format == Format::wide) return widen(from, kWidth, to);
        if (c.format == Format::fp8) {
            if (c.dtype == DType::e4m3fn) widen_codes<DType::e4m3fn>(from, kWidth, 1.0f, to);
            else widen_codes<DType::e4m3fnuz>(from, kWidth, 1.0f, to);
            return;
        }
        for (int g = 0; g < kLatent; g += kScaleGroup) {
            float scale;
            std::memcpy(&scale, from + kScalesAt + g / kScaleGroup * 4, 4);
            widen_codes<DType::e4m3fn>(from + g, kScaleGroup, scale, to + g);
        }
        for (int i = 0; i < kRope; ++i) {
            uint16_t bits;
            std::memcpy(&bits, from + kRopeAt + 2 * i, 2);
            to[kLatent + i] = bits_float(uint32_t(bits) << 16);
        }
        round(to, kWidth);
    }

    // scores[m][n]: the products of M rows with kBlock tokens.
    template <int M>
    static void multiply_keys(const float* q, const float* keys, float* scores) {
        constexpr int N = M == 4 && kLanes == 8 ? 2 : 4;
        for (int n = 0; n < kBlock; n += N) {
            V sums[M][N];
            for (auto& of_row : sums)
                for (V& v : of_row) v = R::zero();
            for (int i = 0; i < kWidth; i += kLanes) {
                V key[N];
                for (int j = 0; j < N; ++j) R::load_sum(keys + (n + j) * kWidth + i, key[j]);
                for (int m = 0; m < M; ++m) {
                    V of_q;
                    R::load_sum(q + m * kWidth + i, of_q);
                    for (int j = 0; j < N; ++j) sums[m][j] = R::multiply_add(sums[m][j], of_q, key[j]);
                }
            }
            alignas(64) float lanes[M * N * kLanes], totals[M * N];
            for (int m = 0; m < M; ++m)
                for (int j = 0; j < N; ++j) R::store_sum(lanes + (m * N + j) * kLanes, sums[m][j]);
            GemmLanes<R, DType::e4m3fn>::totals(lanes, M * N, totals);
            for (int m = 0; m < M; ++m)
                for (int j = 0; j < N; ++j) scores[m * kBlock + n + j] = totals[m * N + j];
        }
    }

    // sums[m] += p[m][n] * values of token n, token after token.
    template <int M>
    static void add_values(const float* p, const float* keys, float* sums) {
        constexpr int N = M == 4 && kLanes == 8 ? 2 : 4;
        for (int d = 0; d < kLatent; d += N * kLanes) {
            V sum[M][N];
            for (int m = 0; m < M; ++m)
                for (int j = 0; j < N; ++j) R::load_sum(sums + m * kLatent + d + j * kLanes, sum[m][j]);
            for (int n = 0; n < kBlock; ++n) {
                V value[N];
                for (int j = 0; j < N; ++j) R::load_sum(keys + n * kWidth + d + j * kLanes, value[j]);
                for (int m = 0; m < M; ++m) {
                    const V weight = R::set1(p[m * kBlock + n]);
                    for (int j = 0; j < N; ++j) sum[m][j] = R::multiply_add(sum[m][j], weight, value[j]);
                }
            }
            for (int m = 0; m < M; ++m)
                for (int j = 0; j < N; ++j) R::store_sum(sums + m * kLatent + d + j * kLanes, sum[m][j]);
        }
    }
};

template <class R>
Kernels pick(const Args& args) {
    if (args.dtype == DType::f16) return {Attention<R, DType::f16>::attend, Attention<R, DType::f16>::finish};
    return {Attention<R, DType::bf16>::attend, Attention<R, DType::bf16>::finish};
}

}  // namespace

Kernels kernels_avx2(const Args& args);
Kernels kernels_avx512(const Args& args);
Kernels kernels_amx(const Args& args);

}  // namespace rocm_fp8::mla_decode
