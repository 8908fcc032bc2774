// mla_append, for AMD and NVIDIA GPUs: a workgroup of 64 threads writes a token.
//
// Bytes: of a token 1152 to 1664 read (with angles), 576 to 1152 written; the floor is a launch's time.
//
// A thread has eight latent numbers; sixteen threads have those that share a scale in DeepSeek's layout. The first 32
// have a pair of rotated numbers each. vectors: rows at multiples of 16 bytes; else numbers go one by one.
#pragma once

#include "../../common/gpu/overlap.h"
#include "../../common/rows/dynamic_scale.h"
#include "../../common/rows/gpu/eight.h"
#include "../mla_decode.h"

namespace rocm_fp8::mla_decode {
namespace {

constexpr int kAppendThreads = kLatent / kEight, kPairs = kRope / 2;

template <DType type>
__device__ inline uint16_t rounded(float v) {
    return uint16_t(Pairs<type>::round_any_nan(both(v)));
}

// A pair's numbers after their turn. wide: angles of float32, else each operation is rounded.
struct Turned {
    uint16_t number[2];
};
template <DType type>
__device__ inline Turned turned(const AppendArgs& a, int64_t token, int pair) {
    const int first = a.interleaved ? 2 * pair : pair, second = a.interleaved ? 2 * pair + 1 : pair + kPairs;
    const void* const rope = offset(a.rope, token * a.rope_stride * 2);
    if (!a.cos) return {{global<uint16_t>(rope)[first], global<uint16_t>(rope)[second]}};
    const bool wide = a.angle_dtype == DType::f32;
    const auto angle = [&](const void* of, int64_t stride, int i) {
        return wide ? global<float>(of)[token * stride + i] : element_at<type>(offset(of, token * stride * 2), i);
    };
    const auto round = [&](float v) { return wide ? v : Pairs<type>::widen(rounded<type>(v)).x; };
    const float x = element_at<type>(rope, first), y = element_at<type>(rope, second);
    const float of_x = round(x * angle(a.cos, a.cos_stride, pair)) + round(-y * angle(a.sin, a.sin_stride, pair));
    const float of_y =
        round(y * angle(a.cos, a.cos_stride, pair + kPairs)) + round(x * angle(a.sin, a.sin_stride, pair + kPairs));
    return {{rounded<type>(of_x), rounded<type>(of_y)}};
}

template <DType type, bool vectors>
__device__ inline Eight<type> eight_at(const void* row, int i) {
    Eight<type> e;
    if constexpr (vectors) {
        e.load_from(row, i);
    } else {
#pragma unroll
        for (int w = 0; w < kEight / 2; ++w) {
            const uint16_t* const two = global<uint16_t>(row) + i * kEight + 2 * w;
            set_word(e.bits[0], w, two[0] | uint32_t(two[1]) << 16);
        }
    }
    return e;
}

template <bool vectors, class Words>
__device__ inline void put_words(uint8_t* to, const Words& v) {
    if constexpr (vectors) {
        store_at(to, v);
    } else {
#pragma unroll
        for (int i = 0; i < int(sizeof(Words)); ++i) global<uint8_t>(to)[i] = uint8_t(word(v, i / 4) >> i % 4 * 8);
    }
}

// Where the chip's own format is another than the cache's.
template <DType type>
__device__ inline EightBytes quantized_to(const Eight<type>& e, float scale, bool fnuz) {
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i) {
        const f32x2 two = e.wide(i);
        words[i / 2] |= (quantize_one(two.x, scale, fnuz) | quantize_one(two.y, scale, fnuz) << 8) << i % 2 * 16;
    }
    return EightBytes{words[0], words[1]};
}

template <DType type, bool vectors>
__global__ __launch_bounds__(kAppendThreads) void mla_append(AppendArgs a, bool own_format) {
    constexpr float kMax = Fp8Format<DType::e4m3fn>::max;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int64_t token = blockIdx.x, slot = global<int64_t>(a.slots)[token], page = slot / a.cache.page_size;
    if (slot < 0 || page >= a.cache.pages) return;
    const Cache& c = a.cache;
    uint8_t* const to = c.data + page * c.page_stride + (slot - page * c.page_size) * c.row_stride;
    const int i = threadIdx.x;
    const auto e = eight_at<type, vectors>(offset(a.latent, token * a.latent_stride * 2), i);
    const bool fnuz = c.dtype == DType::e4m3fnuz;
    const auto put_codes = [&](float scale) {
        const auto q = own_format ? e.quantized(QuantizationScale(scale)) : quantized_to<type>(e, scale, fnuz);
        put_words<vectors>(to + i * kEight, q);
    };
    if (c.format == Format::wide) {
        put_words<vectors>(to + i * kEight * 2, e.bits[0]);
    } else if (c.format == Format::fp8) {
        put_codes(global<float>(c.scale)[0]);
    } else {
        DynamicScale rule{};
        rule.fp8_max = kMax;
        const float largest = bits_float(max_over_lanes<kScaleGroup / kEight>(e.largest()));
        const float scale = scale_of(largest, rule, bits_float(kInfinityBits));
        put_codes(scale);
        constexpr int kSharers = kScaleGroup / kEight;
        if (i % kSharers < 4) {
            const int byte = i % kSharers;
            global<uint8_t>(to)[kScalesAt + i / kSharers * 4 + byte] = uint8_t(float_bits(scale) >> 8 * byte);
        }
    }
    if (i >= kPairs) return;
    const Turned rope = turned<type>(a, token, i);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const int place = a.interleaved ? 2 * i + n : i + n * kPairs;
        const uint16_t number = rope.number[n];
        const float value = Pairs<type>::widen(number).x;
        if (c.format == Format::wide) {
            global<uint16_t>(to)[kLatent + place] = number;
        } else if (c.format == Format::fp8) {
            global<uint8_t>(to)[kLatent + place] = quantize_one(value, global<float>(c.scale)[0], fnuz);
        } else {
            // Of float16 a number is rounded once more.
            const uint16_t bits = type == DType::bf16 ? number : rounded<DType::bf16>(value);
            global<uint8_t>(to)[kRopeAt + 2 * place] = uint8_t(bits);
            global<uint8_t>(to)[kRopeAt + 2 * place + 1] = uint8_t(bits >> 8);
        }
    }
}

template <class Vendor>
Status append_by_type(const AppendArgs& a, const Vendor& vendor) {
    if (a.tokens == 0) return {};
    const bool vectors = rows_aligned(a.latent, a.latent_stride * 2) &&
                         rows_aligned(a.cache.data, a.cache.row_stride) && a.cache.page_stride % 16 == 0;
    const auto as = [&](auto kernel) {
        return vendor.launch(kernel, a.tokens, kAppendThreads, 1, a, a.cache.dtype == vendor.fp8);
    };
    if (a.dtype == DType::f16) return as(vectors ? mla_append<DType::f16, true> : mla_append<DType::f16, false>);
    return as(vectors ? mla_append<DType::bf16, true> : mla_append<DType::bf16, false>);
}

}  // namespace
}  // namespace rocm_fp8::mla_decode
