// Host side: which chip a launch goes to, and the launch.
#pragma once

#include <cuda_runtime.h>

#include "../types.h"

namespace rocm_fp8 {

// In one dimension of a grid.
constexpr int64_t kMaxBlocks = (int64_t(1) << 31) - 1;

struct Chip {
    int capability;  // 10 x major + minor: 90 is a Hopper
    int multiprocessors;
    int device;  // its number
    // Thread-block clusters, the bulk copy engine, and launches that overlap the kernel before them.
    bool hopper() const { return capability >= 90; }
};

struct ChipResult {
    Chip chip;
    Status status;
};

// The current device. An error names the architectures that the binary holds.
ChipResult current_chip();

struct Grid {
    int64_t blocks;
    int threads;
    int cluster = 1;       // neighbouring blocks that run at the same time and see each other's shared memory
    int shared_bytes = 0;  // of dynamic shared memory
};

// Launches `kernel`; an error is this launch's own, in CUDA's words.
//
// On a Hopper the kernel may start while the one before it in the stream still runs: it must not read what others write,
// nor write anything, before wait_for_previous_kernel() (overlap.h). ROCM_FP8_KERNELS_PDL=0 switches that off.
Status launch_any(const void* kernel, const Chip& chip, const Grid& grid, void* stream, void** arguments);

template <class... Parameters>
Status launch_kernel(void (*kernel)(Parameters...), const Chip& chip, const Grid& grid, const Executor& on,
                     Parameters... arguments) {
    void* pointers[] = {&arguments...};
    return launch_any(reinterpret_cast<const void*>(kernel), chip, grid, on.stream, pointers);
}

}  // namespace rocm_fp8
