// SwiGLU and FP8 quantisation of a Gate/Up projection's output: the contract of every backend's launcher.
//
//     gate = min(gate, limit), up = clamp(up, -limit, limit)     only with a limit; NaN stays NaN
//     g = round_dtype(silu(float(gate)))        silu(v) = v / (1 + exp(-v)), within 2 ulp of float32
//     y = round_dtype(g * up)
//     out = fp8(float(y) / scale)
//
// The scale is given, or computed of y (../common/rows/dynamic_scale.h) and written.
#pragma once

#include "../common/rows/dynamic_scale.h"
#include "../common/types.h"

namespace rocm_fp8::swiglu {

struct Args {
    const void* x;       // dtype [rows, 2 d], rows x_stride elements apart: d of gate, then d of up
    const float* scale;  // float32 [1]; or nullptr: `dynamic` says how it is computed
    void* out;           // out_dtype [rows, d], rows out_stride apart
    int64_t rows, d;
    int64_t x_stride, out_stride;
    DType dtype;      // f16 or bf16
    DType out_dtype;  // e4m3fn or e4m3fnuz

    DynamicScale dynamic;
    float limit;  // a number of `dtype`; infinity: none. With `dynamic` alone
};

// The arguments must be valid as above; no two of x, out and the scales overlap.
Status launch(const Args& args, const Executor& on);

}  // namespace rocm_fp8::swiglu
