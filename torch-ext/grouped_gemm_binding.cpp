#include "../grouped_gemm/grouped_gemm.h"

#include "binding.h"
#include "gemm_args.h"
#include "operators.h"
#include "scale_args.h"
#include "swiglu_args.h"

namespace rocm_fp8::binding {
namespace {

namespace op = rocm_fp8::grouped_gemm;

// The tensors that both operators have, as their schemas name them.
struct Grouped {
    const Tensor &a, &b;
    const std::optional<Tensor>&scale_a, &scale_b;
    SortedRows sorted;
};

// Checks one call's tensors, the result's place beside them: `out`, [m, columns(n)].
class GroupedCall {
  public:
    GroupedCall(const char* name, const Grouped& g) : name(name), a(name, "a", g.a), b(name, "b", g.b), g(g) {
        args.format = a.dtype({DType::e4m3fn, DType::e4m3fnuz, DType::bf16, DType::f16});
        b.dtype({args.format});
        a.check_dim(2);
        b.check_dim(3);
        b.check_device_of(a);
        args.a_rows = a.size(0), args.k = a.size(1), args.groups = b.size(0), args.n = b.size(1);
        if (args.k < 1) a.refuse("shape ", a.shape(), "; needs K >= 1");
        if (b.size(2) != args.k) b.refuse("shape ", b.shape(), "; needs a's K = ", args.k, " as last dimension");
        if (args.groups < 1 || args.groups > op::kMostGroups)
            b.refuse("shape ", b.shape(), "; needs [E, N, K] with 1 to ", op::kMostGroups, " experts");
        a.check_last_contiguous();
        b.check_last_contiguous();
        const int64_t bytes = args.element_bytes();
        const auto stride = [&](const Arg& x, int64_t i) { return x.size(i) > 1 ? x.tensor().stride(i) * bytes : 0; };
        args.a = {0, static_cast<const uint8_t*>(a.data()), stride(a, 0), bytes};
        args.b = {stride(b, 0), static_cast<const uint8_t*>(b.data()), stride(b, 1), bytes};
        g.sorted.set(args, name, a);
        scale(args.scale_a, "scale_a", g.scale_a, false);
        scale(args.scale_b, "scale_b", g.scale_b, true);
    }

    // Of what is written.
    void check_apart(const Arg& written) const {
        written.check_device_of(a);
        written.check_apart_from(a);
        written.check_apart_from(b);
        if (g.scale_a) written.check_apart_from(Arg(name, "scale_a", *g.scale_a));
        if (g.scale_b) written.check_apart_from(Arg(name, "scale_b", *g.scale_b));
        g.sorted.check_apart(name, written);
    }

    const char* const name;
    const Arg a, b;
    op::Args args{};

  private:
    void scale(gemm::Scales& s, const char* argument, const std::optional<Tensor>& given, bool of_b) const {
        s = {0, nullptr, 0, 0, 1, DType::f32, 1};
        if (!is_fp8(args.format)) {
            if (given) refuse(name, argument, ": given; operands of ", name_of(args.format), " have no scales");
            return;
        }
        if (!given) refuse(name, argument, ": None; FP8 operands need scales");
        const Tensor& t = *given;
        const Arg scale(name, argument, t);
        // The Python function passes the bytes of float8_e8m0fnu.
        s.dtype = t.scalar_type() == ScalarType::Byte ? DType::e8m0 : scale.dtype({DType::f32, DType::e8m0});
        scale.check_device_of(a);
        s.data = scale.data();
        if (t.numel() == 1) return;
        const int64_t blocks = gemm::blocks_of(args.k), rows = of_b ? args.n : args.a_rows, dim = of_b ? 3 : 2;
        const auto is = [&](int64_t height, int64_t width) {
            return t.dim() == dim && (!of_b || t.size(0) == args.groups) && t.size(dim - 2) == height &&
                   t.size(dim - 1) == width;
        };
        if (of_b && t.dim() == dim) s.group_stride = t.stride(0);
        if (!of_b && t.dim() == 1 && t.size(0) == rows) {
            s.row_stride = t.stride(0);
        } else if (is(rows, 1)) {
            s.row_stride = t.stride(dim - 2);
        } else if (!of_b && is(rows, blocks)) {
            s.row_stride = t.stride(0), s.block_stride = t.stride(1);
        } else if (of_b && is(gemm::blocks_of(rows), blocks)) {
            s.row_stride = t.stride(1), s.block_stride = t.stride(2), s.rows = gemm::kBlock;
        } else if (!(of_b && is(1, 1))) {
            scale.refuse(
                "shape ", scale.shape(),
                of_b ? "; needs one element, [E, 1, 1], [E, N, 1] or [E, ceil(N / 128), ceil(K / 128)] with E = "
                     : "; needs one element, [A], [A, 1] or [A, ceil(K / 128)] with A = ",
                of_b ? args.groups : rows, of_b ? ", N = " + std::to_string(rows) : "", ", K = ", args.k);
        }
    }

    const Grouped g;
};

void grouped_gemm(const Tensor& out_t, const Tensor& a, const Tensor& b, const std::optional<Tensor>& scale_a,
                  const std::optional<Tensor>& scale_b, const Tensor& offsets, const std::optional<Tensor>& rows,
                  int64_t slots, const std::optional<Tensor>& bias, int64_t expected_rows) {
    GroupedCall call("grouped_gemm", {a, b, scale_a, scale_b, {offsets, rows, slots, bias, expected_rows}});
    op::Args& args = call.args;
    const Arg out(call.name, "out", out_t);
    const DType dtype = out.dtype(kWide);
    out.check_shape({args.m, args.n}, "[rows, N]");
    out.check_last_contiguous();
    out.check_no_self_overlap();
    call.check_apart(out);
    args.out = {0, out.mutable_data(), args.m > 1 ? out_t.stride(0) : 0, dtype};
    check(call.name, op::launch(args, Launch(a)));
}

void grouped_gemm_swiglu_fp8(const Tensor& out_t, const std::optional<Tensor>& scale_out, const Tensor& a,
                             const Tensor& b, const std::optional<Tensor>& scale_a,
                             const std::optional<Tensor>& scale_b, const Tensor& offsets,
                             const std::optional<Tensor>& rows, int64_t slots, bool half, std::optional<double> limit,
                             const std::optional<Tensor>& scale, const std::optional<Tensor>& upper_bound,
                             int64_t group, double fp8_max, bool power_of_two, int64_t expected_rows) {
    const std::optional<Tensor> none;
    GroupedCall call("grouped_gemm_swiglu_fp8", {a, b, scale_a, scale_b, {offsets, rows, slots, none, expected_rows}});
    const char* const name = call.name;
    const op::Args& args = call.args;
    if (args.n % 2 != 0) call.b.refuse("shape ", call.b.shape(), "; needs [E, 2 I, K]");
    const Arg out(name, "out", out_t);
    swiglu::Args gated{};
    gated.dtype = half ? DType::f16 : DType::bf16;
    gated.rows = args.m, gated.d = args.n / 2;
    gated.out_dtype = out.dtype({DType::e4m3fn, DType::e4m3fnuz});
    out.check_shape({args.m, gated.d}, "[rows, I]");
    gated.out_stride = out.written_row_stride();
    call.check_apart(out);
    gated.limit = swiglu_limit(name, limit, gated.dtype);
    if (scale) {
        const Arg given(name, "scale", *scale);
        gated.scale = given.scale_of(call.a);
        out.check_apart_from(given);
    } else {
        if (group == DynamicScale::kTensor) refuse(name, "scaling: 'tensor'; allowed: 'row', 'group'");
        const Arg scales(name, "scale_out", *scale_out);
        const ScaleArgs wanted{*scale_out, upper_bound, group, fp8_max, power_of_two};
        gated.dynamic = dynamic_scale(name, wanted, out, gated.d, gated.out_dtype, {&call.a}, {&out});
        call.check_apart(scales);
    }
    gated.out = out.mutable_data();
    check(name, op::launch_swiglu(args, gated, Launch(a)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    // expected_rows: 0: as many as there are on average. Scales as block_scaled_gemm's.
    ops.add<&grouped_gemm>(
        "grouped_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor offsets, Tensor? "
        "rows, int slots, Tensor? bias, SymInt expected_rows) -> ()");
    // scale: given; or computed, and written to scale_out. half: the product is rounded to float16, else to bfloat16.
    ops.add<&grouped_gemm_swiglu_fp8>(
        "grouped_gemm_swiglu_fp8(Tensor(a!) out, Tensor(b!)? scale_out, Tensor a, Tensor b, Tensor? scale_a, Tensor? "
        "scale_b, Tensor offsets, Tensor? rows, int slots, bool half, float? limit, Tensor? scale, Tensor? scale_ub, "
        "int group, float fp8_max, bool power_of_two, SymInt expected_rows) -> ()");
}

}  // namespace rocm_fp8::binding
