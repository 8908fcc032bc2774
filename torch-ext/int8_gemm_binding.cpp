// int8_gemm, and SmoothQuant's five wrappers of the same kernel.
#include "../int8_gemm/int8_gemm.h"
#include "binding.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

namespace op = rocm_fp8::int8_gemm;

// The arguments of one call, checked one after the other; launched when all are.
class Call {
  public:
    // dims: 2 ([M, K] and [N, K]) or 3 ([B, M, K] and [B, N, K]); 0: a says which.
    Call(const char* name, const Tensor& out, const Tensor& a, const Tensor& b, int64_t dims)
        : name_(name), out_(name, "out", out), a_(name, "a", a), b_(name, "b", b) {
        a_.dtype({DType::i8});
        b_.dtype({DType::i8});
        if (dims) a_.check_dim(dims);
        else if (a.dim() != 2 && a.dim() != 3) a_.refuse(a.dim(), " dimensions (shape ", a_.shape(), "); needs 2 or 3");
        b_.check_dim(a.dim());
        b_.check_device_of(a_);
        batched_ = a.dim() == 3;
        args_.batch = batched_ ? a.size(0) : 1;
        args_.m = a.size(a.dim() - 2);
        args_.k = a_.last();
        args_.n = b.size(b.dim() - 2);
        if (b_.last() != args_.k) b_.refuse("shape ", b_.shape(), "; needs a last dimension of a's K = ", args_.k);
        if (batched_ && b.size(0) != args_.batch)
            b_.refuse("shape ", b_.shape(), "; needs a's first dimension ", args_.batch);
        if (args_.k < 1) a_.refuse("shape ", a_.shape(), "; needs K >= 1");
        if (args_.k > op::kMaxK)
            a_.refuse("K = ", args_.k, "; at most ", op::kMaxK, " products of int8 have a sum that fits into int32");
        args_.a = operand(a_);
        args_.b = operand(b_);
        epilogue().scale_a = epilogue().scale_b = epilogue().addend.beta = epilogue().scale_out = {nullptr, 0, 0, 1.0f};
    }

    op::Epilogue& epilogue() { return args_.epilogue; }

    void result(std::initializer_list<DType> allowed) {
        op::Output& to = epilogue().out;
        to.dtype = out_.dtype(allowed);
        out_.check_device_of(a_);
        if (batched_) out_.check_shape({args_.batch, args_.m, args_.n}, "[B, M, N]");
        else out_.check_shape({args_.m, args_.n}, "[M, N]");
        out_.check_last_contiguous();
        out_.check_no_self_overlap();
        to.row_stride = row_stride(out_);
        to.batch_stride = batch_stride(out_);
        out_.check_apart_from(a_);
        out_.check_apart_from(b_);
    }

    // One element, [rows] or, with `column`, [rows, 1], otherwise [1, rows]; batches may have their own.
    op::Scale scales(const char* argument, const Tensor& t, int64_t rows, bool column) {
        const Arg scale(name_, argument, t);
        scale.dtype({DType::f32});
        const auto [batch_stride, stride] = vector(scale, rows, column);
        return {static_cast<const float*>(scale.data()), batch_stride, stride, 0.0f};
    }
    op::Integers integers(const char* argument, const Tensor& t, int64_t rows, bool column) {
        const Arg values(name_, argument, t);
        values.dtype({DType::i32});
        const auto [batch_stride, stride] = vector(values, rows, column);
        return {static_cast<const int32_t*>(values.data()), batch_stride, stride};
    }

    // A number of the host, or one element of the device's.
    op::Scale number(const char* argument, const std::optional<Tensor>& t, double value) {
        if (!t) return {nullptr, 0, 0, float(value)};
        const Arg one(name_, argument, *t);
        const float* data = one.scale_of(a_);
        out_.check_apart_from(one);
        return {data, 0, 0, 0.0f};
    }

    // [N], or where `full` [M, N] as well.
    void addend(const char* argument, const Tensor& t, std::initializer_list<DType> allowed, bool full) {
        const Arg d(name_, argument, t);
        op::Addend& to = epilogue().addend;
        to.dtype = d.dtype(allowed);
        d.check_device_of(a_);
        if (full && t.dim() == 2) {
            d.check_shape({args_.m, args_.n}, "[N] or [M, N]");
            to.row_stride = row_stride(d);
        } else {
            d.check_shape({args_.n}, full ? "[N] or [M, N]" : "[N]");
        }
        d.check_last_contiguous();
        out_.check_apart_from(d);
        to.data = d.data();
    }

    void launch(bool constant_b) {
        args_.constant_b = constant_b;
        epilogue().out.data = out_.mutable_data();
        check(name_, op::launch(args_, Launch(a_.tensor())));
    }

    int64_t m() const { return args_.m; }
    int64_t n() const { return args_.n; }

  private:
    int64_t row_stride(const Arg& x) const { return x.size(x.dim() - 2) > 1 ? x.tensor().stride(x.dim() - 2) : 0; }
    int64_t batch_stride(const Arg& x) const { return batched_ && x.size(0) > 1 ? x.tensor().stride(0) : 0; }
    op::Operand operand(const Arg& x) const {
        x.check_last_contiguous();
        return {static_cast<const int8_t*>(x.data()), batch_stride(x), row_stride(x)};
    }

    std::pair<int64_t, int64_t> vector(const Arg& x, int64_t rows, bool column) {
        const Tensor& t = x.tensor();
        x.check_device_of(a_);
        out_.check_apart_from(x);
        if (t.numel() == 1 && t.dim() <= 3) return {0, 0};
        const int64_t along = t.dim() - (column && t.dim() > 1 ? 2 : 1);  // the dimension of the rows
        bool right = t.dim() >= 1 && t.dim() <= (batched_ ? 3 : 2) && t.size(along) == rows;
        if (right && t.dim() >= 2) right = t.size(column ? along + 1 : along - 1) == 1;
        if (right && t.dim() == 3) right = t.size(0) == args_.batch;
        if (!right) {
            const char *letter = column ? "M" : "N", *flat = column ? "[M, 1]" : "[1, N]";
            x.refuse("shape ", x.shape(), "; needs one element, [", letter, "]", batched_ ? ", " : " or ", flat,
                     batched_ ? (column ? " or [B, M, 1]" : " or [B, 1, N]") : "", " with ", letter, " = ", rows);
        }
        return {t.dim() == 3 ? t.stride(0) : 0, t.stride(along)};
    }

    const char* const name_;
    const Arg out_, a_, b_;
    op::Args args_{};
    bool batched_;
};

struct Alphas {
    const std::optional<Tensor>&alpha, &beta;
    double alpha_value, beta_value;
};

void linear(const char* name, const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& d, const Alphas& by,
            DType type, op::Activation activation, bool constant_b) {
    Call call(name, out, a, b, 2);
    call.result({type});
    call.addend("d", d, {type}, true);
    call.epilogue().scale_a = call.number("alpha", by.alpha, by.alpha_value);
    call.epilogue().addend.beta = call.number("beta", by.beta, by.beta_value);
    call.epilogue().activation = activation;
    call.launch(constant_b);
}

void bmm(const char* name, const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& alpha,
         double alpha_value, DType type) {
    Call call(name, out, a, b, 3);
    call.result({type});
    call.epilogue().scale_a = call.number("alpha", alpha, alpha_value);
    call.launch(false);
}

void int8_gemm(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
               const std::optional<Tensor>& bias, const std::optional<Tensor>& zero_a,
               const std::optional<Tensor>& sum_b, const std::optional<Tensor>& scale_out, int64_t activation,
               bool constant_b) {
    const char* const name = "int8_gemm";
    Call call(name, out, a, b, 0);
    call.result({DType::bf16, DType::f16, DType::f32, DType::i8});
    op::Epilogue& e = call.epilogue();
    e.scale_a = call.scales("scale_a", scale_a, call.m(), true);
    e.scale_b = call.scales("scale_b", scale_b, call.n(), false);
    if (bias) call.addend("bias", *bias, {DType::bf16, DType::f16, DType::f32}, false);
    if (bool(zero_a) != bool(sum_b))
        refuse(name, zero_a ? "sum_b" : "zero_a", ": None; needs a tensor with ", zero_a ? "zero_a" : "sum_b");
    if (zero_a) {
        e.zero_a = call.integers("zero_a", *zero_a, call.m(), true);
        e.sum_b = call.integers("sum_b", *sum_b, call.n(), false);
    }
    if (scale_out) {
        if (e.out.dtype != DType::i8) refuse(name, "scale_out: given; only a result of int8 has one");
        e.scale_out = call.number("scale_out", scale_out, 1.0);
        e.divides = true;
    }
    if (activation < 0 || activation > int64_t(op::Activation::gelu_tanh)) refuse(name, "activation: ", activation);
    e.activation = op::Activation(activation);
    call.launch(constant_b);
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
