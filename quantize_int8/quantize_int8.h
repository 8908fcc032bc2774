// Quantisation to int8: the contract of every backend's launcher.
//
//     out = int8(float(x) / scale), or int8(round(float(x) / scale) + zero)      common/int8.h
//
// by a scale (and a zero point) that is given, or by those that are computed of each row and written.
#pragma once

#include "../common/int8.h"
#include "../common/types.h"

namespace rocm_fp8::quantize_int8 {

struct Args {
    const void* x;  // dtype [rows, d], rows x_stride elements apart
    int8_t* out;    // int8 [rows, d], rows out_stride apart
    Int8Scale scale;
    int64_t rows, d;
    int64_t x_stride, out_stride;
    DType dtype;  // f16, bf16 or f32
};

// The arguments must be valid as above; no two of x, out, the scales and the zero points overlap.
Status launch(const Args& args, const Executor& on);

}  // namespace rocm_fp8::quantize_int8
