// The arguments of computed scales, which all operators with such scales share.
#pragma once

#include <algorithm>
#include <optional>

#include "../common/rows/dynamic_scale.h"
#include "tensor_args.h"

namespace rocm_fp8::binding {
namespace {

// As in the operators' schemas.
struct ScaleArgs {
    const Tensor& scale;
    const std::optional<Tensor>& upper_bound;
    int64_t group;
    double fp8_max;
    bool power_of_two;
};

// How the scales of x's rows, which give rows of d values, are computed, and where they are written. read, written: the
// operator's other tensors, x among them.
[[maybe_unused]] DynamicScale dynamic_scale(const char* op, const ScaleArgs& wanted, const Arg& x, int64_t d,
                                            DType out_dtype, const std::vector<const Arg*>& read,
                                            const std::vector<const Arg*>& written) {
    const auto [scale_t, upper_bound, group, fp8_max, power_of_two] = wanted;
    const Arg scale(op, "scale_out", scale_t);
    DynamicScale to{};
    if (group != DynamicScale::kTensor && group != DynamicScale::kRow && group != 32 && group != 64 && group != 128)
        refuse(op, "group_size: ", group, "; allowed: 32, 64, 128");
    to.group = int(group);
    const float largest = out_dtype == DType::e4m3fn ? Fp8Format<DType::e4m3fn>::max : Fp8Format<DType::e4m3fnuz>::max;
    if (!(fp8_max >= 2 && fp8_max <= largest))
        refuse(op, "fp8_max: ", fp8_max, "; needs 2 to ", largest, ", the format's largest number");
    to.fp8_max = float(fp8_max);
    to.reciprocal_max = exact_reciprocal(to.fp8_max);
    // The Python functions pass the bytes of float8_e8m0fnu.
    to.exponents =
        scale.tensor().scalar_type() == ScalarType::Byte || scale.dtype({DType::f32, DType::e8m0}) == DType::e8m0;
    to.power_of_two = power_of_two || to.exponents;
    scale.check_device_of(x);
    to.data = scale.mutable_data();
    const int64_t groups = to.groups(d);
    if (group == DynamicScale::kTensor) scale.check_shape({1}, "[1]");
    else scale.check_rows_of(x, groups);
    for (const auto* others : {&read, &written}) {
        for (const Arg* other : *others) scale.check_apart_from(*other);
    }
    if (upper_bound) {
        const Arg bound(op, "scale_ub", *upper_bound);
        to.upper_bound = bound.scale_of(x);
        scale.check_apart_from(bound);
        for (const Arg* other : written) other->check_apart_from(bound);
    }
    if (group == DynamicScale::kTensor) return to;
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
