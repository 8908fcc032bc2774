#include <algorithm>

#include "../block_scaled_gemm/block_scaled_gemm.h"
#include "binding.h"
#include "gemm_args.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

namespace op = rocm_fp8::block_scaled_gemm;

void block_scaled_gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& scale_a,
                       const Tensor& scale_b, const std::optional<Tensor>& bias, bool constant_b, int64_t whole_m,
                       int64_t whole_n, int64_t spare_units) {
    const GemmCall call("block_scaled_gemm", out, a, b, kFp8, 2);
    auto args = call.args<op::Args>(constant_b, true);
    args.format = call.format;
    args.out = call.result(kWide);
    args.scale_a = call.scales("scale_a", scale_a, Side::a, Blocks::after_rows);
    const bool a_by_blocks = scale_a.dim() == 2 && scale_a.size(1) > 1;
    args.scale_b = call.scales("scale_b", scale_b, Side::b, a_by_blocks ? Blocks::before_rows : Blocks::after_rows);
    args.bias = call.bias(bias);
    args.out.data = call.out.mutable_data();
    if ((whole_m || whole_n) && (whole_m < call.m || whole_n < call.n))
        refuse(call.name, "whole_m, whole_n: ", whole_m, ", ", whole_n, "; a part of a GEMM is not larger than it");
    if (spare_units < 0) refuse(call.name, "spare_units: ", spare_units, "; needs 0 or more");
    check(call.name, op::launch(args, Launch(a), {whole_m, whole_n, int(std::min<int64_t>(spare_units, 1 << 20))}));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    // Scales: float32, float8_e8m0fnu or its bytes, as uint8. Their shapes say what has one.
    ops.add<&block_scaled_gemm>(
        "block_scaled_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, bool "
        "constant_b=False, int whole_m=0, int whole_n=0, int spare_units=0) -> ()");
}

}  // namespace rocm_fp8::binding
