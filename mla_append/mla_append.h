// Writes tokens into a cache of latent vectors, rotated and quantised: the contract of every backend's launcher. In
// float32, or each operation rounded to `dtype` where cos and sin are of it:
//
//     r     = rope * cos + rotated(rope) * sin, rounded to dtype
//             rotated: -rope[i + 32] for i < 32, then rope[i - 32]
//             interleaved: numbers 2i and 2i + 1 take the places of i and i + 32 in that, and stay where they are
//     wide  = latent, r
//     fp8   = fp8(latent / scale), fp8(r / scale)
//     mixed = codes by scales of 128 as quantize_fp8 computes them, these scales, r
//
// Without `latent` r alone is written: what the cache has of the latent part, scales of `mixed` too, stays.
#pragma once

#include "../common/attention/latent_cache.h"
#include "../common/types.h"

namespace rocm_fp8::mla_append {

using namespace latent_cache;

struct Args {
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

}  // namespace rocm_fp8::mla_append
