#include "../mx_gemm/mx_gemm.h"

#include "../moe_gate/moe_gate.h"
#include "../quantize_mxfp4/quantize_mxfp4.h"
#include "binding.h"
#include "gemm_args.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

constexpr std::initializer_list<DType> kOfA = {DType::bf16, DType::f16, DType::e4m3fn, DType::e4m3fnuz};

// uint8: two codes a byte.
DType format_of(const Arg& x, std::initializer_list<DType> others) {
    return x.tensor().scalar_type() == ScalarType::Byte ? DType::e2m1 : x.dtype(others);
}

// The arguments of one product: a grouped one, b [E, N, K]; or a dense one, b [N, K].
struct MxCall {
    MxCall(const char* name, const Tensor& out_t, const Tensor& a_t, const Tensor& b_t,
           const std::optional<Tensor>& scale_a, const Tensor& scale_b, bool grouped)
        : grouped(grouped), name(name), out(name, "out", out_t), a(name, "a", a_t), b(name, "b", b_t) {
        args.format_a = format_of(a, kOfA), args.format_b = format_of(b, {DType::e4m3fn, DType::e4m3fnuz});
        a.check_dim(2);
        b.check_dim(grouped ? 3 : 2);
        b.check_device_of(a);
        const int64_t per_a = args.format_a == DType::e2m1 ? 2 : 1, per_b = args.format_b == DType::e2m1 ? 2 : 1;
        if (per_a > per_b) a.refuse("dtype uint8 (MXFP4) with b of FP8; needs b of MXFP4");
        if (is_fp8(args.format_a) && is_fp8(args.format_b)) b.dtype({args.format_a});
        args.a_rows = a.size(0), args.k = a.last() * per_a;
        args.n = b.size(b.dim() - 2), args.groups = grouped ? b.size(0) : 1;
        if (args.k < 1 || args.k % kMxBlock != 0) a.refuse("shape ", a.shape(), "; needs K a multiple of ", kMxBlock);
        if (b.last() * per_b != args.k)
            b.refuse("shape ", b.shape(), "; needs a last dimension of ", args.k / per_b, " for a's K = ", args.k);
        if (args.groups < 1 || args.groups > mx_gemm::kMostGroups)
            b.refuse("shape ", b.shape(), "; needs [E, N, K] with 1 to ", mx_gemm::kMostGroups, " experts");
        a.check_last_contiguous();
        b.check_last_contiguous();
        args.a = operand(a), args.b = operand(b);
        set_scale_a(scale_a);
        const Arg scale(name, "scale_b", scale_b);
        check_exponents(scale);
        if (grouped) scale.check_shape({args.groups, args.n, args.k / kMxBlock}, "[E, N, K / 32]");
        else scale.check_shape({args.n, args.k / kMxBlock}, "[N, K / 32]");
        args.scale_b = exponents(scale);
    }

    const bool grouped;
    const char* const name;
    const Arg out, a, b;
    mx_gemm::Args args{};

  private:
    static gemm::Operand operand(const Arg& x) {
        const Tensor& t = x.tensor();
        const int64_t size = t.element_size(), dim = x.dim();
        const auto stride = [&](int64_t i) { return x.size(i) > 1 ? t.stride(i) * size : 0; };
        return {dim == 3 ? stride(0) : 0, static_cast<const uint8_t*>(x.data()), stride(dim - 2), 1};
    }
    // The Python functions pass the bytes of float8_e8m0fnu.
    static bool holds_exponents(const Arg& scale) {
        const ScalarType type = scale.tensor().scalar_type();
        return type == ScalarType::Byte || type == ScalarType::Float8_e8m0fnu;
    }
    void check_exponents(const Arg& scale) const {
        if (!holds_exponents(scale)) scale.dtype({DType::e8m0});
        scale.check_device_of(a);
    }
    gemm::Scales exponents(const Arg& scale) const {
        const Tensor& t = scale.tensor();
        const int64_t dim = scale.dim();
        return {dim == 3 ? t.stride(0) : 0, scale.data(), t.stride(dim - 2), t.stride(dim - 1), 1, DType::e8m0, 0};
    }
    void set_scale_a(const std::optional<Tensor>& given) {
        if (!given) {
            if (args.format_a == DType::e2m1) refuse(name, "scale_a: None; MXFP4 operands need scales of 32");
            if (is_fp8(args.format_a)) refuse(name, "scale_a: None; FP8 operands need scales");
            return;
        }
        const Arg scale(name, "scale_a", *given);
        if (!is_fp8(args.format_a) && args.format_a != DType::e2m1)
            scale.refuse("given; operands of ", name_of(args.format_a), " have no scales");
        if (args.format_a == DType::e2m1 || holds_exponents(scale)) {
            check_exponents(scale);
            scale.check_shape({args.a_rows, args.k / kMxBlock}, "[M, K / 32]");
            args.scale_a = exponents(scale);
            return;
        }
        scale.dtype({DType::f32, DType::e8m0});
        scale.check_device_of(a);
        const Tensor& t = *given;
        args.scale_a = {0, scale.data(), 0, 0, 1, DType::f32, 0};
        if (t.numel() == 1) return;
        if (t.size(0) != args.a_rows || t.numel() != args.a_rows)
            scale.refuse("shape ", scale.shape(), "; needs one element, [M] or [M, 1] with M = ", args.a_rows,
                         "; or float8_e8m0fnu [M, K / 32]");
        args.scale_a.row_stride = t.stride(0);
    }
};

// Where the backend does not gate: by two launches.
Status product_then_gate(mx_gemm::Args args, const Launch& on, const Tensor& like) {
    const Tensor product = torch::stable::new_empty(like, {args.m, args.n}, ScalarType::Float);
    const gemm::Output out = args.out;
    args.gated = false, args.out = {0, product.mutable_data_ptr(), args.n, DType::f32};
    if (const Status s = mx_gemm::launch(args, on); !s.ok()) return s;
    return moe_gate::launch({args.out.data, out.data, args.m, args.n / 2, args.n, out.row_stride, DType::f32, out.dtype,
                             args.offsets + args.groups, args.gate},
                            on);
}

// The rest of a call, which is checked after its operands.
void launch_mx(MxCall& call, const Tensor& out_t, const std::optional<Tensor>& scale_a, const Tensor& scale_b) {
    mx_gemm::Args& args = call.args;
    const Arg& out = call.out;
    args.out.dtype = args.gated ? out.dtype({DType::bf16, DType::f16}) : out.dtype(kWide);
    out.check_device_of(call.a);
    if (args.gated) out.check_shape({args.m, args.n / 2}, "[rows, I]");
    else out.check_shape({args.m, args.n}, call.grouped ? "[rows, N]" : "[M, N]");
    out.check_last_contiguous();
    out.check_no_self_overlap();
    out.check_apart_from(call.a);
    out.check_apart_from(call.b);
    if (scale_a) out.check_apart_from(Arg(call.name, "scale_a", *scale_a));
    out.check_apart_from(Arg(call.name, "scale_b", scale_b));
    args.out.data = out.mutable_data(), args.out.row_stride = args.m > 1 ? out_t.stride(0) : 0;
    const Launch on(call.a.tensor());
    const bool at_once = !args.gated || mx_gemm::gates(args);
    check(call.name, at_once ? mx_gemm::launch(args, on) : product_then_gate(args, on, call.a.tensor()));
}

void block_scaled_gemm_mx(const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& scale_a,
                          const Tensor& scale_b, const std::optional<Tensor>& bias) {
    MxCall call("block_scaled_gemm", out, a, b, scale_a, scale_b, false);
    mx_gemm::Args& args = call.args;
    args.m = args.a_rows, args.slots = divider_by(1), args.expected = std::max<int64_t>(1, args.m);
    args.bias = bias_of(call.name, bias, call.a, {args.n});
    if (bias) call.out.check_apart_from(Arg(call.name, "bias", *bias));
    launch_mx(call, out, scale_a, scale_b);
}

void grouped_gemm_mx(const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& scale_a,
                     const Tensor& scale_b, const Tensor& offsets, const std::optional<Tensor>& rows, int64_t slots,
                     const std::optional<Tensor>& bias, int64_t expected_rows) {
    MxCall call("grouped_gemm", out, a, b, scale_a, scale_b, true);
    const SortedRows sorted{offsets, rows, slots, bias, expected_rows};
    sorted.set(call.args, call.name, call.a);
    sorted.check_apart(call.name, call.out);
    launch_mx(call, out, scale_a, scale_b);
}

moe_gate::Gate gate_of(int64_t kind, bool interleaved, double limit, double alpha, double beta, double linear_beta) {
    return {moe_gate::Kind(kind), interleaved, float(limit), float(alpha), float(beta), float(linear_beta)};
}

void grouped_gemm_gate_mx(const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& scale_a,
                          const Tensor& scale_b, const Tensor& offsets, const std::optional<Tensor>& rows,
                          int64_t slots, const std::optional<Tensor>& bias, int64_t expected_rows, int64_t kind,
                          bool interleaved, double limit, double alpha, double beta, double linear_beta) {
    MxCall call("grouped_gemm_gate", out, a, b, scale_a, scale_b, true);
    if (call.args.n % 2 != 0) call.b.refuse("shape ", call.b.shape(), "; needs [E, 2 I, K]");
    const SortedRows sorted{offsets, rows, slots, bias, expected_rows};
    sorted.set(call.args, call.name, call.a);
    sorted.check_apart(call.name, call.out);
    call.args.gated = true;
    call.args.gate = gate_of(kind, interleaved, limit, alpha, beta, linear_beta);
    launch_mx(call, out, scale_a, scale_b);
}

void moe_gate_op(const Tensor& out_t, const Tensor& x_t, const std::optional<Tensor>& offsets, int64_t kind,
                 bool interleaved, double limit, double alpha, double beta, double linear_beta) {
    const char* const name = "moe_gate";
    const Arg out(name, "out", out_t), x(name, "x", x_t);
    moe_gate::Args args{};
    args.dtype = x.dtype({DType::f32, DType::bf16, DType::f16});
    x.check_dim(2);
    if (x.last() % 2 != 0) x.refuse("shape ", x.shape(), "; needs [R, 2 I]");
    args.rows = x.size(0), args.d = x.last() / 2, args.x_stride = x.row_stride();
    args.out_dtype = out.dtype({DType::bf16, DType::f16});
    out.check_device_of(x);
    out.check_shape({args.rows, args.d}, "[R, I]");
    args.out_stride = out.written_row_stride();
    out.check_apart_from(x);
    if (offsets) {
        const Arg given(name, "offsets", *offsets);
        given.dtype({DType::i32});
        given.check_device_of(x);
        given.check_dim(1);
        given.check_dense();
        if (given.numel() < 1) given.refuse("shape ", given.shape(), "; needs [E + 1]");
        out.check_apart_from(given);
        args.end = static_cast<const int32_t*>(given.data()) + given.numel() - 1;
    }
    args.gate = gate_of(kind, interleaved, limit, alpha, beta, linear_beta);
    args.x = x.data(), args.out = out.mutable_data();
    check(name, moe_gate::launch(args, Launch(x_t)));
}

void quantize_mxfp4_op(const Tensor& out_t, const Tensor& scale_out, const Tensor& x_t, bool even) {
    const char* const name = "quantize_mxfp4";
    const Arg out(name, "out", out_t), scales(name, "scale_out", scale_out), x(name, "x", x_t);
    quantize_mxfp4::Args args{};
    args.dtype = x.dtype({DType::f32, DType::bf16, DType::f16});
    if (x.dim() < 1) x.refuse("0 dimensions (shape ", x.shape(), "); needs [..., K]");
    args.k = x.last();
    if (args.k % kMxBlock != 0)
        x.refuse("shape ", x.shape(), "; needs a last dimension that is a multiple of ", kMxBlock);
    args.rows = x.rows(), args.x_stride = x.row_stride(), args.even = even;
    for (const Arg* written : {&out, &scales}) {
        if (written->tensor().scalar_type() != ScalarType::Byte) written->dtype({DType::e2m1});
        written->check_device_of(x);
        written->check_rows_of(x, written == &out ? args.k / 2 : args.k / kMxBlock);
        written->check_dense();
        written->check_apart_from(x);
    }
    out.check_apart_from(scales);
    args.x = x.data();
    args.codes = static_cast<uint8_t*>(out.mutable_data()), args.scales = static_cast<uint8_t*>(scales.mutable_data());
    check(name, quantize_mxfp4::launch(args, Launch(x_t)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    // What block_scaled_gemm and grouped_gemm call where b is MXFP4 (uint8) or MXFP8. Scales of blocks are bytes.
    // expected_rows: 0: as many as there are on average.
    ops.add<&block_scaled_gemm_mx>(
        "block_scaled_gemm_mx(Tensor(a!) out, Tensor a, Tensor b, Tensor? scale_a, Tensor scale_b, Tensor? bias) -> ()");
    ops.add<&grouped_gemm_mx>(
        "grouped_gemm_mx(Tensor(a!) out, Tensor a, Tensor b, Tensor? scale_a, Tensor scale_b, Tensor offsets, Tensor? "
        "rows, int slots, Tensor? bias, SymInt expected_rows) -> ()");
    // As moe_gate has the last six.
    ops.add<&grouped_gemm_gate_mx>(
        "grouped_gemm_gate_mx(Tensor(a!) out, Tensor a, Tensor b, Tensor? scale_a, Tensor scale_b, Tensor offsets, "
        "Tensor? rows, int slots, Tensor? bias, SymInt expected_rows, int kind, bool interleaved, float limit, float "
        "alpha, float beta, float linear_beta) -> ()");
    // kind: 0 silu, 1 oai, 2 situ. limit: infinity for none; linear_beta: 0 for none.
    ops.add<&moe_gate_op>(
        "moe_gate(Tensor(a!) out, Tensor x, Tensor? offsets, int kind, bool interleaved, float limit, float alpha, float "
        "beta, float linear_beta) -> ()");
    ops.add<&quantize_mxfp4_op>("quantize_mxfp4(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, bool even) -> ()");
}

}  // namespace rocm_fp8::binding
