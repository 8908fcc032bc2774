#include "../rmsnorm_fp8/rmsnorm_fp8.h"
#include "binding.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

// Both with and without a residual, to FP8 (with a scale) or to x's own type (without).
void rms_norm_into(const char* op, const Tensor& out_t, const Tensor& x_t, const Tensor* residual_t,
                   const Tensor& weight_t, const Tensor* scale_t, double epsilon) {
    const Arg out(op, "out", out_t), x(op, "x", x_t), weight(op, "weight", weight_t);
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
    if (scale_t) {
        const Arg scale(op, "scale", *scale_t);
        args.out_dtype = out.dtype({DType::e4m3fn, DType::e4m3fnuz});
        args.scale = scale.scale_of(x);
        out.check_apart_from(scale);
    } else {
        args.out_dtype = out.dtype({args.dtype});
    }
    out.check_apart_from(x);
    out.check_apart_from(weight);

    if (residual_t) {
        const Arg residual(op, "residual", *residual_t);
        residual.dtype({args.dtype});
        residual.check_device_of(x);
        residual.check_rows_of(x, args.d);
        args.residual_stride = residual.written_row_stride();
        residual.check_apart_from(x);
        residual.check_apart_from(weight);
        if (scale_t) residual.check_apart_from(Arg(op, "scale", *scale_t));
        out.check_apart_from(residual);
        args.residual = residual.mutable_data();
    }
    args.epsilon = float(epsilon);
    args.x = x.data();
    args.weight = weight.data();
    args.out = out.mutable_data();
    check(op, rms_norm::launch(args, Launch(x_t)));
}

}  // namespace

void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, double epsilon) {
    rms_norm_into("rms_norm", out, x, nullptr, weight, nullptr, epsilon);
}

void rms_norm_fp8(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& scale, double epsilon) {
    rms_norm_into("rms_norm_fp8", out, x, nullptr, weight, &scale, epsilon);
}

void add_rms_norm_fp8(const Tensor& out, const Tensor& x, const Tensor& residual, const Tensor& weight,
                      const Tensor& scale, double epsilon) {
    rms_norm_into("add_rms_norm_fp8", out, x, &residual, weight, &scale, epsilon);
}

}  // namespace rocm_fp8::binding
