// Attention of decode steps over a cache of latent vectors (MLA with absorbed weights), and what writes that cache: the
// contracts of every backend's launchers.
//
// A token of the cache is 576 numbers: 512 latent ones, then 64 that were rotated. All heads share it: the 576 are the
// keys, the first 512 the values as well. In float32, of query s of a sequence with `length` tokens:
//
//     c[n]   = number of the cache                    n < length; causal: n < length - tokens + s + 1
//     score  = softmax_scale * sum over 576 of q * c[n]
//     p      = exp(score - largest) / sum of that
//     out    = round(sum over n of p * c[n, :512])    lse = largest + ln(sum)
//
// p may be rounded to q's type before it is multiplied. No visible token, or only scores of -infinity: out is 0, lse
// -infinity. What lies in the cache behind a sequence's tokens changes nothing, NaN included. A score that is NaN makes
// its row NaN. NaN or infinity in a token may also reach queries of the same sequence that come before it.
//
// Lengths and tables are on the device: launches depend on sizes alone, so that one captured graph serves all lengths.
// The sums' order depends on sizes, too, never on the other sequences' lengths.
#pragma once

#include "../common/types.h"

namespace rocm_fp8::mla_decode {

constexpr int kLatent = 512, kRope = 64, kWidth = kLatent + kRope;
constexpr int kMostHeads = 128, kMostQueries = 8, kMostPage = 256;

// Bytes of a token in DeepSeek's layout: 512 e4m3fn, a float32 scale for each 128 of them, 64 bfloat16.
constexpr int kScaleGroup = 128, kScalesAt = kLatent, kRopeAt = kScalesAt + kLatent / kScaleGroup * 4;
constexpr int kMixedBytes = kRopeAt + kRope * 2;
static_assert(kMixedBytes == 656);

enum class Format : int32_t {
    wide,   // 576 of the queries' type
    fp8,    // 576 codes: c = code * cache_scale
    mixed,  // kMixedBytes: c = code * scale, rounded to the queries' type; the last 64 rounded to it
};

// Where tokens lie: number n of sequence b is row n % page_size of page table[b][n / page_size], or without a table row
// n of page b. Pages outside of [0, pages) are read as page 0 or the last one.
struct Cache {
    uint8_t* data;
    int64_t page_stride, row_stride;  // bytes
    int64_t pages;
    int64_t page_size;  // with a table at most kMostPage
    Format format;
    DType dtype;         // f16, bf16, e4m3fn or e4m3fnuz; of `mixed` e4m3fn
    const float* scale;  // of `fp8`: one element
};

struct Args {
    const void* q;  // dtype [batch, queries, heads, 576], strides in elements
    int64_t q_batch_stride, q_query_stride, q_head_stride;
    DType dtype;  // f16 or bf16
    Cache cache;
    const int32_t* table;  // [batch, pages a sequence] or nullptr
    int64_t table_stride;
    const int32_t* lengths;  // [batch], the new tokens included; counted as if in [0, most]
    int64_t most;            // tokens that a sequence can have: the table's width * page_size, or page_size
    int64_t batch;
    int32_t queries, heads;
    float softmax_scale;
    bool causal;
    void* out;   // dtype [batch, queries, heads, 512], dense
    float* lse;  // [batch, queries, heads], dense, or nullptr

    // Rows of a sequence: all queries and heads read the same tokens.
    ROCM_FP8_HD int32_t rows() const { return queries * heads; }
    ROCM_FP8_HD int64_t length_of(int64_t b) const {
        const int64_t length = lengths[b];
        return length < 0 ? 0 : length < most ? length : most;
    }
    // Tokens that query s of a sequence of that length sees.
    ROCM_FP8_HD int64_t seen_by(int64_t s, int64_t length) const {
        const int64_t seen = causal ? length - queries + s + 1 : length;
        return seen < 0 ? 0 : seen;
    }
};

// Writes tokens into the cache. In float32, or each operation rounded to `dtype` where cos and sin are of it:
//
//     r     = rope * cos + rotated(rope) * sin, rounded to dtype
//             rotated: -rope[i + 32] for i < 32, then rope[i - 32]
//             interleaved: numbers 2i and 2i + 1 take the places of i and i + 32 in that, and stay where they are
//     wide  = latent, r
//     fp8   = fp8(latent / scale), fp8(r / scale)
//     mixed = codes by scales of 128 as quantize_fp8 computes them, these scales, r
//
// Without `latent` r alone is written: what the cache has of the latent part, scales of `mixed` too, stays.
struct AppendArgs {
    const void *latent, *rope;           // dtype [tokens, 512] or nullptr, and [tokens, 64]
    int64_t latent_stride, rope_stride;  // elements
    DType dtype;                         // f16 or bf16; of `wide` the cache's
    const void *cos, *sin;               // angle_dtype [angles, 64] or nullptr, last dimension contiguous
    int64_t angles;                      // token t has row t % angles. Fewer than tokens: these are below 2^31
    int64_t cos_stride, sin_stride;      // elements
    DType angle_dtype;                   // dtype or f32
    const int64_t* slots;                // [tokens]: page * page_size + row. Outside of the cache: not written
    Cache cache;
    int64_t tokens;
    bool interleaved;
};

Status launch(const Args& args, const Executor& on);
Status launch_append(const AppendArgs& args, const Executor& on);

}  // namespace rocm_fp8::mla_decode
