// Quantisation to FP8: the contract of every backend's launcher.
//
//     out = fp8(float(x) / scale)
//
// by a scale that is given, or by scales that are computed (../common/rows/dynamic_scale.h) and written.
#pragma once

#include "../common/rows/dynamic_scale.h"
#include "../common/types.h"

namespace rocm_fp8::quantize {

struct Args {
    const void* x;       // dtype [rows, d], rows x_stride elements apart
    const float* scale;  // float32 [1]; or nullptr: `dynamic` says how it is computed
    DynamicScale dynamic;
    void* out;  // out_dtype [rows, d], rows out_stride apart
    int64_t rows, d;
    int64_t x_stride, out_stride;
    DType dtype;      // f16, bf16 or f32
    DType out_dtype;  // e4m3fn or e4m3fnuz

    // Of another operator's values, in memory, to its results by its computed scales.
    template <class Operator>
    static Args of(const Operator& a, const void* values, int64_t stride) {
        return {values, nullptr, a.dynamic, a.out, a.rows, a.d, stride, a.out_stride, a.dtype, a.out_dtype};
    }
};

// The arguments must be valid as above; no two of x, out and the scales overlap.
Status launch(const Args& args, const Executor& on);

// On a GPU: a scale for the tensor, whose largest finite magnitude is the largest of maxima[0, count), as bits. It is
// the second half of such a launch: the first one writes x and the maxima.
Status launch_by_maxima(const Args& args, const uint32_t* maxima, int64_t count, const Executor& on);

}  // namespace rocm_fp8::quantize
