// Attention probabilities in int8: the contract of every backend's launcher.
//
//     v = float(x) + float(mask)                 without a mask: x
//     e = exp(v - max v)                         over the last dimension; within 2 ulp
//     out = int8(127 * (e / sum e))              0 to 127: the dequantisation scale is 1 / 127
//
// float32. A row with NaN or +infinity, or of -infinity alone, has no probabilities: it becomes 0.
#pragma once

#include "../common/int8.h"
#include "../common/types.h"

namespace rocm_fp8::softmax_int8 {

// A tensor [size[0], size[1], size[2], d], the last dimension contiguous; strides in elements, 0 where it is repeated.
struct Strides {
    int64_t stride[3];
};

struct Args {
    const void* x;     // dtype
    const void* mask;  // mask_dtype, added; or nullptr
    int8_t* out;
    int64_t size[3], d;
    Strides x_strides, mask_strides, out_strides;
    DType dtype;       // f16, bf16 or f32
    DType mask_dtype;  // dtype or f32

    ROCM_FP8_HD int64_t rows() const { return size[0] * size[1] * size[2]; }
};

// The first element of row `row` of all.
ROCM_FP8_HD inline int64_t row_at(const Args& args, const Strides& s, int64_t row) {
    const int64_t i = row % args.size[2], rest = row / args.size[2];
    return i * s.stride[2] + rest % args.size[1] * s.stride[1] + rest / args.size[1] * s.stride[0];
}

// The arguments must be valid as above; out overlaps nothing.
Status launch(const Args& args, const Executor& on);

}  // namespace rocm_fp8::softmax_int8
