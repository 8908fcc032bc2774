// Rows of float32 values that become int8, for every CPU kernel that ends so. Plain loops, which the compiler makes
// vectors of: each instruction set's translation unit has its own.
#pragma once

#include "../../cpu/lanes.h"
#include "../../int8.h"
#include "run.h"

namespace rocm_fp8 {
namespace {

// The finite range of values; 0 belongs to it. Integers that have the order of the floats: the compiler's vectors have
// no minimum of floats that keeps to the rules for NaN.
class FiniteRange {
  public:
    void note(const float* values, int64_t n) {
        int32_t low = low_, high = high_;
        for (int64_t i = 0; i < n; ++i) {
            const uint32_t u = float_bits(values[i]);
            const int32_t magnitude = int32_t(u & 0x7FFFFFFFu);
            const int32_t finite = magnitude < 0x7F800000 ? magnitude : 0;
            const int32_t value = int32_t(u) < 0 ? -finite : finite;
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
        low_ = low;
        high_ = high;
    }
    float low() const { return -bits_float(uint32_t(-low_)); }
    float high() const { return bits_float(uint32_t(high_)); }
    float largest() const { return low_ < -high_ ? -low() : high(); }

  private:
    int32_t low_ = 0, high_ = 0;  // bits of the magnitude, negated for negative numbers
};

inline void quantize_values(const float* values, int64_t n, float scale, int8_t* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = quantize_int8_one(values[i], scale);
}
inline void quantize_values(const float* values, int64_t n, float scale, int32_t zero, int8_t* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = quantize_int8_one(values[i], scale, zero);
}

// Quantises rows as a launch asks.
class Int8Rows {
  public:
    explicit Int8Rows(const Int8Scale& s) : s_(s), computed_(!s.scale), has_zero_(s.scale ? s.zero : s.zero_out) {
        if (s.scale) use_ = {*s.scale, s.zero ? *s.zero : 0};
    }

    bool computed() const { return computed_; }

    // Sets, and writes, the scale of a row with this range.
    void compute(int64_t row, const FiniteRange& range) {
        use_ = has_zero_ ? int8_range(range.low(), range.high()) : Int8Range{int8_scale(range.largest()), 0};
        s_.scale_out[row * s_.scale_stride] = use_.scale;
        if (has_zero_) s_.zero_out[row * s_.zero_stride] = use_.zero;
    }

    // By the scale that is given, or was computed last.
    void quantize(const float* values, int64_t n, int8_t* out) const {
        if (has_zero_) quantize_values(values, n, use_.scale, use_.zero, out);
        else quantize_values(values, n, use_.scale, out);
    }

  private:
    const Int8Scale s_;
    const bool computed_, has_zero_;
    Int8Range use_{};
};

}  // namespace
}  // namespace rocm_fp8
