// AMD's part of launch.h.
#pragma once

#include "../../hip/device.h"

namespace rocm_fp8 {
namespace {

struct Vendor {
    const Executor& on;
    int units;
    DType fp8;
    static constexpr bool clusters = false;

    Vendor(Arch arch, const Executor& e) : on(e), units(compute_units(arch)), fp8(native_fp8(arch)) {}

    template <class... Parameters>
    Status launch(void (*kernel)(Parameters...), int64_t groups, int threads, int, Parameters... arguments) const {
        if (groups * threads > kMaxThreads) return {"x has more rows than one launch takes"};
        return launch_kernel(kernel, groups, threads, on, arguments...);
    }
};

}  // namespace
}  // namespace rocm_fp8
