// Host side: which chip a launch goes to, and the launch.
#pragma once

#include <hip/hip_runtime.h>

#include "../types.h"
#include "chips.h"

namespace rocm_fp8 {

// float8 format of a chip's own instructions.
constexpr DType native_fp8(Arch arch) { return arch == Arch::gfx942 ? DType::e4m3fnuz : DType::e4m3fn; }

// Threads in one dimension of a launch, as HIP counts them.
constexpr int64_t kMaxThreads = (int64_t(1) << 32) - 1;

struct ArchResult {
    Arch arch;
    Status status;
};

// Of the current device. An error names the architectures that the binary holds.
ArchResult current_arch();

// Launches `kernel`; an error is this launch's own, in HIP's words. (What <<< >>> leaves in hipGetLastError may be of
// any call before it, and a query that says "not ready" counts as one.)
Status launch_any(const void* kernel, dim3 grid, dim3 block, void* stream, void** arguments);

template <class... Parameters>
Status launch_kernel(void (*kernel)(Parameters...), int64_t groups, int threads, const Executor& on,
                     Parameters... arguments) {
    void* pointers[] = {&arguments...};
    return launch_any(reinterpret_cast<const void*>(kernel), dim3(uint32_t(groups)), dim3(threads), on.stream,
                      pointers);
}

}  // namespace rocm_fp8
