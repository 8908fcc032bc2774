// The operators' schemas, and their registration; one binding for every backend.
#include <torch/csrc/stable/library.h>

#include "../common/environment.h"
#include "operators.h"
#include "registration.h"

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
    ops.def("reread_environment() -> ()");
}

// It has no tensor, so no backend.
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, ops) {
    ops.impl("reread_environment", TORCH_BOX(&rocm_fp8::reread_environment));
}

#if defined(CPU_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
#endif
    ops.impl("rms_norm", TORCH_BOX(&rocm_fp8::binding::rms_norm));
    ops.impl("rms_norm_fp8", TORCH_BOX(&rocm_fp8::binding::rms_norm_fp8));
    ops.impl("add_rms_norm_fp8", TORCH_BOX(&rocm_fp8::binding::add_rms_norm_fp8));
    ops.impl("quantize_fp8", TORCH_BOX(&rocm_fp8::binding::quantize_fp8));
    ops.impl("quantize_static_fp8", TORCH_BOX(&rocm_fp8::binding::quantize_static_fp8));
    ops.impl("rms_norm_dynamic_fp8", TORCH_BOX(&rocm_fp8::binding::rms_norm_dynamic_fp8));
    ops.impl("add_rms_norm_dynamic_fp8", TORCH_BOX(&rocm_fp8::binding::add_rms_norm_dynamic_fp8));
    ops.impl("swiglu_dynamic_fp8", TORCH_BOX(&rocm_fp8::binding::swiglu_dynamic_fp8));
    ops.impl("swiglu_fp8", TORCH_BOX(&rocm_fp8::binding::swiglu_fp8));
    ops.impl("skinny_gemm", TORCH_BOX(&rocm_fp8::binding::skinny_gemm));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
