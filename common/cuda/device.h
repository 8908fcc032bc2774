// Host side: which chip a launch goes to, and the launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "../types.h"

namespace rocm_fp8 {

// The largest grid in x.
constexpr int64_t kMaxCtas = (int64_t(1) << 31) - 1;

struct Chip {
    int capability;  // 10 x major + minor: 90 is Hopper
    int multiprocessors;
    int memory_bits;  // width of the memory's bus
    int device;       // its number
    // Whether the chip has thread-block clusters, TMA and PDL.
    bool hopper() const { return capability >= 90; }
};

struct ChipResult {
    Chip chip;
    Status status;
};

// The current device. An error names the architectures that the binary holds.
ChipResult current_chip();

struct Grid {
    int64_t ctas;
    int threads;
    int cluster = 1;       // CTAs in a thread-block cluster
    int shared_bytes = 0;  // of dynamic shared memory
};

// Launches `kernel`. An error is this launch's own and has CUDA's text.
//
// On Hopper and later the launch uses PDL: the kernel may start while the previous one in the stream still runs. Before
// wait_for_previous_kernel() (pdl.h) it must not write, nor read what others write. ROCM_FP8_KERNELS_PDL=0 disables
// PDL.
Status launch_any(const void* kernel, const Chip& chip, const Grid& grid, void* stream, void** arguments);

// Devices, a bit each, on which a kernel may have the dynamic shared memory of its launches.
using AllowedDevices = std::atomic<uint64_t>;

// Before a launch with more than 48 KiB of it. The kernel's own `allowed` saves the call from the second time on.
template <class Kernel>
Status allow_shared_bytes(Kernel* kernel, int bytes, const Chip& chip, AllowedDevices* allowed) {
    const uint64_t device = chip.device < 64 ? uint64_t(1) << chip.device : 0;
    if (allowed->load(std::memory_order_relaxed) & device) return {};
    const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return {cudaGetErrorString(code)};
    allowed->fetch_or(device, std::memory_order_relaxed);
    return {};
}

template <class... Parameters>
Status launch_kernel(void (*kernel)(Parameters...), const Chip& chip, const Grid& grid, const Executor& on,
                     Parameters... arguments) {
    void* pointers[] = {&arguments...};
    return launch_any(reinterpret_cast<const void*>(kernel), chip, grid, on.stream, pointers);
}

}  // namespace rocm_fp8
