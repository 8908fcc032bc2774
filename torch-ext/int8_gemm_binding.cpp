// int8_gemm, and SmoothQuant's five wrappers of the same kernel.
#include "../int8_gemm/int8_gemm.h"
#include "binding.h"
#include "gemm_args.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

namespace op = rocm_fp8::int8_gemm;

// With what else the epilogue takes.
class Call : public GemmCall {
  public:
    Call(const char* name, const Tensor& out, const Tensor& a, const Tensor& b, int64_t dims, bool constant_b)
        : GemmCall(name, out, a, b, {DType::i8}, dims) {
        if (k > op::kMaxK)
            this->a.refuse("K = ", k, "; at most ", op::kMaxK, " products of int8 have a sum that fits into int32");
        args_ = args<op::Args>(constant_b);
        args_.batch = groups;
        op::Epilogue& e = epilogue();
        e.scale_a = e.scale_b = e.addend.beta = e.scale_out = number("", std::nullopt, 1.0);
    }

    op::Epilogue& epilogue() { return args_.epilogue; }

    op::Integers integers(const char* argument, const Tensor& t, Side side) {
        const gemm::Scales s = scales(argument, t, side, Blocks::none, DType::i32);
        return {s.group_stride, static_cast<const int32_t*>(s.data), s.row_stride};
    }

    // [N], or where `full` [M, N] as well.
    void addend(const char* argument, const Tensor& t, std::initializer_list<DType> allowed, bool full) {
        const Arg d(name, argument, t);
        op::Addend& to = epilogue().addend;
        to.dtype = d.dtype(allowed);
        d.check_device_of(a);
        if (full && t.dim() == 2) {
            d.check_shape({m, n}, "[N] or [M, N]");
            to.row_stride = row_stride(d);
        } else {
            d.check_shape({n}, full ? "[N] or [M, N]" : "[N]");
        }
        d.check_last_contiguous();
        out.check_apart_from(d);
        to.data = d.data();
    }

    void launch() {
        epilogue().out.data = out.mutable_data();
        check(name, op::launch(args_, Launch(a.tensor())));
    }

  private:
    op::Args args_{};
};

struct Alphas {
    const std::optional<Tensor>&alpha, &beta;
    double alpha_value, beta_value;
};

void linear(const char* name, const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& d, const Alphas& by,
            DType type, op::Activation activation, bool constant_b) {
    Call call(name, out, a, b, 2, constant_b);
    call.epilogue().out = call.result({type});
    call.addend("d", d, {type}, true);
    call.epilogue().scale_a = call.number("alpha", by.alpha, by.alpha_value);
    call.epilogue().addend.beta = call.number("beta", by.beta, by.beta_value);
    call.epilogue().activation = activation;
    call.launch();
}

void bmm(const char* name, const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& alpha,
         double alpha_value, DType type) {
    Call call(name, out, a, b, 3, false);
    call.epilogue().out = call.result({type});
    call.epilogue().scale_a = call.number("alpha", alpha, alpha_value);
    call.launch();
}

void int8_gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
               const std::optional<Tensor>& bias, const std::optional<Tensor>& zero_a,
               const std::optional<Tensor>& sum_b, const std::optional<Tensor>& scale_out, int64_t activation,
               bool constant_b) {
    const char* const name = "int8_gemm";
    Call call(name, out, a, b, 0, constant_b);
    op::Epilogue& e = call.epilogue();
    e.out = call.result({DType::bf16, DType::f16, DType::f32, DType::i8});
    e.scale_a = call.scales("scale_a", scale_a, Side::a);
    e.scale_b = call.scales("scale_b", scale_b, Side::b);
    if (bias) call.addend("bias", *bias, kWide, false);
    if (bool(zero_a) != bool(sum_b))
        refuse(name, zero_a ? "sum_b" : "zero_a", ": None; needs a tensor with ", zero_a ? "zero_a" : "sum_b");
    if (zero_a) {
        e.zero_a = call.integers("zero_a", *zero_a, Side::a);
        e.sum_b = call.integers("sum_b", *sum_b, Side::b);
    }
    if (scale_out) {
        if (e.out.dtype != DType::i8) refuse(name, "scale_out: given; only a result of int8 has one");
        e.scale_out = call.number("scale_out", scale_out, 1.0);
        e.divides = true;
    }
    if (activation < 0 || activation > int64_t(op::Activation::gelu_tanh)) refuse(name, "activation: ", activation);
    e.activation = op::Activation(activation);
    call.launch();
}

void linear_abde_i8(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& d,
                    const std::optional<Tensor>& alpha, const std::optional<Tensor>& beta, double alpha_value,
                    double beta_value, bool constant_b) {
    linear("linear_abde_i8", out, a, b, d, {alpha, beta, alpha_value, beta_value}, DType::i8, op::Activation::none,
           constant_b);
}

void linear_relu_abde_i8(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& d,
                         const std::optional<Tensor>& alpha, const std::optional<Tensor>& beta, double alpha_value,
                         double beta_value, bool constant_b) {
    linear("linear_relu_abde_i8", out, a, b, d, {alpha, beta, alpha_value, beta_value}, DType::i8, op::Activation::relu,
           constant_b);
}

void linear_ab_i8_de_f32(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& d,
                         const std::optional<Tensor>& alpha, const std::optional<Tensor>& beta, double alpha_value,
                         double beta_value, bool constant_b) {
    linear("linear_ab_i8_de_f32", out, a, b, d, {alpha, beta, alpha_value, beta_value}, DType::f32,
           op::Activation::none, constant_b);
}

void bmm_abe_i8(const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& alpha,
                double alpha_value) {
    bmm("bmm_abe_i8", out, a, b, alpha, alpha_value, DType::i8);
}

void bmm_ab_i8_e_f32(const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& alpha,
                     double alpha_value) {
    bmm("bmm_ab_i8_e_f32", out, a, b, alpha, alpha_value, DType::f32);
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    // activation: 0 none, 1 relu, 2 gelu, 3 gelu_tanh.
    ops.add<&int8_gemm>(
        "int8_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, Tensor? "
        "zero_a, Tensor? sum_b, Tensor? scale_out, int activation, bool constant_b=False) -> ()");
    // alpha_value, beta_value: where the tensors are None.
    ops.add<&linear_abde_i8>(
        "linear_abde_i8(Tensor(a!) out, Tensor a, Tensor b, Tensor d, Tensor? alpha, Tensor? beta, float "
        "alpha_value, float beta_value, bool constant_b=False) -> ()");
    ops.add<&linear_relu_abde_i8>(
        "linear_relu_abde_i8(Tensor(a!) out, Tensor a, Tensor b, Tensor d, Tensor? alpha, Tensor? beta, float "
        "alpha_value, float beta_value, bool constant_b=False) -> ()");
    ops.add<&linear_ab_i8_de_f32>(
        "linear_ab_i8_de_f32(Tensor(a!) out, Tensor a, Tensor b, Tensor d, Tensor? alpha, Tensor? beta, float "
        "alpha_value, float beta_value, bool constant_b=False) -> ()");
    ops.add<&bmm_abe_i8>("bmm_abe_i8(Tensor(a!) out, Tensor a, Tensor b, Tensor? alpha, float alpha_value) -> ()");
    ops.add<&bmm_ab_i8_e_f32>(
        "bmm_ab_i8_e_f32(Tensor(a!) out, Tensor a, Tensor b, Tensor? alpha, float alpha_value) -> ()");
}

}  // namespace rocm_fp8::binding
