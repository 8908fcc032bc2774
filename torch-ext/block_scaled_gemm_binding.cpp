#include "../block_scaled_gemm/block_scaled_gemm.h"
#include "binding.h"
#include "gemm_args.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

namespace op = rocm_fp8::block_scaled_gemm;

// [rows, k] with one of the dimensions contiguous.
op::Operand operand(const Arg& x) {
    const Tensor& t = x.tensor();
    const auto* data = static_cast<const uint8_t*>(x.data());
    // The stride of a dimension of one element says nothing.
    if (x.size(1) == 1 || t.stride(1) == 1) return {data, t.stride(0), 1};
    if (x.size(0) <= 1 || t.stride(0) == 1) return {data, 1, t.stride(1)};
    x.refuse("strides ", list(t.strides()), "; one of the dimensions needs to be contiguous");
}

// rows, k: of the operand whose scales they are. one_column: a scale a row is [rows, 1], otherwise [1, rows].
// by_blocks: what [1, rows] is where it may also be one row of blocks.
op::Scales block_scales(const Arg& scale, const Arg& a, int64_t rows, int64_t k, bool one_column, bool by_blocks) {
    const Tensor& t = scale.tensor();
    op::Scales s{scale.data(), 0, 0, 1, DType::f32};
    // The Python function passes the bytes of float8_e8m0fnu.
    s.dtype = t.scalar_type() == ScalarType::Byte ? DType::e8m0 : scale.dtype({DType::f32, DType::e8m0});
    scale.check_device_of(a);
    const int64_t blocks = op::blocks_of(k), row_blocks = op::blocks_of(rows);
    const bool flat = t.dim() == 1, plane = t.dim() == 2;
    const auto is = [&](int64_t first, int64_t second) { return plane && t.size(0) == first && t.size(1) == second; };
    if (t.numel() == 1 && t.dim() <= 2) return s;
    if (flat && t.size(0) == rows) {
        s.row_stride = t.stride(0);
    } else if (is(rows, blocks)) {
        s.row_stride = t.stride(0), s.block_stride = t.stride(1);
    } else if (is(row_blocks, blocks) && (one_column || by_blocks || !is(1, rows))) {
        s.row_stride = t.stride(0), s.block_stride = t.stride(1), s.rows = op::kBlock;
    } else if (one_column && is(rows, 1)) {
        s.row_stride = t.stride(0);
    } else if (!one_column && is(1, rows)) {
        s.row_stride = t.stride(1);
    } else {
        const char* dimension = one_column ? "M" : "N";
        scale.refuse("shape ", scale.shape(), "; needs one element, ", one_column ? "[M, 1]" : "[1, N]", ", [",
                     dimension, ", ceil(K / 128)] or [ceil(", dimension, " / 128), ceil(K / 128)] with ", dimension,
                     " = ", rows, ", ceil(K / 128) = ", blocks);
    }
    return s;
}

void block_scaled_gemm(const Tensor& out_t, const Tensor& a_t, const Tensor& b_t, const Tensor& scale_a_t,
                       const Tensor& scale_b_t, const std::optional<Tensor>& bias_t, bool constant_b) {
    const char* const name = "block_scaled_gemm";
    const Arg out(name, "out", out_t), a(name, "a", a_t), b(name, "b", b_t);
    const Arg scale_a(name, "scale_a", scale_a_t), scale_b(name, "scale_b", scale_b_t);
    op::Args args{};
    args.constant_b = constant_b;
    const GemmSizes sizes = gemm_sizes(a, b);
    args.format = sizes.format;
    args.m = sizes.m;
    args.n = sizes.n;
    args.k = sizes.k;
    args.a = operand(a);
    args.b = operand(b);
    args.scale_a = block_scales(scale_a, a, args.m, args.k, true, true);
    const bool a_by_blocks = scale_a.dim() == 2 && scale_a.size(1) > 1;
    args.scale_b = block_scales(scale_b, a, args.n, args.k, false, a_by_blocks);
    args.out = gemm_output(out, a, sizes, {&a, &b, &scale_a, &scale_b});
    args.bias = gemm_bias(name, bias_t, a, out, args.n);
    args.out.data = out.mutable_data();
    check(name, op::launch(args, Launch(a_t)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    // Scales: float32, float8_e8m0fnu or its bytes, as uint8. Their shapes say what has one.
    ops.add<&block_scaled_gemm>(
        "block_scaled_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, bool "
        "constant_b=False) -> ()");
}

}  // namespace rocm_fp8::binding
