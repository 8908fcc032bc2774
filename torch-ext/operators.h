// The operators as torch calls them, defined in one file per operator family. They write into `out` and return nothing.
// So no operator allocates, torch.compile sees every write in the schema, and the Python functions allocate.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>

namespace rocm_fp8::binding {

using torch::stable::Tensor;

void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, double epsilon);
void rms_norm_fp8(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& scale, double epsilon);
void add_rms_norm_fp8(const Tensor& out, const Tensor& x, const Tensor& residual, const Tensor& weight,
                      const Tensor& scale, double epsilon);
void quantize_fp8(const Tensor& out, const Tensor& scale, const Tensor& x, const std::optional<Tensor>& upper_bound,
                  int64_t group, double fp8_max, bool power_of_two);
void rms_norm_dynamic_fp8(const Tensor& out, const Tensor& scale, const Tensor& x, const Tensor& weight, double epsilon,
                          const std::optional<Tensor>& normalized, const std::optional<Tensor>& upper_bound,
                          int64_t group, double fp8_max, bool power_of_two);
void add_rms_norm_dynamic_fp8(const Tensor& out, const Tensor& scale, const Tensor& x, const Tensor& residual,
                              const Tensor& weight, double epsilon, const std::optional<Tensor>& normalized,
                              const std::optional<Tensor>& upper_bound, int64_t group, double fp8_max,
                              bool power_of_two);
void swiglu_dynamic_fp8(const Tensor& out, const Tensor& scale, const Tensor& x, std::optional<double> limit,
                        const std::optional<Tensor>& upper_bound, int64_t group, double fp8_max, bool power_of_two);
void quantize_static_fp8(const Tensor& out, const Tensor& x, const Tensor& scale);
void swiglu_fp8(const Tensor& out, const Tensor& x, const Tensor& scale);
void skinny_gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                 const std::optional<Tensor>& bias, bool constant_b);
void block_scaled_gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& scale_a,
                       const Tensor& scale_b, const std::optional<Tensor>& bias, bool constant_b);
void int8_gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
               const std::optional<Tensor>& bias, const std::optional<Tensor>& zero_a,
               const std::optional<Tensor>& sum_b, const std::optional<Tensor>& scale_out, int64_t activation,
               bool constant_b);
void linear_abde_i8(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& d,
                    const std::optional<Tensor>& alpha, const std::optional<Tensor>& beta, double alpha_value,
                    double beta_value, bool constant_b);
void linear_relu_abde_i8(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& d,
                         const std::optional<Tensor>& alpha, const std::optional<Tensor>& beta, double alpha_value,
                         double beta_value, bool constant_b);
void linear_ab_i8_de_f32(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& d,
                         const std::optional<Tensor>& alpha, const std::optional<Tensor>& beta, double alpha_value,
                         double beta_value, bool constant_b);
void bmm_abe_i8(const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& alpha,
                double alpha_value);
void bmm_ab_i8_e_f32(const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& alpha,
                     double alpha_value);
void quantize_int8(const Tensor& out, const std::optional<Tensor>& scale_out, const std::optional<Tensor>& zero_out,
                   const Tensor& x, const std::optional<Tensor>& scale, const std::optional<Tensor>& zero);
void layer_norm_int8(const Tensor& out, const std::optional<Tensor>& scale_out, const std::optional<Tensor>& zero_out,
                     const Tensor& x, const std::optional<Tensor>& residual, const Tensor& weight,
                     const std::optional<Tensor>& bias, const std::optional<Tensor>& scale,
                     const std::optional<Tensor>& zero, double epsilon);
void softmax_int8(const Tensor& out, const Tensor& x, const std::optional<Tensor>& mask);

}  // namespace rocm_fp8::binding
