// Schemas and the way from tensors to the launchers' arguments; one binding for every backend.
//
// Operators write into `out` and return nothing: no operator allocates, torch.compile sees every write in
// the schema, and the Python wrappers decide what is allocated.

#if !defined(CPU_KERNEL) && !defined(USE_CUDA)
#define USE_CUDA 1  // declares the stable ABI's stream functions, which are CUDA's by name on ROCm as well
#endif
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "../rmsnorm_fp8/rmsnorm_fp8.h"
#include "../skinny_gemm/skinny_gemm.h"
#include "../swiglu_fp8/swiglu_fp8.h"
#include "registration.h"
#include "tensor_args.h"

namespace rocm_fp8 {
namespace {

// Where an operator on `t` runs, for as long as this object lives.
class Launch {
  public:
#if defined(CPU_KERNEL)
    explicit Launch(const Tensor&) {
        on_.parallel_for = [](int64_t begin, int64_t end, int64_t grain, RangeBody body, void* context) {
            torch::stable::parallel_for(begin, end, grain, [=](int64_t b, int64_t e) { body(context, b, e); });
        };
    }
#else
    explicit Launch(const Tensor& t) : guard_(t.get_device_index()), like_(t) {
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &on_.stream));
        on_.context = this;
        on_.scratch = [](void* context, int64_t bytes) {
            // Freed in stream order when this object goes.
            auto* launch = static_cast<Launch*>(context);
            launch->scratch_ = torch::stable::new_empty(launch->like_, {bytes}, torch::headeronly::ScalarType::Byte);
            return launch->scratch_->mutable_data_ptr();
        };
    }

  private:
    torch::stable::accelerator::DeviceGuard guard_;
    const Tensor& like_;
    std::optional<Tensor> scratch_;

  public:
#endif
    operator const Executor&() const { return on_; }

  private:
    Executor on_;
};

void check(Status status, const char* op) { STD_TORCH_CHECK(status.ok(), op, ": ", status.error); }

// Both with and without a residual, to FP8 (with a scale) or to x's own type (without).
void rms_norm_into(const char* op, const Tensor& out_t, const Tensor& x_t, const Tensor* residual_t, const Tensor& weight_t,
                   const Tensor* scale_t, double epsilon) {
    const Arg out("out", out_t), x("x", x_t), weight("weight", weight_t);
    RmsNormFp8Args args{};
    args.dtype = x.dtype({DType::f16, DType::bf16});
    STD_TORCH_CHECK(x.dim() >= 1, "x: 0 dimensions; needs [..., d]");
    args.d = x.last();
    args.rows = x.rows();
    args.x_stride = x.row_stride();

    args.weight_dtype = weight.dtype({args.dtype, DType::f32});
    weight.check_device_of(x);
    weight.check_shape({args.d}, "[d]");
    weight.check_last_contiguous();

    out.check_device_of(x);
    out.check_rows_of(x, args.d);
    args.out_stride = out.written_row_stride();
    if (scale_t) {
        const Arg scale("scale", *scale_t);
        args.out_dtype = out.dtype({DType::e4m3fn, DType::e4m3fnuz});
        args.scale = scale.scale_of(x);
        out.check_apart_from(scale);
    } else {
        args.out_dtype = out.dtype({args.dtype});
    }
    out.check_apart_from(x);
    out.check_apart_from(weight);

    if (residual_t) {
        const Arg residual("residual", *residual_t);
        residual.dtype({args.dtype});
        residual.check_device_of(x);
        residual.check_rows_of(x, args.d);
        args.residual_stride = residual.written_row_stride();
        residual.check_apart_from(x);
        residual.check_apart_from(weight);
        if (scale_t) residual.check_apart_from(Arg("scale", *scale_t));
        out.check_apart_from(residual);
        args.residual = residual.mutable_data();
    }
    args.epsilon = float(epsilon);
    args.x = x.data();
    args.weight = weight.data();
    args.out = out.mutable_data();
    check(launch_rms_norm_fp8(args, Launch(x_t)), op);
}

void rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, double epsilon) {
    rms_norm_into("rms_norm", out, x, nullptr, weight, nullptr, epsilon);
}

void rms_norm_fp8(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& scale, double epsilon) {
    rms_norm_into("rms_norm_fp8", out, x, nullptr, weight, &scale, epsilon);
}

void add_rms_norm_fp8(const Tensor& out, const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& scale,
                      double epsilon) {
    rms_norm_into("add_rms_norm_fp8", out, x, &residual, weight, &scale, epsilon);
}

void swiglu_fp8(const Tensor& out_t, const Tensor& x_t, const Tensor& scale_t) {
    const Arg out("out", out_t), x("x", x_t), scale("scale", scale_t);
    SwigluFp8Args args{};
    args.dtype = x.dtype({DType::f16, DType::bf16});
    STD_TORCH_CHECK(x.dim() >= 1 && x.last() % 2 == 0, "x: shape ", x.shape(), "; needs [..., 2 d]");
    args.d = x.last() / 2;
    args.rows = x.rows();
    args.x_stride = x.row_stride();

    args.out_dtype = out.dtype({DType::e4m3fn, DType::e4m3fnuz});
    out.check_device_of(x);
    out.check_rows_of(x, args.d);
    args.out_stride = out.written_row_stride();
    args.scale = scale.scale_of(x);
    out.check_apart_from(x);
    out.check_apart_from(scale);

    args.x = x.data();
    args.out = out.mutable_data();
    check(launch_swiglu_fp8(args, Launch(x_t)), "swiglu_fp8");
}

// One element (stride 0), or [count] / [count, 1] / [1, count] as `vector_shape` says.
const float* gemm_scale(const Arg& scale, const Arg& a, int64_t count, const char* vector_shape, int64_t vector_dim,
                        int64_t* stride) {
    scale.dtype({DType::f32});
    scale.check_device_of(a);
    const Tensor& t = scale.tensor();
    if (t.numel() == 1) {
        *stride = 0;
    } else if (t.numel() == count && (t.dim() == 1 || (t.dim() == 2 && t.size(vector_dim) == count))) {
        *stride = t.stride(t.dim() == 1 ? 0 : vector_dim);
    } else {
        STD_TORCH_CHECK(false, vector_dim == 0 ? "scale_a" : "scale_b", ": shape ", scale.shape(), "; needs one element or ",
                        vector_shape, " with ", count, " elements");
    }
    return static_cast<const float*>(scale.data());
}

void skinny_gemm(const Tensor& out_t, const Tensor& a_t, const Tensor& b_t, const Tensor& scale_a_t, const Tensor& scale_b_t,
                 const std::optional<Tensor>& bias_t, bool constant_b) {
    const Arg out("out", out_t), a("a", a_t), b("b", b_t), scale_a("scale_a", scale_a_t), scale_b("scale_b", scale_b_t);
    SkinnyGemmArgs args{};
    args.constant_b = constant_b;
    args.format = a.dtype({DType::e4m3fn, DType::e4m3fnuz});
    b.dtype({args.format});
    a.check_dim(2);
    b.check_dim(2);
    b.check_device_of(a);
    args.m = a.size(0);
    args.k = a.size(1);
    args.n = b.size(0);
    STD_TORCH_CHECK(b.size(1) == args.k, "b: shape ", b.shape(), "; needs [N, K] with a's K = ", args.k);
    STD_TORCH_CHECK(args.k >= 1, "a: shape ", a.shape(), "; needs K >= 1");
    STD_TORCH_CHECK(args.m <= kSkinnyGemmMaxRows, "a: ", args.m, " rows; at most ", kSkinnyGemmMaxRows, " are allowed");
    args.a_stride = a.row_stride();
    args.b_stride = b.row_stride();
    args.scale_a = gemm_scale(scale_a, a, args.m, "[M, 1]", 0, &args.scale_a_stride);
    args.scale_b = gemm_scale(scale_b, a, args.n, "[1, N]", 1, &args.scale_b_stride);

    args.out_dtype = out.dtype({DType::bf16, DType::f16, DType::f32});
    out.check_device_of(a);
    out.check_shape({args.m, args.n}, "[M, N]");
    args.out_stride = out.written_row_stride();
    for (const Arg* input : {&a, &b, &scale_a, &scale_b}) out.check_apart_from(*input);

    if (bias_t) {
        const Arg bias("bias", *bias_t);
        args.bias_dtype = bias.dtype({DType::bf16, DType::f16, DType::f32});
        bias.check_device_of(a);
        bias.check_shape({args.n}, "[N]");
        args.bias_stride = bias_t->stride(0);
        out.check_apart_from(bias);
        args.bias = bias.data();
    }
    args.a = static_cast<const uint8_t*>(a.data());
    args.b = static_cast<const uint8_t*>(b.data());
    args.out = out.mutable_data();
    check(launch_skinny_gemm(args, Launch(a_t)), "skinny_gemm");
}

}  // namespace
}  // namespace rocm_fp8

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
    ops.def("rms_norm(Tensor(a!) out, Tensor x, Tensor weight, float epsilon) -> ()");
    ops.def("rms_norm_fp8(Tensor(a!) out, Tensor x, Tensor weight, Tensor scale, float epsilon) -> ()");
    ops.def(
        "add_rms_norm_fp8(Tensor(a!) out, Tensor x, Tensor(b!) residual, Tensor weight, Tensor scale, float epsilon) "
        "-> ()");
    ops.def("swiglu_fp8(Tensor(a!) out, Tensor x, Tensor scale) -> ()");
    ops.def(
        "skinny_gemm(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, "
        "bool constant_b=False) -> ()");
}

#if defined(CPU_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
#endif
    ops.impl("rms_norm", TORCH_BOX(&rocm_fp8::rms_norm));
    ops.impl("rms_norm_fp8", TORCH_BOX(&rocm_fp8::rms_norm_fp8));
    ops.impl("add_rms_norm_fp8", TORCH_BOX(&rocm_fp8::add_rms_norm_fp8));
    ops.impl("swiglu_fp8", TORCH_BOX(&rocm_fp8::swiglu_fp8));
    ops.impl("skinny_gemm", TORCH_BOX(&rocm_fp8::skinny_gemm));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
