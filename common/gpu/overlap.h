// How a kernel overlaps with its neighbours in the stream, by names that HIP and CUDA share. HIP has none of it.
#pragma once

#if defined(__CUDACC__)
#include "../cuda/pdl.h"

namespace rocm_fp8 {
namespace {
__device__ inline void keep_order() {}
}  // namespace
}  // namespace rocm_fp8
#else
namespace rocm_fp8 {
namespace {
__device__ inline void wait_for_previous_kernel() {}
__device__ inline void let_next_kernel_start() {}
__device__ inline void fetch_line_to_l2(const void*) {}
// The compiler moves no code from above to below, or back.
__device__ inline void keep_order() { __builtin_amdgcn_sched_barrier(0); }
}  // namespace
}  // namespace rocm_fp8
#endif
