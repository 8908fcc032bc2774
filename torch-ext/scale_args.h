// The check of an argument that takes computed scales, which all operators with such scales share.
#pragma once

#include <algorithm>

#include "../common/dynamic_scale.h"
#include "tensor_args.h"

namespace rocm_fp8::binding {
namespace {

// `scale` as where the scales of x's values, d a row, are written. group as in the operators' schemas. The upper bound
// is the caller's.
[[maybe_unused]] DynamicScale dynamic_scale(const char* op, const Arg& scale, const Arg& x, int64_t d, DType out_dtype,
                                            int64_t group, double fp8_max, bool power_of_two) {
    DynamicScale to{};
    if (group != DynamicScale::kTensor && group != DynamicScale::kRow && group != 32 && group != 64 && group != 128)
        refuse(op, "group_size: ", group, "; allowed: 32, 64, 128");
    to.group = int(group);
    const float largest = out_dtype == DType::e4m3fn ? Fp8Format<DType::e4m3fn>::max : Fp8Format<DType::e4m3fnuz>::max;
    if (!(fp8_max >= 2 && fp8_max <= largest))
        refuse(op, "fp8_max: ", fp8_max, "; needs 2 to ", largest, ", the format's largest number");
    to.fp8_max = float(fp8_max);
    // The Python functions pass the bytes of float8_e8m0fnu.
    to.exponents =
        scale.tensor().scalar_type() == ScalarType::Byte || scale.dtype({DType::f32, DType::e8m0}) == DType::e8m0;
    to.power_of_two = power_of_two || to.exponents;
    scale.check_device_of(x);
    to.data = scale.mutable_data();
    if (group == DynamicScale::kTensor) {
        scale.check_shape({1}, "[1]");
        return to;
    }
    const int64_t groups = to.groups(d);
    scale.check_rows_of(x, groups);
    to.row_stride = scale.leading_stride();
    to.group_stride = scale.tensor().stride(scale.dim() - 1);
    // (stride, count), the smaller stride first.
    std::pair<int64_t, int64_t> inner{to.group_stride, groups}, outer{to.row_stride, scale.rows()};
    if (inner.second <= 1 || (outer.second > 1 && outer.first < inner.first)) std::swap(inner, outer);
    const bool apart = (inner.second <= 1 || inner.first > 0) &&
                       (outer.second <= 1 || outer.first > inner.first * (std::max<int64_t>(inner.second, 1) - 1));
    if (!apart && scale.numel() != 0)
        scale.refuse("shape ", scale.shape(), " with strides ", list(scale.tensor().strides()), " overlaps itself");
    return to;
}

}  // namespace
}  // namespace rocm_fp8::binding
