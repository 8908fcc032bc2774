// What makes int8 of rows: quantize_int8, layer_norm_int8, softmax_int8.
#include "../layer_norm_int8/layer_norm_int8.h"
#include "../quantize_int8/quantize_int8.h"
#include "../softmax_int8/softmax_int8.h"
#include "binding.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

struct ScaleTensors {
    const std::optional<Tensor>&scale, &zero, &scale_out, &zero_out;
};

// One number of `type` a row of x, [..., 1], at a stride of its own.
template <class T>
T* numbers_of_rows(const Arg& to, DType type, const Arg& x, int64_t* stride) {
    to.dtype({type});
    to.check_device_of(x);
    to.check_rows_of(x, 1);
    *stride = to.leading_stride();
    if (to.rows() > 1 && *stride == 0)
        to.refuse("rows share an element; a tensor that is written may not overlap itself");
    return static_cast<T*>(to.mutable_data());
}

// others: the operator's other tensors. What is given is only read; `written` may not overlap it.
Int8Scale int8_scale(const char* op, const ScaleTensors& t, const Arg& x, const std::vector<const Arg*>& others,
                     const std::vector<const Arg*>& written) {
    Int8Scale s{};
    const auto read = [&](const char* name, const Tensor& tensor, DType type) {
        const Arg one(op, name, tensor);
        const void* data = one.one_element(type, x);
        for (const Arg* other : written) other->check_apart_from(one);
        return data;
    };
    if (t.scale) {
        s.scale = static_cast<const float*>(read("scale", *t.scale, DType::f32));
        if (t.zero) s.zero = static_cast<const int32_t*>(read("zero_point", *t.zero, DType::i32));
        return s;
    }
    if (t.zero) refuse(op, "zero_point: given without scale");
    if (!t.scale_out) refuse(op, "scale_out: None; needs a tensor without scale");
    const Arg scale(op, "scale_out", *t.scale_out);
    s.scale_out = numbers_of_rows<float>(scale, DType::f32, x, &s.scale_stride);
    for (const Arg* other : others) scale.check_apart_from(*other);
    if (!t.zero_out) return s;
    const Arg zero(op, "zero_point_out", *t.zero_out);
    s.zero_out = numbers_of_rows<int32_t>(zero, DType::i32, x, &s.zero_stride);
    for (const Arg* other : others) zero.check_apart_from(*other);
    zero.check_apart_from(scale);
    return s;
}

void quantize_int8(const Tensor& out_t, const std::optional<Tensor>& scale_out, const std::optional<Tensor>& zero_out,
                   const Tensor& x_t, const std::optional<Tensor>& scale, const std::optional<Tensor>& zero) {
    const char* const op = "quantize_int8";
    const Arg out(op, "out", out_t), x(op, "x", x_t);
    quantize_int8::Args args{};
    args.dtype = x.dtype({DType::f16, DType::bf16, DType::f32});
    if (x.dim() < 1) x.refuse("0 dimensions (shape []); needs [..., d]");
    args.d = x.last();
    args.rows = x.rows();
    args.x_stride = x.row_stride();
    out.dtype({DType::i8});
    out.check_device_of(x);
    out.check_rows_of(x, args.d);
    args.out_stride = out.written_row_stride();
    out.check_apart_from(x);
    args.scale = int8_scale(op, {scale, zero, scale_out, zero_out}, x, {&x, &out}, {&out});
    args.x = x.data();
    args.out = static_cast<int8_t*>(out.mutable_data());
    check(op, quantize_int8::launch(args, Launch(x_t)));
}

void layer_norm_int8(const Tensor& out_t, const std::optional<Tensor>& scale_out, const std::optional<Tensor>& zero_out,
                     const Tensor& x_t, const std::optional<Tensor>& residual_t, const Tensor& weight_t,
                     const std::optional<Tensor>& bias_t, const std::optional<Tensor>& scale,
                     const std::optional<Tensor>& zero, double epsilon) {
    const char* const op = "layer_norm_int8";
    const Arg out(op, "out", out_t), x(op, "x", x_t), weight(op, "weight", weight_t);
    layer_norm_int8::Args args{};
    args.dtype = x.dtype({DType::f16, DType::bf16, DType::f32});
    if (x.dim() < 1) x.refuse("0 dimensions (shape []); needs [..., d]");
    args.d = x.last();
    args.rows = x.rows();
    args.x_stride = x.row_stride();
    args.epsilon = float(epsilon);
    out.dtype({DType::i8});
    out.check_device_of(x);
    out.check_rows_of(x, args.d);
    args.out_stride = out.written_row_stride();
    out.check_apart_from(x);
    std::vector<const Arg*> others{&x, &out, &weight}, written{&out};
    const auto vector = [&](const Arg& v, DType type) {
        v.dtype({type, DType::f32});
        v.check_device_of(x);
        v.check_shape({args.d}, "[d]");
        v.check_last_contiguous();
        out.check_apart_from(v);
        return v.data();
    };
    args.weight = vector(weight, args.dtype);
    args.weight_dtype = weight.dtype({args.dtype, DType::f32});
    std::optional<Arg> bias, residual;
    if (bias_t) {
        bias.emplace(op, "bias", *bias_t);
        args.bias = vector(*bias, args.dtype);
        bias->dtype({args.weight_dtype});
        others.push_back(&*bias);
    }
    if (residual_t) {
        residual.emplace(op, "residual", *residual_t);
        residual->dtype({args.dtype});
        residual->check_device_of(x);
        residual->check_rows_of(x, args.d);
        args.residual_stride = residual->written_row_stride();
        out.check_apart_from(*residual);
        residual->check_apart_from(x);
        residual->check_apart_from(weight);
        if (bias) residual->check_apart_from(*bias);
        others.push_back(&*residual);
        written.push_back(&*residual);
    }
    args.scale = int8_scale(op, {scale, zero, scale_out, zero_out}, x, others, written);
    args.x = x.data();
    if (residual) args.residual = residual->mutable_data();
    args.out = static_cast<int8_t*>(out.mutable_data());
    check(op, layer_norm_int8::launch(args, Launch(x_t)));
}

void softmax_int8(const Tensor& out_t, const Tensor& x_t, const std::optional<Tensor>& mask_t) {
    const char* const op = "softmax_int8";
    const Arg out(op, "out", out_t), x(op, "x", x_t);
    softmax_int8::Args args{};
    args.dtype = args.mask_dtype = x.dtype({DType::f16, DType::bf16, DType::f32});
    if (x.dim() < 1 || x.dim() > 4) x.refuse(x.dim(), " dimensions (shape ", x.shape(), "); needs 1 to 4");
    args.d = x.last();
    for (int i = 0; i < 3; ++i) args.size[i] = i < 4 - x.dim() ? 1 : x.size(i - (4 - x.dim()));
    const auto strides = [&](const Arg& t) {
        t.check_last_contiguous();
        softmax_int8::Strides s{};
        for (int i = 0; i < 3; ++i) {
            const int64_t dim = i - (4 - t.dim());
            s.stride[i] = dim < 0 || t.size(dim) == 1 ? 0 : t.tensor().stride(dim);
        }
        return s;
    };
    args.x_strides = strides(x);
    out.dtype({DType::i8});
    out.check_device_of(x);
    out.check_rows_of(x, args.d);
    args.out_strides = strides(out);
    out.check_no_self_overlap();
    out.check_apart_from(x);
    if (mask_t) {
        // The Python function has expanded it to x's shape.
        const Arg mask(op, "mask", *mask_t);
        args.mask_dtype = mask.dtype({args.dtype, DType::f32});
        mask.check_device_of(x);
        mask.check_rows_of(x, args.d);
        args.mask_strides = strides(mask);
        out.check_apart_from(mask);
        args.mask = mask.data();
    }
    args.x = x.data();
    args.out = static_cast<int8_t*>(out.mutable_data());
    check(op, softmax_int8::launch(args, Launch(x_t)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    // With scale (and zero_point) these are used; without, scale_out (and zero_point_out) take what is computed.
    ops.add<&quantize_int8>(
        "quantize_int8(Tensor(a!) out, Tensor(b!)? scale_out, Tensor(c!)? zero_point_out, Tensor x, Tensor? "
        "scale, Tensor? zero_point) -> ()");
    ops.add<&layer_norm_int8>(
        "layer_norm_int8(Tensor(a!) out, Tensor(b!)? scale_out, Tensor(c!)? zero_point_out, Tensor x, Tensor(d!)? "
        "residual, Tensor weight, Tensor? bias, Tensor? scale, Tensor? zero_point, float epsilon) -> ()");
    ops.add<&softmax_int8>("softmax_int8(Tensor(a!) out, Tensor x, Tensor? mask) -> ()");
}

}  // namespace rocm_fp8::binding
