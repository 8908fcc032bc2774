// mla_append on the CPU, over any of common/cpu/simd_*.h: a thread writes its tokens one after the other.
//
// Bytes: those of a token read and written. Floor: those at the memory rate.
#pragma once

#include <array>
#include <cstring>

#include "../../common/cpu/half.h"
#include "../../common/cpu/lanes.h"
#include "../../common/rows/cpu/quantize.h"
#include "../mla_append.h"

namespace rocm_fp8::mla_append {

namespace {

// Numbers of a row that is not aligned, one by one.
template <DType dtype>
float number(const void* row, int64_t i) {
    uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(row) + 2 * i, 2);
    return dtype == DType::f16 ? half_to_float(bits) : bits_float(uint32_t(bits) << 16);
}
template <DType dtype>
uint16_t rounded(float v) {
    return dtype == DType::f16 ? float_to_half(v) : float_to_bfloat16(v);
}

// The rotated part of a token.
template <DType dtype>
void rotate(const Args& a, int64_t t, uint16_t* to) {
    const void* const from = at<dtype>(a.rope, t * a.rope_stride);
    if (!a.cos) {
        std::memcpy(to, from, kRope * 2);
        return;
    }
    const bool wide = a.angle_dtype == DType::f32;
    const int64_t row = t % a.angles;
    const auto angle = [&](const void* of, int64_t stride, int i) {
        if (wide) return static_cast<const float*>(of)[row * stride + i];
        return number<dtype>(at<dtype>(of, row * stride), i);
    };
    const auto round = [&](float v) { return wide ? v : number<dtype>(std::array{rounded<dtype>(v)}.data(), 0); };
    constexpr int kHalf = kRope / 2;
    for (int i = 0; i < kRope; ++i) {
        const int other = i < kHalf ? i + kHalf : i - kHalf;
        const auto place = [&](int n) { return a.interleaved ? n % kHalf * 2 + n / kHalf : n; };
        const float x = number<dtype>(from, place(i)), y = number<dtype>(from, place(other));
        const float first = round(x * angle(a.cos, a.cos_stride, i));
        const float second = round((i < kHalf ? -y : y) * angle(a.sin, a.sin_stride, i));
        to[place(i)] = rounded<dtype>(first + second);
    }
}

template <class L, DType dtype, DType format>
void append_rows(const Args& a, int64_t begin, int64_t end) {
    using Scale = typename L::Scale;
    constexpr float kMax = Fp8Format<format>::max, kAnyScale = __builtin_inff();
    const Cache& c = a.cache;
    DynamicScale rule{};
    rule.fp8_max = kMax;
    for (int64_t t = begin; t < end; ++t) {
        const int64_t slot = a.slots[t], page = slot / c.page_size;
        if (slot < 0 || page >= c.pages) continue;
        uint8_t* const to = c.data + page * c.page_stride + slot % c.page_size * c.row_stride;
        const void* const latent = a.latent ? at<dtype>(a.latent, t * a.latent_stride) : nullptr;
        uint16_t rope[kRope];
        rotate<dtype>(a, t, rope);
        if (c.format == Format::wide) {
            if (latent) std::memcpy(to, latent, kLatent * 2);
            std::memcpy(to + kLatent * 2, rope, sizeof(rope));
        } else if (c.format == Format::fp8) {
            const Scale scale(*c.scale, kMax);
            if (latent) L::template quantize<format, dtype>(latent, to, kLatent, scale);
            L::template quantize<format, dtype>(rope, to + kLatent, kRope, scale);
        } else {
            for (int g = 0; latent && g < kLatent / kScaleGroup; ++g) {
                const void* const values = at<dtype>(latent, g * kScaleGroup);
                using Count = std::integral_constant<int, kScaleGroup>;
                const uint16_t largest = largest_of<dtype, true>(values, Count());
                const float scale = scale_of(number<dtype>(&largest, 0), rule, kAnyScale);
                L::template quantize<format, dtype>(values, to + g * kScaleGroup, kScaleGroup, Scale(scale, kMax));
                std::memcpy(to + kScalesAt + 4 * g, &scale, 4);
            }
            for (int i = 0; i < kRope; ++i) {
                // Of float16 a number is rounded once more.
                const uint16_t bits = dtype == DType::bf16 ? rope[i] : rounded<DType::bf16>(number<dtype>(rope, i));
                std::memcpy(to + kRopeAt + 2 * i, &bits, 2);
            }
        }
    }
}

template <class L>
RowsKernel<Args> pick(const Args& a) {
    const bool f16 = a.dtype == DType::f16;
    if (a.cache.dtype == DType::e4m3fnuz)
        return f16 ? append_rows<L, DType::f16, DType::e4m3fnuz> : append_rows<L, DType::bf16, DType::e4m3fnuz>;
    return f16 ? append_rows<L, DType::f16, DType::e4m3fn> : append_rows<L, DType::bf16, DType::e4m3fn>;
}

}  // namespace

RowsKernel<Args> kernel_avx2(const Args& args);
RowsKernel<Args> kernel_avx512(const Args& args);

}  // namespace rocm_fp8::mla_append
