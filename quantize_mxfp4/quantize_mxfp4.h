// Quantisation to MXFP4 (../common/mx.h): the contract of every backend's launcher, and the arithmetic of a block.
//
//     amax  = the largest |x| of 32 neighbours of a row
//     scale = 2^e, e by a rounding:  up    the least with amax / scale <= 6
//                                    even  the exponent of amax, rounded to one bit of mantissa and to even, less 2
//     code  = x / scale to the nearest e2m1, ties to the even code, beyond 6 to 6; by the scale that is written
//
// Scales are bytes 0 to 254. A block with NaN or infinity has byte 255 and codes 0. The same bytes on all backends.
#pragma once

#include "../common/mx.h"

namespace rocm_fp8::quantize_mxfp4 {

struct Args {
    const void* x;    // dtype [rows, k], rows x_stride elements apart
    uint8_t* codes;   // [rows, k / 2]
    uint8_t* scales;  // [rows, k / 32]
    int64_t rows, k, x_stride;
    DType dtype;  // f32, f16 or bf16
    bool even;
};

Status launch(const Args& args, const Executor& on);

namespace {

// Of a finite largest magnitude.
ROCM_FP8_HD inline uint32_t scale_byte(float amax, bool even) {
    if (even) {
        const uint32_t bits = float_bits(amax), rounded = bits + 0x1FFFFF + (bits >> 22 & 1);
        const int byte = int(rounded >> 23) - 2;
        return byte < 0 ? 0 : byte > 254 ? 254 : byte;
    }
    constexpr float kLeast = 6 * 0x1p-126f;
    const uint32_t bits = float_bits(amax < kLeast ? kLeast : amax);
    return (bits >> 23) - 2 + ((bits & 0x7FFFFF) > 0x400000);
}

ROCM_FP8_HD inline uint32_t e2m1_code(float v) {
    const uint32_t sign = float_bits(v) >> 31 << 3;
    const float m = v < 0 ? -v : v;
    return sign | ((m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f));
}

// number(i): the i-th of the block.
template <class Number>
ROCM_FP8_HD inline void quantize_block(const Number& number, bool even, uint8_t* codes, uint8_t* scale) {
    uint32_t largest = 0;
    for (int i = 0; i < kMxBlock; ++i) {
        const uint32_t magnitude = float_bits(number(i)) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    const bool finite = largest < 0x7F800000u;
    const uint32_t byte = finite ? scale_byte(bits_float(largest), even) : 255;
    *scale = uint8_t(byte);
    // 1 / scale: a power of two, too.
    const float by = e8m0_value(254 - (finite ? byte : 0));
    for (int i = 0; i < kMxBlock; i += 2) {
        const uint32_t low = e2m1_code(number(i) * by), high = e2m1_code(number(i + 1) * by);
        codes[i / 2] = finite ? uint8_t(low | high << 4) : 0;
    }
}

}  // namespace
}  // namespace rocm_fp8::quantize_mxfp4
