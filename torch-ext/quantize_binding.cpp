#include "../quantize_fp8/quantize_fp8.h"
#include "binding.h"
#include "operators.h"
#include "scale_args.h"

namespace rocm_fp8::binding {
namespace {

quantize::Args of(const Arg& out, const Arg& x) {
    quantize::Args args{};
    args.dtype = x.dtype({DType::f16, DType::bf16, DType::f32});
    if (x.dim() < 1) x.refuse("0 dimensions (shape []); needs [..., d]");
    args.d = x.last();
    args.rows = x.rows();
    args.x_stride = x.row_stride();
    args.out_dtype = out.dtype({DType::e4m3fn, DType::e4m3fnuz});
    out.check_device_of(x);
    out.check_rows_of(x, args.d);
    args.out_stride = out.written_row_stride();
    out.check_apart_from(x);
    args.x = x.data();
    args.out = out.mutable_data();
    return args;
}

void quantize_fp8(const Tensor& out_t, const Tensor& scale, const Tensor& x_t, const std::optional<Tensor>& upper_bound,
                  int64_t group, double fp8_max, bool power_of_two) {
    const char* const op = "quantize_fp8";
    const Arg out(op, "out", out_t), x(op, "x", x_t);
    quantize::Args args = of(out, x);
    const ScaleArgs wanted{scale, upper_bound, group, fp8_max, power_of_two};
    args.dynamic = dynamic_scale(op, wanted, x, args.d, args.out_dtype, {&x}, {&out});
    check(op, quantize::launch(args, Launch(x_t)));
}

void quantize_static_fp8(const Tensor& out_t, const Tensor& x_t, const Tensor& scale_t) {
    const char* const op = "quantize_fp8";
    const Arg out(op, "out", out_t), x(op, "x", x_t), scale(op, "scale", scale_t);
    quantize::Args args = of(out, x);
    args.scale = scale.scale_of(x);
    out.check_apart_from(scale);
    check(op, quantize::launch(args, Launch(x_t)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    // group: 32, 64 or 128 elements of a row; 0: a row; -1: the tensor. Each has a scale of its own. scale_out: float32,
    // float8_e8m0fnu or its bytes, as uint8.
    ops.add<&quantize_fp8>(
        "quantize_fp8(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, Tensor? scale_ub, int group, float fp8_max, "
        "bool power_of_two) -> ()");
    ops.add<&quantize_static_fp8>("quantize_static_fp8(Tensor(a!) out, Tensor x, Tensor scale) -> ()");
}

}  // namespace rocm_fp8::binding
