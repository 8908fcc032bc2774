
#include "../swiglu_fp8/swiglu_fp8.h"
#include "binding.h"
#include "operators.h"
#include "scale_args.h"
#include "swiglu_args.h"

namespace rocm_fp8::binding {
namespace {

swiglu::Args of(const Arg& out, const Arg& x) {
    swiglu::Args args{};
    args.dtype = x.dtype({DType::f16, DType::bf16});
    if (x.dim() < 1 || x.last() % 2 != 0) x.refuse("shape ", x.shape(), "; needs [..., 2 d]");
    args.d = x.last() / 2;
    args.rows = x.rows();
    args.x_stride = x.row_stride();
    args.out_dtype = out.dtype({DType::e4m3fn, DType::e4m3fnuz});
    out.check_device_of(x);
    out.check_rows_of(x, args.d);
    args.out_stride = out.written_row_stride();
    out.check_apart_from(x);
    args.limit = INFINITY;
    args.x = x.data();
    args.out = out.mutable_data();
    return args;
}

void swiglu_fp8(const Tensor& out_t, const Tensor& x_t, const Tensor& scale_t) {
    const char* const op = "swiglu_fp8";
    const Arg out(op, "out", out_t), x(op, "x", x_t), scale(op, "scale", scale_t);
    swiglu::Args args = of(out, x);
    args.scale = scale.scale_of(x);
    out.check_apart_from(scale);
    check(op, swiglu::launch(args, Launch(x_t)));
}

void swiglu_dynamic_fp8(const Tensor& out_t, const Tensor& scale, const Tensor& x_t, std::optional<double> limit,
                        const std::optional<Tensor>& upper_bound, int64_t group, double fp8_max, bool power_of_two) {
    const char* const op = "swiglu_dynamic_fp8";
    const Arg out(op, "out", out_t), x(op, "x", x_t);
    swiglu::Args args = of(out, x);
    args.limit = swiglu_limit(op, limit, args.dtype);
    const ScaleArgs wanted{scale, upper_bound, group, fp8_max, power_of_two};
    args.dynamic = dynamic_scale(op, wanted, x, args.d, args.out_dtype, {&x}, {&out});
    check(op, swiglu::launch(args, Launch(x_t)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&swiglu_fp8>("swiglu_fp8(Tensor(a!) out, Tensor x, Tensor scale) -> ()");
    ops.add<&swiglu_dynamic_fp8>(
        "swiglu_dynamic_fp8(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, float? limit, Tensor? scale_ub, int "
        "group, float fp8_max, bool power_of_two) -> ()");
}

}  // namespace rocm_fp8::binding
