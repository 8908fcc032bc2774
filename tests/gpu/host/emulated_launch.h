// In the place of common/cuda/device.h: a launch runs its kernel, emulated, on a chip that the caller describes.
#pragma once

#include <atomic>

#include "../types.h"
#include "emulated_cuda.h"

namespace rocm_fp8 {

constexpr int64_t kMaxCtas = (int64_t(1) << 31) - 1;

struct Chip {
    int capability, multiprocessors, memory_bits, device;
};
struct Grid {
    int64_t ctas;
    int threads, cluster = 1, shared_bytes = 0;
};
using AllowedDevices = std::atomic<uint64_t>;
template <class Kernel>
Status allow_shared_bytes(Kernel*, int bytes, const Chip&, AllowedDevices*) {
    constexpr int kMost = 227 << 10;
    return {bytes <= kMost ? nullptr : "more shared memory than a multiprocessor has"};
}
template <class... Parameters>
Status launch_kernel(void (*kernel)(Parameters...), const Chip&, const Grid& grid, const Executor&,
                     Parameters... arguments) {
    launch(grid.ctas, grid.threads, grid.cluster, grid.shared_bytes, [&] { kernel(arguments...); });
    return {};
}

}  // namespace rocm_fp8
