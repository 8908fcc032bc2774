// Operands of the kernels of quantize_rows.h, beside what their values come from.
#pragma once

#include "../divider.h"
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
};

// The vectors of a flat kernel, kHeld neighbours as one piece. row_of divides by a row's pieces, filled up to whole
// groups. The first `fetching` workgroups fetch into L2 before they wait for the previous kernel.
struct Pieces {
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
