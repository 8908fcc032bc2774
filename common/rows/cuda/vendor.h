// NVIDIA's part of launch.h.
#pragma once

#include "../../cuda/device.h"

namespace rocm_fp8 {
namespace {

struct Vendor {
    Chip chip;
    const Executor& on;
    int units;
    bool clusters;
    DType fp8 = DType::e4m3fn;

    Vendor(const Chip& c, const Executor& e) : chip(c), on(e), units(c.multiprocessors), clusters(c.hopper()) {}

    template <class... Parameters>
    Status launch(void (*kernel)(Parameters...), int64_t ctas, int threads, int cluster,
                  Parameters... arguments) const {
        if (ctas > kMaxCtas) return {"x has more rows than one launch takes"};
        return launch_kernel(kernel, chip, {ctas, threads, cluster}, on, arguments...);
    }
};

}  // namespace
}  // namespace rocm_fp8
