// The arguments that all GEMMs share: C = A B^T of 8-bit operands, with scales, a bias and a result.
#pragma once

#include <optional>

#include "../common/divider.h"
#include "../common/gemm/args.h"
#include "../common/gemm/work.h"
#include "tensor_args.h"

namespace rocm_fp8::binding {
namespace {

constexpr std::initializer_list<DType> kFp8 = {DType::e4m3fn, DType::e4m3fnuz};
constexpr std::initializer_list<DType> kWide = {DType::bf16, DType::f16, DType::f32};

// [N], or of experts [E, N]; nothing where there is none.
inline gemm::Bias bias_of(const char* name, const std::optional<Tensor>& t, const Arg& a,
                          std::initializer_list<int64_t> shape) {
    if (!t) return {};
    const Arg bias(name, "bias", *t);
    const DType dtype = bias.dtype(kWide);
    bias.check_device_of(a);
    bias.check_shape(shape, shape.size() == 1 ? "[N]" : "[E, N]");
    return {bias.data(), t->stride(t->dim() - 1), dtype};
}

// What products of sorted rows have besides operands and scales.
struct SortedRows {
    const Tensor& offsets;
    const std::optional<Tensor>& rows;
    int64_t slots;
    const std::optional<Tensor>& bias;
    int64_t expected;

    // Into args, which have a_rows, n and groups.
    template <class Args>
    void set(Args& args, const char* name, const Arg& a) const {
        args.offsets = integers(Arg(name, "offsets", offsets), a);
        Arg(name, "offsets", offsets).check_shape({args.groups + 1}, "[E + 1]");
        args.m = args.a_rows, args.slots = divider_by(1);
        if (rows) {
            const Arg given(name, "rows", *rows);
            given.check_dim(1);
            args.rows = integers(given, a), args.m = given.numel();
            if (slots < 1 || slots >= int64_t(1) << 31) refuse(name, "slots: ", slots, "; needs 1 to 2147483647");
            args.slots = divider_by(uint32_t(slots));
        } else if (slots != 1) {
            refuse(name, "slots: ", slots, "; needs rows, or 1");
        }
        if (args.m >= int64_t(1) << 31) a.refuse("shape ", a.shape(), "; needs less than 2^31 rows");
        if (expected < 0) refuse(name, "expected_rows: ", expected, "; needs a positive number, or None");
        args.expected = expected ? expected : std::max<int64_t>(1, ceil_div(args.m, args.groups));
        args.bias = bias_of(name, bias, a, {args.groups, args.n});
        if (bias) args.bias_group_stride = bias->stride(0);
    }

    void check_apart(const char* name, const Arg& written) const {
        written.check_apart_from(Arg(name, "offsets", offsets));
        if (rows) written.check_apart_from(Arg(name, "rows", *rows));
        if (bias) written.check_apart_from(Arg(name, "bias", *bias));
    }

  private:
    static const int32_t* integers(const Arg& x, const Arg& a) {
        x.dtype({DType::i32});
        x.check_device_of(a);
        x.check_dense();
        return static_cast<const int32_t*>(x.data());
    }
};

// Whose scales they are: of A's rows or of B's, the result's columns.
enum class Side { a, b };
// Whether blocks of 128 k may have scales of their own. before_rows: a [1, N] that could be either is one row of
// blocks.
enum class Blocks { none, after_rows, before_rows };

// The tensors of one call, checked one after the other: sizes and operands by the constructor, the result before the
// others, which may not overlap it.
class GemmCall {
  public:
    // dims: 2 ([M, K] and [N, K]) or 3 ([B, M, K] and [B, N, K]); 0: a says which.
    GemmCall(const char* name, const Tensor& out_t, const Tensor& a_t, const Tensor& b_t,
             std::initializer_list<DType> formats, int64_t dims, const char* out_name = "out")
        : name(name), out(name, out_name, out_t), a(name, "a", a_t), b(name, "b", b_t), format(a.dtype(formats)) {
        b.dtype({format});
        if (dims) a.check_dim(dims);
        else if (a.dim() != 2 && a.dim() != 3) a.refuse(a.dim(), " dimensions (shape ", a.shape(), "); needs 2 or 3");
        b.check_dim(a.dim());
        b.check_device_of(a);
        batched = a.dim() == 3;
        groups = batched ? a.size(0) : 1;
        m = a.size(a.dim() - 2), n = b.size(b.dim() - 2), k = a.last();
        if (b.last() != k) b.refuse("shape ", b.shape(), "; needs a last dimension of a's K = ", k);
        if (batched && b.size(0) != groups) b.refuse("shape ", b.shape(), "; needs a's first dimension ", groups);
        if (k < 1) a.refuse("shape ", a.shape(), "; needs K >= 1");
    }

    // What all contracts have of it. any_order: operands may be column-major.
    template <class Args>
    Args args(bool constant_b, bool any_order = false) const {
        Args args{};
        args.a = operand(a, any_order), args.b = operand(b, any_order);
        args.m = m, args.n = n, args.k = k;
        args.constant_b = constant_b;
        return args;
    }

    gemm::Operand operand(const Arg& x, bool any_order) const {
        const Tensor& t = x.tensor();
        const auto* data = static_cast<const uint8_t*>(x.data());
        // The stride of a dimension of one element says nothing.
        if (any_order && k > 1 && t.stride(1) != 1) {
            if (x.size(0) <= 1 || t.stride(0) == 1) return {0, data, 1, t.stride(1)};
            x.refuse("strides ", list(t.strides()), "; one of the dimensions needs to be contiguous");
        }
        x.check_last_contiguous();
        return {group_stride(x), data, row_stride(x), 1};
    }

    // The pointer is left to be set after the last check.
    gemm::Output result(std::initializer_list<DType> allowed) const {
        const DType dtype = out.dtype(allowed);
        out.check_device_of(a);
        if (batched) out.check_shape({groups, m, n}, "[B, M, N]");
        else out.check_shape({m, n}, "[M, N]");
        out.check_last_contiguous();
        out.check_no_self_overlap();
        out.check_apart_from(a);
        out.check_apart_from(b);
        return {group_stride(out), nullptr, row_stride(out), dtype};
    }

    // One element, [rows] or, of A, [rows, 1], of B [1, rows]; groups may have their own. Then by blocks, of one row or
    // of 128. type: of such numbers that are no scales.
    gemm::Scales scales(const char* argument, const Tensor& t, Side side, Blocks of_blocks = Blocks::none,
                        DType type = DType::f32) const {
        const Arg scale(name, argument, t);
        gemm::Scales s{0, nullptr, 0, 0, 1, type, 0};
        if (of_blocks == Blocks::none) scale.dtype({type});
        // The Python function passes the bytes of float8_e8m0fnu.
        else s.dtype = t.scalar_type() == ScalarType::Byte ? DType::e8m0 : scale.dtype({DType::f32, DType::e8m0});
        scale.check_device_of(a);
        out.check_apart_from(scale);
        s.data = scale.data();
        if (t.numel() == 1 && t.dim() <= (of_blocks == Blocks::none ? 3 : 2)) return s;

        const bool of_a = side == Side::a, by_blocks = of_blocks != Blocks::none;
        const int64_t rows = of_a ? m : n, blocks = gemm::blocks_of(k), row_blocks = gemm::blocks_of(rows);
        const int64_t dim = t.dim(), first = dim - 2, last = dim - 1;
        const bool matrix = dim == 2 || (dim == 3 && batched && t.size(0) == groups);
        const auto is = [&](int64_t height, int64_t width) {
            return matrix && t.size(first) == height && t.size(last) == width;
        };
        const bool of_squares =
            by_blocks && is(row_blocks, blocks) && (of_a || of_blocks == Blocks::before_rows || !is(1, rows));
        if (dim == 3 && matrix) s.group_stride = t.stride(0);
        if (dim == 1 && t.size(0) == rows) {
            s.row_stride = t.stride(0);
        } else if ((by_blocks && is(rows, blocks)) || of_squares) {
            s.row_stride = t.stride(first), s.block_stride = t.stride(last);
            if (!is(rows, blocks)) s.rows = gemm::kBlock;
        } else if (of_a ? is(rows, 1) : is(1, rows)) {
            s.row_stride = t.stride(of_a ? first : last);
        } else {
            const std::string letter = of_a ? "M" : "N", flat = of_a ? "M, 1]" : "1, N]";
            scale.refuse(
                "shape ", scale.shape(), "; needs one element, [", letter, "], [", flat, batched ? ", [B, " + flat : "",
                by_blocks ? ", [" + letter + ", ceil(K / 128)], [ceil(" + letter + " / 128), ceil(K / 128)]" : "",
                " with ", letter, " = ", rows, ", K = ", k);
        }
        return s;
    }

    // One for all: an element on the device, or a number of the host.
    gemm::Scales number(const char* argument, const std::optional<Tensor>& t, double value) const {
        gemm::Scales s{0, nullptr, 0, 0, 1, DType::f32, float(value)};
        if (!t) return s;
        const Arg one(name, argument, *t);
        s.data = one.scale_of(a);
        out.check_apart_from(one);
        return s;
    }

    gemm::Bias bias(const std::optional<Tensor>& t) const {
        const gemm::Bias bias = bias_of(name, t, a, {n});
        if (t) out.check_apart_from(Arg(name, "bias", *t));
        return bias;
    }

    // Of [..., rows, values]. 0 for one of them.
    static int64_t row_stride(const Arg& x) { return x.size(x.dim() - 2) > 1 ? x.tensor().stride(x.dim() - 2) : 0; }
    int64_t group_stride(const Arg& x) const { return batched && groups > 1 ? x.tensor().stride(0) : 0; }

    const char* const name;
    const Arg out, a, b;
    const DType format;
    bool batched;
    int64_t groups, m, n, k;
};

}  // namespace
}  // namespace rocm_fp8::binding
