// mla_append, for HIP and CUDA: a wave (warp) writes a token.
//
// Bytes: 1152 of a token read, 1152 (fp8: 576, mixed: 656) written. Floor: those at the memory rate; for the tokens of
// a decode step a launch's latency.
//
//     latent   a lane has eight numbers (CUDA: twice); sixteen lanes of them have a scale in common, with `mixed`
//     rope     gpu/rope.h: sixteen lanes have two pairs each
//
// aligned: rows of all operands and of the cache begin at multiples of 16 bytes (of codes: 8). Else all goes number by
// number. Without latent values the kernel of gpu/rope.h runs.
//
// Limit today: docs/journal/mla_decode-hip.md. Nothing has been measured.
#pragma once

#include "../common/rows/dynamic_scale.h"
#include "gpu/rope.h"

namespace rocm_fp8::mla_append {
namespace {

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
__device__ inline void write_latent(const Args& a, const DynamicScale& rule, const void* from, void* to) {
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

template <DType type, bool aligned>
__global__ __launch_bounds__(kThreads) void mla_append(Args a, DynamicScale rule, Divider angles) {
    const int64_t token = int64_t(blockIdx.x) * (kThreads / kLanes) + uniform(threadIdx.x / kLanes);
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (token >= a.tokens) return;
    void* const to = place_of(a, token);
    if (!to) return;
    write_latent<type, aligned>(a, rule, offset(a.latent, token * a.latent_stride * 2), to);
    RopePart<type, 1, aligned> rope;
    const int lane = threadIdx.x % kLanes;
    if (lane >= rope.kSharing) return;
    rope.load(a, angles, token, lane);
    rope.store(a, lane, to);
}

template <DType type, class Vendor>
Status launch_as(const Args& a, const Vendor& vendor) {
    const int bytes = a.cache.format == Format::wide ? 16 : 8, of_angle = a.angle_dtype == DType::f32 ? 4 : 2;
    const bool aligned = rows_aligned(a.latent, a.latent_stride * 2) && rows_aligned(a.rope, a.rope_stride * 2) &&
                         rows_aligned(a.cos, a.cos_stride * of_angle) && rows_aligned(a.sin, a.sin_stride * of_angle) &&
                         rows_aligned(a.cache.data, a.cache.row_stride, bytes) && a.cache.page_stride % bytes == 0;
    const Divider angles = divider_by(a.cos && a.angles < a.tokens ? uint32_t(a.angles) : 1);
    if (!a.latent) {
        const auto kernel = aligned ? mla_append_rope<type, true> : mla_append_rope<type, false>;
        const int64_t tokens = aligned ? kRopeTokens<true> : kRopeTokens<false>;
        return vendor.launch(kernel, ceil_div(a.tokens, tokens), kThreads, 1, a, angles);
    }
    DynamicScale rule{};
    rule.fp8_max = Fp8Format<DType::e4m3fn>::max, rule.reciprocal_max = exact_reciprocal(rule.fp8_max);
    const auto kernel = aligned ? mla_append<type, true> : mla_append<type, false>;
    return vendor.launch(kernel, ceil_div(a.tokens, kThreads / kLanes), kThreads, 1, a, rule, angles);
}

template <class Vendor>
Status launch_by_type(const Args& a, const Vendor& vendor) {
    if (a.tokens == 0 || a.cache.pages == 0 || a.cache.page_size == 0) return {};
    return a.dtype == DType::f16 ? launch_as<DType::f16>(a, vendor) : launch_as<DType::bf16>(a, vendor);
}

}  // namespace
}  // namespace rocm_fp8::mla_append
