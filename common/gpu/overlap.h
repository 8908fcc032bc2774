// How a kernel overlaps with its neighbours in the stream, and when it computes what, by names that HIP and CUDA share.
// HIP has none of the former; on CUDA the latter is left to the compiler.
#pragma once

#if defined(__CUDACC__)
#include "../cuda/pdl.h"

namespace rocm_fp8 {
namespace {
__device__ inline void keep_order() {}
template <class T>
__device__ inline void have_now(T&) {}
template <class T>
__device__ inline void have_computed(T&) {}
}  // namespace
}  // namespace rocm_fp8
#else
#include <cstdint>

namespace rocm_fp8 {
namespace {
__device__ inline void wait_for_previous_kernel() {}
__device__ inline void let_next_kernel_start() {}
__device__ inline void fetch_line_to_l2(const void*) {}
__device__ inline void fetch_to_l2(const void*, uint32_t) {}
// The compiler moves no code from above to below, or back.
__device__ inline void keep_order() { __builtin_amdgcn_sched_barrier(0); }
}  // namespace
}  // namespace rocm_fp8
#endif
