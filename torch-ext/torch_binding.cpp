// The operators' schemas, and their registration; one binding for every backend.
#include <torch/csrc/stable/library.h>

#include <atomic>
#include <string>

#include "../common/environment.h"
#include "operators.h"
#include "registration.h"

namespace rocm_fp8::binding {
namespace {

// An operator that counts its calls; refused ones do not count.
template <auto operate>
struct Counted;
template <class... Arguments, void (*operate)(Arguments...)>
struct Counted<operate> {
    static inline std::atomic<int64_t> calls = 0;
    static void call(Arguments... arguments) {
        operate(arguments...);
        calls.fetch_add(1, std::memory_order_relaxed);
    }
};

// -1: there is no such operator.
int64_t call_count(std::string name) {
    struct {
        const char* name;
        const std::atomic<int64_t>& calls;
    } const operators[] = {
        {"rms_norm", Counted<&rms_norm>::calls},
        {"rms_norm_fp8", Counted<&rms_norm_fp8>::calls},
        {"add_rms_norm_fp8", Counted<&add_rms_norm_fp8>::calls},
        {"quantize_fp8", Counted<&quantize_fp8>::calls},
        {"quantize_static_fp8", Counted<&quantize_static_fp8>::calls},
        {"rms_norm_dynamic_fp8", Counted<&rms_norm_dynamic_fp8>::calls},
        {"add_rms_norm_dynamic_fp8", Counted<&add_rms_norm_dynamic_fp8>::calls},
        {"swiglu_dynamic_fp8", Counted<&swiglu_dynamic_fp8>::calls},
        {"swiglu_fp8", Counted<&swiglu_fp8>::calls},
        {"skinny_gemm", Counted<&skinny_gemm>::calls},
        {"block_scaled_gemm", Counted<&block_scaled_gemm>::calls},
        {"int8_gemm", Counted<&int8_gemm>::calls},
        {"linear_abde_i8", Counted<&linear_abde_i8>::calls},
        {"linear_relu_abde_i8", Counted<&linear_relu_abde_i8>::calls},
        {"linear_ab_i8_de_f32", Counted<&linear_ab_i8_de_f32>::calls},
        {"bmm_abe_i8", Counted<&bmm_abe_i8>::calls},
        {"bmm_ab_i8_e_f32", Counted<&bmm_ab_i8_e_f32>::calls},
        {"quantize_int8", Counted<&quantize_int8>::calls},
        {"layer_norm_int8", Counted<&layer_norm_int8>::calls},
        {"softmax_int8", Counted<&softmax_int8>::calls},
    };
    for (const auto& each : operators)
        if (name == each.name) return each.calls.load(std::memory_order_relaxed);
    return -1;
}

}  // namespace
}  // namespace rocm_fp8::binding

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
    ops.def("rms_norm(Tensor(a!) out, Tensor x, Tensor weight, float epsilon) -> ()");
    ops.def("rms_norm_fp8(Tensor(a!) out, Tensor x, Tensor weight, Tensor scale, float epsilon) -> ()");
    ops.def(
        "add_rms_norm_fp8(Tensor(a!) out, Tensor x, Tensor(b!) residual, Tensor weight, Tensor scale, float epsilon) "
        "-> ()");
    // group: 32, 64 or 128 elements of a row; 0: a row; -1: the tensor. Each has a scale of its own. scale_out: float32,
    // float8_e8m0fnu or its bytes, as uint8.
    ops.def(
        "quantize_fp8(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, Tensor? scale_ub, int group, float fp8_max, "
        "bool power_of_two) -> ()");
    ops.def("quantize_static_fp8(Tensor(a!) out, Tensor x, Tensor scale) -> ()");
    ops.def(
        "rms_norm_dynamic_fp8(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, Tensor weight, float epsilon, "
        "Tensor(c!)? normalized_out, Tensor? scale_ub, int group, float fp8_max, bool power_of_two) -> ()");
    ops.def(
        "add_rms_norm_dynamic_fp8(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, Tensor(d!) residual, Tensor weight, "
        "float epsilon, Tensor(c!)? normalized_out, Tensor? scale_ub, int group, float fp8_max, bool power_of_two) "
        "-> ()");
    ops.def(
        "swiglu_dynamic_fp8(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, float? limit, Tensor? scale_ub, int group, "
        "float fp8_max, bool power_of_two) -> ()");
    ops.def("swiglu_fp8(Tensor(a!) out, Tensor x, Tensor scale) -> ()");
    ops.def(
        "skinny_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, "
        "bool constant_b=False) -> ()");
    // Scales: float32, float8_e8m0fnu or its bytes, as uint8. Their shapes say what has one.
    ops.def(
        "block_scaled_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, "
        "bool constant_b=False) -> ()");
    // activation: 0 none, 1 relu, 2 gelu, 3 gelu_tanh.
    ops.def(
        "int8_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, Tensor? zero_a, "
        "Tensor? sum_b, Tensor? scale_out, int activation, bool constant_b=False) -> ()");
    // alpha_value, beta_value: where the tensors are None.
    ops.def(
        "linear_abde_i8(Tensor(a!) out, Tensor a, Tensor b, Tensor d, Tensor? alpha, Tensor? beta, float alpha_value, "
        "float beta_value, bool constant_b=False) -> ()");
    ops.def(
        "linear_relu_abde_i8(Tensor(a!) out, Tensor a, Tensor b, Tensor d, Tensor? alpha, Tensor? beta, float alpha_value, "
        "float beta_value, bool constant_b=False) -> ()");
    ops.def(
        "linear_ab_i8_de_f32(Tensor(a!) out, Tensor a, Tensor b, Tensor d, Tensor? alpha, Tensor? beta, float alpha_value, "
        "float beta_value, bool constant_b=False) -> ()");
    ops.def("bmm_abe_i8(Tensor(a!) out, Tensor a, Tensor b, Tensor? alpha, float alpha_value) -> ()");
    ops.def("bmm_ab_i8_e_f32(Tensor(a!) out, Tensor a, Tensor b, Tensor? alpha, float alpha_value) -> ()");
    // With scale (and zero_point) these are used; without, scale_out (and zero_point_out) take what is computed.
    ops.def(
        "quantize_int8(Tensor(a!) out, Tensor(b!)? scale_out, Tensor(c!)? zero_point_out, Tensor x, Tensor? scale, "
        "Tensor? zero_point) -> ()");
    ops.def(
        "layer_norm_int8(Tensor(a!) out, Tensor(b!)? scale_out, Tensor(c!)? zero_point_out, Tensor x, "
        "Tensor(d!)? residual, Tensor weight, Tensor? bias, Tensor? scale, Tensor? zero_point, float epsilon) -> ()");
    ops.def("softmax_int8(Tensor(a!) out, Tensor x, Tensor? mask) -> ()");
    ops.def("reread_environment() -> ()");
    ops.def("call_count(str name) -> int");
}

// They have no tensor, so no backend.
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, ops) {
    ops.impl("reread_environment", TORCH_BOX(&rocm_fp8::reread_environment));
    ops.impl("call_count", TORCH_BOX(&rocm_fp8::binding::call_count));
}

#if defined(CPU_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
#endif
    using namespace rocm_fp8::binding;
    ops.impl("rms_norm", TORCH_BOX(&Counted<&rms_norm>::call));
    ops.impl("rms_norm_fp8", TORCH_BOX(&Counted<&rms_norm_fp8>::call));
    ops.impl("add_rms_norm_fp8", TORCH_BOX(&Counted<&add_rms_norm_fp8>::call));
    ops.impl("quantize_fp8", TORCH_BOX(&Counted<&quantize_fp8>::call));
    ops.impl("quantize_static_fp8", TORCH_BOX(&Counted<&quantize_static_fp8>::call));
    ops.impl("rms_norm_dynamic_fp8", TORCH_BOX(&Counted<&rms_norm_dynamic_fp8>::call));
    ops.impl("add_rms_norm_dynamic_fp8", TORCH_BOX(&Counted<&add_rms_norm_dynamic_fp8>::call));
    ops.impl("swiglu_dynamic_fp8", TORCH_BOX(&Counted<&swiglu_dynamic_fp8>::call));
    ops.impl("swiglu_fp8", TORCH_BOX(&Counted<&swiglu_fp8>::call));
    ops.impl("skinny_gemm", TORCH_BOX(&Counted<&skinny_gemm>::call));
    ops.impl("block_scaled_gemm", TORCH_BOX(&Counted<&block_scaled_gemm>::call));
    ops.impl("int8_gemm", TORCH_BOX(&Counted<&int8_gemm>::call));
    ops.impl("linear_abde_i8", TORCH_BOX(&Counted<&linear_abde_i8>::call));
    ops.impl("linear_relu_abde_i8", TORCH_BOX(&Counted<&linear_relu_abde_i8>::call));
    ops.impl("linear_ab_i8_de_f32", TORCH_BOX(&Counted<&linear_ab_i8_de_f32>::call));
    ops.impl("bmm_abe_i8", TORCH_BOX(&Counted<&bmm_abe_i8>::call));
    ops.impl("bmm_ab_i8_e_f32", TORCH_BOX(&Counted<&bmm_ab_i8_e_f32>::call));
    ops.impl("quantize_int8", TORCH_BOX(&Counted<&quantize_int8>::call));
    ops.impl("layer_norm_int8", TORCH_BOX(&Counted<&layer_norm_int8>::call));
    ops.impl("softmax_int8", TORCH_BOX(&Counted<&softmax_int8>::call));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
