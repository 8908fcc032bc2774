// The arguments that all operators with an RMSNorm share.
#pragma once

#include "../rmsnorm_fp8/rmsnorm_fp8.h"
#include "scale_args.h"

namespace rocm_fp8::binding {
namespace {

// What not all of the operators have; nullptr: not this one.
struct RmsNormOptions {
    const Tensor* residual = nullptr;
    const Tensor* scale = nullptr;
    const ScaleArgs* computed = nullptr;  // with neither of the two the result has x's own type
    const Tensor* normalized = nullptr;
    const char* x_name = "x";
};

rms_norm::Args rms_norm_args(const char* op, const Tensor& out_t, const Tensor& x_t, const Tensor& weight_t,
                             double epsilon, const RmsNormOptions& options) {
    const Arg out(op, "out", out_t), x(op, options.x_name, x_t), weight(op, "weight", weight_t);
    rms_norm::Args args{};
    args.dtype = x.dtype({DType::f16, DType::bf16});
    if (x.dim() < 1) x.refuse("0 dimensions (shape []); needs [..., d]");
    args.d = x.last();
    args.rows = x.rows();
    args.x_stride = x.row_stride();

    args.weight_dtype = weight.dtype({args.dtype, DType::f32});
    weight.check_device_of(x);
    weight.check_shape({args.d}, "[d]");
    weight.check_last_contiguous();

    out.check_device_of(x);
    out.check_rows_of(x, args.d);
    args.out_stride = out.written_row_stride();
    if (options.scale || options.computed) args.out_dtype = out.dtype({DType::e4m3fn, DType::e4m3fnuz});
    else args.out_dtype = out.dtype({args.dtype});
    if (options.scale) {
        const Arg scale(op, "scale", *options.scale);
        args.scale = scale.scale_of(x);
        out.check_apart_from(scale);
    }
    out.check_apart_from(x);
    out.check_apart_from(weight);

    std::vector<const Arg*> written{&out};
    const auto check_written = [&](const Arg& t) {
        t.dtype({args.dtype});
        t.check_device_of(x);
        t.check_rows_of(x, args.d);
        const int64_t stride = t.written_row_stride();
        t.check_apart_from(x);
        t.check_apart_from(weight);
        for (const Arg* other : written) other->check_apart_from(t);
        written.push_back(&t);
        return stride;
    };
    std::optional<Arg> residual, normalized;
    if (options.residual) {
        residual.emplace(op, "residual", *options.residual);
        args.residual_stride = check_written(*residual);
        if (options.scale) residual->check_apart_from(Arg(op, "scale", *options.scale));
        args.residual = residual->mutable_data();
    }
    if (options.normalized) {
        normalized.emplace(op, "normalized_out", *options.normalized);
        args.normalized_stride = check_written(*normalized);
        args.normalized = normalized->mutable_data();
    }
    if (options.computed) {
        args.dynamic = dynamic_scale(op, *options.computed, x, args.d, args.out_dtype, {&x, &weight}, written);
    }
    args.epsilon = float(epsilon);
    args.x = x.data();
    args.weight = weight.data();
    args.out = out.mutable_data();
    return args;
}

}  // namespace
}  // namespace rocm_fp8::binding
