// What the bindings of all operators share: where an operator runs, and how its launch reports an error.
#pragma once

#if !defined(CPU_KERNEL) && !defined(USE_CUDA)
#define USE_CUDA 1  // declares the stable ABI's stream functions, which are CUDA's by name on ROCm as well
#endif
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <vector>

#include "tensor_args.h"

namespace rocm_fp8::binding {
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
            // All of a launch's are freed in stream order when this object goes.
            auto* launch = static_cast<Launch*>(context);
            auto& all = launch->scratch_;
            all.push_back(torch::stable::new_empty(launch->like_, {bytes}, torch::headeronly::ScalarType::Byte));
            return all.back().mutable_data_ptr();
        };
    }

  private:
    torch::stable::accelerator::DeviceGuard guard_;
    const Tensor& like_;
    std::vector<Tensor> scratch_;

  public:
#endif
    operator const Executor&() const { return on_; }

  private:
    Executor on_;
};

[[maybe_unused]] void check(const char* op, Status status) {
    if (!status.ok()) refuse(op, status.error);
}

}  // namespace
}  // namespace rocm_fp8::binding
