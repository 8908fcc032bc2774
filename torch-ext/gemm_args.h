// The arguments that all GEMMs share: C = A B^T with FP8 operands, a bias and a wide result.
#pragma once

#include <optional>

#include "../common/gemm/args.h"
#include "tensor_args.h"

namespace rocm_fp8::binding {
namespace {

struct GemmSizes {
    int64_t m, n, k;
    DType format;
};

// Of a [M, K] and b [N, K].
[[maybe_unused]] GemmSizes gemm_sizes(const Arg& a, const Arg& b) {
    GemmSizes sizes{};
    sizes.format = a.dtype({DType::e4m3fn, DType::e4m3fnuz});
    b.dtype({sizes.format});
    a.check_dim(2);
    b.check_dim(2);
    b.check_device_of(a);
    sizes.m = a.size(0);
    sizes.k = a.size(1);
    sizes.n = b.size(0);
    if (b.size(1) != sizes.k) b.refuse("shape ", b.shape(), "; needs [N, K] with a's K = ", sizes.k);
    if (sizes.k < 1) a.refuse("shape ", a.shape(), "; needs K >= 1");
    return sizes;
}

// The pointer is left to be set after the last check.
[[maybe_unused]] gemm::Output gemm_output(const Arg& out, const Arg& a, const GemmSizes& sizes,
                                          std::initializer_list<const Arg*> read) {
    gemm::Output result{};
    result.dtype = out.dtype({DType::bf16, DType::f16, DType::f32});
    out.check_device_of(a);
    out.check_shape({sizes.m, sizes.n}, "[M, N]");
    result.stride = out.written_row_stride();
    for (const Arg* input : read) out.check_apart_from(*input);
    return result;
}

[[maybe_unused]] gemm::Bias gemm_bias(const char* op, const std::optional<Tensor>& bias_t, const Arg& a, const Arg& out,
                                      int64_t n) {
    if (!bias_t) return {};
    const Arg bias(op, "bias", *bias_t);
    gemm::Bias result{};
    result.dtype = bias.dtype({DType::bf16, DType::f16, DType::f32});
    bias.check_device_of(a);
    bias.check_shape({n}, "[N]");
    result.stride = bias_t->stride(0);
    out.check_apart_from(bias);
    result.data = bias.data();
    return result;
}

}  // namespace
}  // namespace rocm_fp8::binding
