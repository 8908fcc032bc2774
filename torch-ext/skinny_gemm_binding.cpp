#include "../skinny_gemm/skinny_gemm.h"
#include "binding.h"
#include "gemm_args.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

void skinny_gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                 const std::optional<Tensor>& bias, bool constant_b) {
    constexpr int64_t kMaxRows = rocm_fp8::skinny_gemm::kMaxRows;
    const GemmCall call("skinny_gemm", out, a, b, kFp8, 2);
    if (call.m > kMaxRows) call.a.refuse(call.m, " rows; at most ", kMaxRows, " are allowed");
    auto args = call.args<rocm_fp8::skinny_gemm::Args>(constant_b);
    args.format = call.format;
    gemm::Epilogue& e = args.epilogue;
    e.out = call.result(kWide);
    e.scale_a = call.scales("scale_a", scale_a, Side::a);
    e.scale_b = call.scales("scale_b", scale_b, Side::b);
    e.bias = call.bias(bias);
    e.out.data = call.out.mutable_data();
    check(call.name, rocm_fp8::skinny_gemm::launch(args, Launch(a)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&skinny_gemm>(
        "skinny_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, bool "
        "constant_b=False) -> ()");
}

}  // namespace rocm_fp8::binding
