#include "../skinny_gemm/skinny_gemm.h"
#include "binding.h"
#include "gemm_args.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

// One element (stride 0), or [count] / [count, 1] / [1, count] as `vector_shape` says.
gemm::Scales gemm_scale(const Arg& scale, const Arg& a, int64_t count, const char* vector_shape, int64_t vector_dim) {
    scale.dtype({DType::f32});
    scale.check_device_of(a);
    const Tensor& t = scale.tensor();
    const auto* data = static_cast<const float*>(scale.data());
    if (t.numel() == 1) return {data, 0};
    if (t.numel() == count && (t.dim() == 1 || (t.dim() == 2 && t.size(vector_dim) == count))) {
        return {data, t.stride(t.dim() == 1 ? 0 : vector_dim)};
    }
    scale.refuse("shape ", scale.shape(), "; needs one element or ", vector_shape, " with ", count, " elements");
}

void skinny_gemm(const Tensor& out_t, const Tensor& a_t, const Tensor& b_t, const Tensor& scale_a_t,
                 const Tensor& scale_b_t, const std::optional<Tensor>& bias_t, bool constant_b) {
    const char* const op = "skinny_gemm";
    const Arg out(op, "out", out_t), a(op, "a", a_t), b(op, "b", b_t);
    const Arg scale_a(op, "scale_a", scale_a_t), scale_b(op, "scale_b", scale_b_t);
    rocm_fp8::skinny_gemm::Args args{};
    args.constant_b = constant_b;
    const GemmSizes sizes = gemm_sizes(a, b);
    args.format = sizes.format;
    args.m = sizes.m;
    args.n = sizes.n;
    args.k = sizes.k;
    if (args.m > rocm_fp8::skinny_gemm::kMaxRows)
        a.refuse(args.m, " rows; at most ", rocm_fp8::skinny_gemm::kMaxRows, " are allowed");
    args.a_stride = a.row_stride();
    args.b_stride = b.row_stride();
    gemm::Epilogue& e = args.epilogue;
    e.scale_a = gemm_scale(scale_a, a, args.m, "[M, 1]", 0);
    e.scale_b = gemm_scale(scale_b, a, args.n, "[1, N]", 1);
    e.out = gemm_output(out, a, sizes, {&a, &b, &scale_a, &scale_b});
    e.bias = gemm_bias(op, bias_t, a, out, args.n);
    args.a = static_cast<const uint8_t*>(a.data());
    args.b = static_cast<const uint8_t*>(b.data());
    e.out.data = out.mutable_data();
    check(op, rocm_fp8::skinny_gemm::launch(args, Launch(a_t)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&skinny_gemm>(
        "skinny_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, bool "
        "constant_b=False) -> ()");
}

}  // namespace rocm_fp8::binding
