#include "binding.h"
#include "operators.h"
#include "skinny_gemm_args.h"

namespace rocm_fp8::binding {
namespace {

void skinny_gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                 const std::optional<Tensor>& bias, bool constant_b) {
    constexpr const char* op = "skinny_gemm";
    check(op, rocm_fp8::skinny_gemm::launch(skinny_gemm_args(op, out, {a, b, scale_a, scale_b, bias, constant_b}),
                                            Launch(a)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&skinny_gemm>(
        "skinny_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, bool "
        "constant_b=False) -> ()");
}

}  // namespace rocm_fp8::binding
