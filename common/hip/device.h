// Host side: which chip a launch goes to, and what HIP says of it.
#pragma once

#include "../launch.h"

namespace rocm_fp8 {

enum class Arch : int { gfx942, gfx950 };

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

// Whether all rows start at a multiple of 16 bytes, what 128-bit accesses need.
inline bool rows_aligned(const void* base, int64_t stride_bytes) {
    return reinterpret_cast<uintptr_t>(base) % 16 == 0 && stride_bytes % 16 == 0;
}

// What the launch before it ended with, as HIP words it.
Status launch_status();

}  // namespace rocm_fp8
