// Attention of decode steps over a cache of latent vectors (MLA with absorbed weights): the contract of every backend's
// launcher. mla_append writes the cache.
//
// All heads share a token of the cache: its 576 numbers are the keys, the first 512 the values as well. In float32, of
// query s of a sequence with `length` tokens:
//
//     c[n]   = number of the cache                    n < length; causal: n < length - tokens + s + 1
//     score  = softmax_scale * sum over 576 of q * c[n]
//     p      = exp(score - largest) / sum of that
//     out    = round(sum over n of p * c[n, :512])    lse = largest + ln(sum)
//
// p may be rounded to q's type before it is multiplied. Where q and p are multiplied as FP8 numbers, p may also be off by
// 2^-20 of a row's largest, and an infinite number of q makes its row NaN. No visible token, or only scores of
// -infinity: out is 0, lse -infinity. What lies in the cache behind a sequence's tokens changes nothing, NaN included.
// A score that is NaN makes its row NaN. NaN or infinity in a token may also reach queries of the same sequence that
// come before it.
//
// Lengths and tables are on the device: launches depend on sizes alone, so that one captured graph serves all lengths.
// The sums' order depends on sizes, too, never on the other sequences' lengths.
#pragma once

#include "../common/attention/latent_cache.h"
#include "../common/types.h"

namespace rocm_fp8::mla_decode {

using namespace latent_cache;

constexpr int kMostHeads = 128, kMostQueries = 8, kMostPage = 256;

struct Args {
    const void* q;  // dtype [batch, queries, heads, 576], strides in elements
    int64_t q_batch_stride, q_query_stride, q_head_stride;
    DType dtype;  // f16 or bf16
    Cache cache;
    // [batch, pages a sequence] or nullptr. Token n of sequence b is row n % page_size of page table[b][n / page_size], or
    // without a table row n of page b. Pages outside of [0, pages) are read as page 0 or the last one. page_size is at most
    // kMostPage with a table.
    const int32_t* table;
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

Status launch(const Args& args, const Executor& on);

}  // namespace rocm_fp8::mla_decode
