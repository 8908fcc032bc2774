#include "binding.h"
#include "operators.h"
#include "rms_norm_args.h"

namespace rocm_fp8::binding {
namespace {

void rms_norm_into(const char* op, const Tensor& out, const Tensor& x, const Tensor& weight, double epsilon,
                   const RmsNormOptions& options) {
    const rms_norm::Args args = rms_norm_args(op, out, x, weight, epsilon, options);
    check(op, rms_norm::launch(args, Launch(x)));
}

void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, double epsilon) {
    rms_norm_into("rms_norm", out, x, weight, epsilon, {});
}

void rms_norm_fp8(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& scale, double epsilon) {
    rms_norm_into("rms_norm_fp8", out, x, weight, epsilon, {.scale = &scale});
}

void add_rms_norm_fp8(const Tensor& out, const Tensor& x, const Tensor& residual, const Tensor& weight,
                      const Tensor& scale, double epsilon) {
    rms_norm_into("add_rms_norm_fp8", out, x, weight, epsilon, {.residual = &residual, .scale = &scale});
}

void rms_norm_dynamic_fp8(const Tensor& out, const Tensor& scale, const Tensor& x, const Tensor& weight, double epsilon,
                          const std::optional<Tensor>& normalized, const std::optional<Tensor>& upper_bound,
                          int64_t group, double fp8_max, bool power_of_two) {
    const ScaleArgs computed{scale, upper_bound, group, fp8_max, power_of_two};
    rms_norm_into("rms_norm_dynamic_fp8", out, x, weight, epsilon,
                  {.computed = &computed, .normalized = normalized ? &*normalized : nullptr});
}

void add_rms_norm_dynamic_fp8(const Tensor& out, const Tensor& scale, const Tensor& x, const Tensor& residual,
                              const Tensor& weight, double epsilon, const std::optional<Tensor>& normalized,
                              const std::optional<Tensor>& upper_bound, int64_t group, double fp8_max,
                              bool power_of_two) {
    const ScaleArgs computed{scale, upper_bound, group, fp8_max, power_of_two};
    rms_norm_into("add_rms_norm_dynamic_fp8", out, x, weight, epsilon,
                  {.residual = &residual, .computed = &computed, .normalized = normalized ? &*normalized : nullptr});
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&rms_norm>("rms_norm(Tensor(a!) out, Tensor x, Tensor weight, float epsilon) -> ()");
    ops.add<&rms_norm_fp8>("rms_norm_fp8(Tensor(a!) out, Tensor x, Tensor weight, Tensor scale, float epsilon) -> ()");
    ops.add<&add_rms_norm_fp8>(
        "add_rms_norm_fp8(Tensor(a!) out, Tensor x, Tensor(b!) residual, Tensor weight, Tensor scale, float "
        "epsilon) -> ()");
    ops.add<&rms_norm_dynamic_fp8>(
        "rms_norm_dynamic_fp8(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, Tensor weight, float epsilon, "
        "Tensor(c!)? normalized_out, Tensor? scale_ub, int group, float fp8_max, bool power_of_two) -> ()");
    ops.add<&add_rms_norm_dynamic_fp8>(
        "add_rms_norm_dynamic_fp8(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, Tensor(d!) residual, Tensor "
        "weight, float epsilon, Tensor(c!)? normalized_out, Tensor? scale_ub, int group, float fp8_max, bool "
        "power_of_two) -> ()");
}

}  // namespace rocm_fp8::binding
