// mla_append, for HIP and CUDA: a wave (warp) writes a token.
//
// Bytes: 1152 of a token read, 1152 (fp8: 576, mixed: 656) written. Floor: those at the memory rate; for the tokens of
// a decode step a launch's latency.
//
//     latent   a lane has eight numbers (CUDA: twice); sixteen lanes of them have a scale in common, with `mixed`
//     rope     lane i < 32 has the pair i and i + 32, or 2 i and 2 i + 1
//
// aligned: rows of latent and of the cache begin at multiples of 16 bytes (of codes: 8). Else all goes number by
// number.
//
// Limit today: docs/journal/mla_decode-hip.md. Nothing has been measured.
#pragma once

#include "../../common/gpu/overlap.h"
#include "../../common/rows/dynamic_scale.h"
#include "../../common/rows/gpu/eight.h"
#include "../mla_decode.h"

namespace rocm_fp8::mla_decode {
namespace {

constexpr int kAppendThreads = 256;

// Bytes to any address.
template <class T>
__device__ inline void store_bytewise(void* to, int64_t at, const T& v) {
    uint8_t bytes[sizeof(T)];
    __builtin_memcpy(bytes, &v, sizeof(T));
#pragma unroll
    for (int i = 0; i < int(sizeof(T)); ++i) global<uint8_t>(to)[at + i] = bytes[i];
}

// Eight codes of a cache: by the chip's instructions in its own format, else one by one.
template <DType type>
__device__ inline EightBytes codes_of(const Eight<type>& values, float scale, DType format) {
    if (format == kNativeFp8) return values.quantized(QuantizationScale(scale));
    uint8_t codes[kEight];
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i) {
        const f32x2 two = values.wide(i);
        codes[2 * i] = quantize_one(two.x, scale, format == DType::e4m3fnuz);
        codes[2 * i + 1] = quantize_one(two.y, scale, format == DType::e4m3fnuz);
    }
    EightBytes eight;
    __builtin_memcpy(&eight, codes, kEight);
    return eight;
}

template <DType type, bool aligned>
__device__ inline Eight<type> eight_at(const void* row, int vector) {
    Eight<type> eight;
    if constexpr (aligned) {
        eight.load_from(row, VectorIndex(vector));
    } else {
#pragma unroll
        for (int i = 0; i < kEight / 2; ++i) {
            const auto* const two = global<uint16_t>(row) + vector * kEight + 2 * i;
            set_word(eight.bits[0], i, uint32_t(two[0]) | uint32_t(two[1]) << 16);
        }
    }
    return eight;
}

template <DType type, bool aligned>
__device__ inline void append_latent(const AppendArgs& a, const DynamicScale& rule, const void* from, void* to) {
    const auto put = [&](int64_t at, const auto& v) {
        if constexpr (aligned) store_at(offset(to, at), v);
        else store_bytewise(to, at, v);
    };
#pragma unroll
    for (int vector = threadIdx.x % kLanes; vector < kLatent / kEight; vector += kLanes) {
        const Eight<type> values = eight_at<type, aligned>(from, vector);
        if (a.cache.format == Format::wide) {
            put(vector * 16, values.bits[0]);
        } else if (a.cache.format == Format::fp8) {
            put(vector * kEight, codes_of(values, load_scalar(a.cache.scale), a.cache.dtype));
        } else {
            constexpr int kSharing = kScaleGroup / kEight;
            const uint32_t largest = max_over_lanes<kSharing>(values.largest());
            const float scale = scale_of(bits_float(largest), rule, bits_float(kInfinityBits));
            put(vector * kEight, codes_of(values, scale, a.cache.dtype));
            if (vector % kSharing == 0) {
                const int64_t at = kScalesAt + vector / kSharing * int64_t(sizeof(float));
                if constexpr (aligned) *global<float>(offset(to, at)) = scale;
                else store_bytewise(to, at, scale);
            }
        }
    }
}

// Of a 16-bit number.
template <DType type>
__device__ inline uint16_t rounded(float v) {
    return uint16_t(Pairs<type>::round_any_nan(both(v)));
}
template <DType type>
__device__ inline float widened(uint16_t bits) {
    return Pairs<type>::widen(bits).x;
}

// Number i of the rotated ones, which stands at `place`; y: that of its pair, with the sign that it has there.
template <DType type>
__device__ inline uint16_t rotated(const AppendArgs& a, int64_t token, int i, float x, float y) {
    const int64_t cos_at = token * a.cos_stride + i, sin_at = token * a.sin_stride + i;
    if (a.angle_dtype == DType::f32)
        return rounded<type>(x * global<float>(a.cos)[cos_at] + y * global<float>(a.sin)[sin_at]);
    const float first = widened<type>(rounded<type>(x * element_at<type>(a.cos, cos_at)));
    const float second = widened<type>(rounded<type>(y * element_at<type>(a.sin, sin_at)));
    return rounded<type>(first + second);
}

template <DType type, bool aligned>
__device__ inline void append_rope(const AppendArgs& a, int64_t token, void* to) {
    constexpr int kHalf = kRope / 2;
    const int i = threadIdx.x % kLanes;
    if (i >= kHalf) return;
    const int places[] = {a.interleaved ? 2 * i : i, a.interleaved ? 2 * i + 1 : i + kHalf};
    const auto* const from = global<uint16_t>(offset(a.rope, token * a.rope_stride * 2));
    uint16_t bits[] = {from[places[0]], from[places[1]]};
    if (a.cos) {
        const float x = widened<type>(bits[0]), y = widened<type>(bits[1]);
        bits[0] = rotated<type>(a, token, i, x, -y), bits[1] = rotated<type>(a, token, i + kHalf, y, x);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        if (a.cache.format == Format::fp8) {
            const float scale = load_scalar(a.cache.scale);
            const bool fnuz = a.cache.dtype == DType::e4m3fnuz;
            global<uint8_t>(to)[kLatent + places[n]] = quantize_one(widened<type>(bits[n]), scale, fnuz);
            continue;
        }
        const bool mixed = a.cache.format == Format::mixed;
        // Of float16 a number of `mixed` is rounded once more.
        if (mixed && type == DType::f16) bits[n] = rounded<DType::bf16>(widened<type>(bits[n]));
        const int64_t at = (mixed ? kRopeAt : kLatent * 2) + places[n] * 2;
        if constexpr (aligned) *global<uint16_t>(offset(to, at)) = bits[n];
        else store_bytewise(to, at, bits[n]);
    }
}

template <DType type, bool aligned>
__global__ __launch_bounds__(kAppendThreads) void mla_append(AppendArgs a, DynamicScale rule) {
    const int64_t token = int64_t(blockIdx.x) * (kAppendThreads / kLanes) + uniform(threadIdx.x / kLanes);
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (token >= a.tokens) return;
    const int64_t slot = global<int64_t>(a.slots)[token];
    if (slot < 0) return;
    const int64_t page = slot / a.cache.page_size, row = slot - page * a.cache.page_size;
    if (page >= a.cache.pages) return;
    void* const to = a.cache.data + page * a.cache.page_stride + row * a.cache.row_stride;
    append_latent<type, aligned>(a, rule, offset(a.latent, token * a.latent_stride * 2), to);
    append_rope<type, aligned>(a, token, to);
}

template <DType type, class Vendor>
Status launch_append_as(const AppendArgs& a, const Vendor& vendor) {
    const int bytes = a.cache.format == Format::wide ? 16 : 8;
    const bool aligned = rows_aligned(a.latent, a.latent_stride * 2) &&
                         rows_aligned(a.cache.data, a.cache.row_stride, bytes) && a.cache.page_stride % bytes == 0;
    DynamicScale rule{};
    rule.fp8_max = Fp8Format<DType::e4m3fn>::max, rule.reciprocal_max = exact_reciprocal(rule.fp8_max);
    const auto kernel = aligned ? mla_append<type, true> : mla_append<type, false>;
    return vendor.launch(kernel, ceil_div(a.tokens, kAppendThreads / kLanes), kAppendThreads, 1, a, rule);
}

template <class Vendor>
Status append_by_type(const AppendArgs& a, const Vendor& vendor) {
    if (a.tokens == 0 || a.cache.pages == 0 || a.cache.page_size == 0) return {};
    return a.dtype == DType::f16 ? launch_append_as<DType::f16>(a, vendor) : launch_append_as<DType::bf16>(a, vendor);
}

}  // namespace
}  // namespace rocm_fp8::mla_decode
