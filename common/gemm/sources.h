// Of operators whose rows are sorted by groups: where a row of the result comes from. For GPUs.
#pragma once

#include "../divider.h"
#include "../vendor.h"

namespace rocm_fp8::gemm {
namespace {

// The row of A of row i of the result. What is no row of A becomes one.
template <class Args>
__device__ inline int source_of(const Args& a, int64_t i) {
    const int slot = a.rows ? global<int32_t>(a.rows)[i] : int(i);
    const int row = int(divide(uint32_t(slot < 0 ? 0 : slot), a.slots));
    return row < a.a_rows ? row : int(a.a_rows - 1);
}

}  // namespace
}  // namespace rocm_fp8::gemm
