// The operator's schema, the checks of its tensors, and the way to the launcher; one binding for every backend.

#if !defined(CPU_KERNEL) && !defined(USE_CUDA)
#define USE_CUDA 1  // declares the stable ABI's stream functions, which are CUDA's by name on ROCm as well
#endif
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <string>

#include "../increment/increment.h"
#include "registration.h"

namespace increment {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

std::string shape(const Tensor& t) {
    std::string s = "[";
    for (int64_t i = 0; i < t.dim(); ++i) s += (i ? ", " : "") + std::to_string(t.size(i));
    return s + "]";
}

void check_float32_contiguous(const char* name, const Tensor& t) {
    STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float, name, ": dtype ",
                    torch::headeronly::toString(t.scalar_type()), "; allowed: float32");
    STD_TORCH_CHECK(t.is_contiguous(), name, ": shape ", shape(t), " is not contiguous in memory");
}

void check_same_shape(const Tensor& out, const Tensor& x) {
    bool same = out.dim() == x.dim();
    for (int64_t i = 0; same && i < x.dim(); ++i) same = out.size(i) == x.size(i);
    STD_TORCH_CHECK(same, "out: shape ", shape(out), "; needs x's, ", shape(x));
}

void check_apart(const Tensor& out, const Tensor& x) {
    const auto p = reinterpret_cast<std::uintptr_t>(out.const_data_ptr());
    const auto q = reinterpret_cast<std::uintptr_t>(x.const_data_ptr());
    const auto bytes = sizeof(float) * static_cast<std::uintptr_t>(x.numel());
    STD_TORCH_CHECK(p + bytes <= q || q + bytes <= p, "out: overlaps x in memory");
}

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
    // The tensor's device becomes the current one; the stream is torch's current stream there.
    explicit Launch(const Tensor& t) : guard_(t.get_device_index()) {
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &on_.stream));
    }

  private:
    torch::stable::accelerator::DeviceGuard guard_;

  public:
#endif
    operator const Executor&() const { return on_; }

  private:
    Executor on_;
};

// Everything is checked before the launch, so a refused call has written nothing.
void increment(const Tensor& out, const Tensor& x) {
    check_float32_contiguous("x", x);
    check_float32_contiguous("out", out);
    STD_TORCH_CHECK(out.device() == x.device(), "out: not on x's device");
    check_same_shape(out, x);
    if (x.numel() == 0) return;
    check_apart(out, x);

    IncrementArgs args{};
    args.x = static_cast<const float*>(x.const_data_ptr());
    args.out = static_cast<float*>(out.mutable_data_ptr());
    args.count = x.numel();
    const Status status = launch_increment(args, Launch(x));
    STD_TORCH_CHECK(status.error == nullptr, "increment: ", status.error);
}

}  // namespace
}  // namespace increment

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
    ops.def("increment(Tensor(a!) out, Tensor x) -> ()");
}

#if defined(CPU_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
#endif
    ops.impl("increment", TORCH_BOX(&increment::increment));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
