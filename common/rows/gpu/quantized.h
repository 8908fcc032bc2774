// Operands of the kernels of quantize.h, beside what their values come from.
#pragma once

#include "../../divider.h"
#include "../dynamic_scale.h"

namespace rocm_fp8 {
namespace {

// The results: FP8 [rows, d] and scales.
struct QuantizedRows {
    const float* scale;  // given; or nullptr
    DynamicScale dynamic;
    void* out;
    int64_t rows, d, stride;
    bool fnuz;

    // Of an operator's arguments; `given`: a scale.
    template <class Args>
    ROCM_FP8_HD static QuantizedRows of(const Args& a, const float* given = nullptr) {
        return {given, a.dynamic, a.out, a.rows, a.d, a.out_stride, a.out_dtype == DType::e4m3fnuz};
    }

    // Columns [first, first + count) of all rows; `first` is a multiple of a group's size.
    QuantizedRows columns(int64_t first, int64_t count) const {
        QuantizedRows part = *this;
        part.out = static_cast<char*>(out) + first;
        part.d = count;
        if (dynamic.group > 0) {
            const int64_t scales = first / dynamic.group * dynamic.group_stride;
            part.dynamic.data = static_cast<char*>(dynamic.data) + scales * (dynamic.exponents ? 1 : 4);
        }
        return part;
    }
};

// The vectors of a flat kernel, kHeld neighbours as one. row_of divides by a row's, filled up to whole groups. The first
// `fetching` workgroups fetch into L2 before they wait for the previous kernel.
struct FlatWork {
    Divider row_of;
    uint32_t count, fetching;
};

// What find_largest has written: the largest finite magnitudes of parts, as bits.
struct Maxima {
    const uint32_t* data;
    int64_t count;
};

}  // namespace
}  // namespace rocm_fp8
