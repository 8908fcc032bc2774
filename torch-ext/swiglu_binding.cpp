#include "../swiglu_fp8/swiglu_fp8.h"
#include "binding.h"
#include "operators.h"

namespace rocm_fp8::binding {

void swiglu_fp8(const Tensor& out_t, const Tensor& x_t, const Tensor& scale_t) {
    const char* const op = "swiglu_fp8";
    const Arg out(op, "out", out_t), x(op, "x", x_t), scale(op, "scale", scale_t);
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
    args.scale = scale.scale_of(x);
    out.check_apart_from(x);
    out.check_apart_from(scale);

    args.x = x.data();
    args.out = out.mutable_data();
    check(op, swiglu::launch(args, Launch(x_t)));
}

}  // namespace rocm_fp8::binding
