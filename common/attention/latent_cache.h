// A cache of latent vectors (MLA): what mla_append writes and mla_decode reads, on all backends.
//
// A token is 576 numbers: 512 latent ones, then 64 that were rotated.
#pragma once

#include "../types.h"

namespace rocm_fp8::latent_cache {

constexpr int kLatent = 512, kRope = 64, kWidth = kLatent + kRope;

// Bytes of a token in DeepSeek's layout: 512 e4m3fn, a float32 scale for each 128 of them, 64 bfloat16.
constexpr int kScaleGroup = 128, kScalesAt = kLatent, kRopeAt = kScalesAt + kLatent / kScaleGroup * 4;
constexpr int kMixedBytes = kRopeAt + kRope * 2;
static_assert(kMixedBytes == 656);

enum class Format : int32_t {
    wide,   // 576 of the operands' type: f16 or bf16
    fp8,    // 576 codes: number = code * Cache::scale
    mixed,  // kMixedBytes: number = code * scale, rounded to the operands' type; the last 64 rounded to it
};

// Pages of tokens, a token a row. mla_append's slots and mla_decode's table say whose a row is.
struct Cache {
    uint8_t* data;
    int64_t page_stride, row_stride;  // bytes
    int64_t pages, page_size;
    Format format;
    DType dtype;         // f16, bf16, e4m3fn or e4m3fnuz; of `mixed` e4m3fn
    const float* scale;  // of `fp8`: one element
};

}  // namespace rocm_fp8::latent_cache
