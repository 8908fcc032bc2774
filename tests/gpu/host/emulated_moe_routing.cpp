// moe_routing's kernels as NVIDIA GPUs run them, emulated: by their own launchers.
#include <bit>

#include "common/cuda/vector.h"
// The emulation comes first: it defines CUDA's words.
#include "emulated_lanes.h"
#include "moe_routing/gpu.h"

using namespace rocm_fp8;
using namespace rocm_fp8::moe_routing;

namespace {

struct Emulated {
    int units;

    template <class... Parameters>
    Status launch(void (*kernel)(Parameters...), int64_t ctas, int threads, int, Parameters... arguments) const {
        rocm_fp8::launch(ctas, threads, 1, 0, [=] { kernel(arguments...); });
        return {};
    }
};

// Of the context, poison: nothing may be read before it is written.
void* scratch(void* context, int64_t bytes) {
    auto* memory = static_cast<std::vector<char>*>(context);
    memory->assign(bytes, char(0xFF));
    return memory->data();
}

}  // namespace

extern "C" void route(const RouteArgs* a, int multiprocessors) { route_by_type(*a, Emulated{multiprocessors}); }

extern "C" void sort(const SortArgs* a) {
    std::vector<char> memory;
    Executor on;
    on.scratch = scratch, on.context = &memory;
    sort_by_type(*a, Emulated{1}, on);
}

extern "C" void combine(const CombineArgs* a) { combine_by_type(*a, Emulated{1}); }
