// The arguments of skinny_gemm, alone and with what follows it.
#pragma once

#include "../skinny_gemm/skinny_gemm.h"
#include "gemm_args.h"

namespace rocm_fp8::binding {
namespace {

struct SkinnyGemmOperands {
    const Tensor &a, &b, &scale_a, &scale_b;
    const std::optional<Tensor>& bias;
    bool constant_b;
};

// out_name: the argument's. allowed: its dtypes.
skinny_gemm::Args skinny_gemm_args(const char* op, const Tensor& out, const SkinnyGemmOperands& given,
                                   const char* out_name = "out", std::initializer_list<DType> allowed = kWide) {
    const GemmCall call(op, out, given.a, given.b, kFp8, 2, out_name);
    if (call.m > skinny_gemm::kMaxRows) call.a.refuse(call.m, " rows; at most ", skinny_gemm::kMaxRows, " are allowed");
    auto args = call.args<skinny_gemm::Args>(given.constant_b);
    args.format = call.format;
    gemm::Epilogue& e = args.epilogue;
    e.out = call.result(allowed);
    e.scale_a = call.scales("scale_a", given.scale_a, Side::a);
    e.scale_b = call.scales("scale_b", given.scale_b, Side::b);
    e.bias = call.bias(given.bias);
    e.out.data = call.out.mutable_data();
    return args;
}

}  // namespace
}  // namespace rocm_fp8::binding
