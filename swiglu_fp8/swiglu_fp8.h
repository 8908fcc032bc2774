// SwiGLU and FP8 quantisation of a Gate/Up projection's output: the contract of every backend's launcher.
//
//     g = round_dtype(silu(float(gate)))        silu(v) = v / (1 + exp(-v)), within 2 ulp of float32
//     y = round_dtype(g * up)
//     out = fp8(float(y) / scale)
#pragma once

#include "../common/types.h"

namespace rocm_fp8::swiglu {

struct Args {
    const void* x;       // dtype [rows, 2 d], rows x_stride elements apart: d of gate, then d of up
    const float* scale;  // float32 [1]
    void* out;           // out_dtype [rows, d], rows out_stride apart
    int64_t rows, d;
    int64_t x_stride, out_stride;
    DType dtype;      // f16 or bf16
    DType out_dtype;  // e4m3fn or e4m3fnuz
};

// The arguments must be valid as above; x and out do not overlap.
Status launch(const Args& args, const Executor& on);

}  // namespace rocm_fp8::swiglu
