// The library itself: what it registers beside the operators, which their own files register (operators.h).
#include "../common/environment.h"
#include "operators.h"
#include "registration.h"

namespace rocm_fp8::binding {
namespace {

// -1: there is no such operator.
int64_t call_count(std::string name) {
    for (const Count* count = counts; count; count = count->next)
        if (name == count->name) return count->calls.load(std::memory_order_relaxed);
    return -1;
}

}  // namespace
}  // namespace rocm_fp8::binding

ROCM_FP8_SCHEMAS(TORCH_EXTENSION_NAME, ops) {
    ops.def("reread_environment() -> ()");
    ops.def("call_count(str name) -> int");
}

// They have no tensor, so no backend.
ROCM_FP8_FUNCTIONS(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, ops) {
    ops.impl("reread_environment", TORCH_BOX(&rocm_fp8::reread_environment));
    ops.impl("call_count", TORCH_BOX(&rocm_fp8::binding::call_count));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
