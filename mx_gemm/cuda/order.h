// Rows as the tiles (tiles.h) take them: sorted, in bfloat16, each 128 k in the order in which lanes hold codes.
#pragma once

#include "../../common/cuda/pdl.h"
#include "stream.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr int kOrdered = 128, kOrderThreads = 256;  // k that are permuted at once

// Where 128 k of a row lie. Lane t of four has block t of a column. A word w of it has the pairs (i, i + 4), i = 0 to 3.
// Each pair is numbers 2 t and 2 t + 1 of eight k of an instruction's 16: two pairs fill one instruction.
// Here a lane has the same word of the same block of a row. It gives each of the four lanes of that word a pair.
template <bool bytes, bool aligned>
__global__ __launch_bounds__(kOrderThreads) void mx_gemm_order(Args a, uint8_t* to, int64_t stride) {
    constexpr int kLanesOf = kOrdered / 8, kRowsOfCta = kOrderThreads / kLanesOf, kAtOnce = 4;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int lane = int(threadIdx.x) % kLanesOf, t = lane / 4, w = lane % 4;
    const uint32_t across = uint32_t((a.k + kOrdered - 1) / kOrdered), group = blockIdx.x % across;
    const int64_t live = first_row(a, int(a.groups)), k = int64_t(group) * kOrdered + lane * 8,
                  step = int64_t(gridDim.x / across) * kRowsOfCta;
    // All lanes of a warp go on together. Several rows are on their way at once.
    for (int64_t first = int64_t(blockIdx.x / across) * kRowsOfCta; first < live; first += step * kAtOnce) {
        RowPart parts[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int64_t row = first + i * step + threadIdx.x / kLanesOf;
            if (row < live && k < a.k) {
                parts[i] =
                    load_row<bytes, aligned>(a.a.data + source_of(a, int(row)) * a.a.row_stride + k * (bytes ? 1 : 2));
            }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int64_t row = first + i * step + threadIdx.x / kLanesOf;
            uint32_t pairs[4], turned[4];
            put_in_pairs<bytes>(parts[i], pairs);
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int other = t ^ r;
                const uint32_t given =
                    other < 2 ? (other == 0 ? pairs[0] : pairs[1]) : (other == 2 ? pairs[2] : pairs[3]);
                const uint32_t taken = __shfl_xor_sync(kWholeWarp, given, r * 4);
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (other == j) turned[j] = taken;
            }
            if (row < live) {
                *reinterpret_cast<uint4*>(to + row * stride + int64_t(group) * kOrdered * 2 + w * 64 + t * 16) = {
                    turned[0], turned[1], turned[2], turned[3]};
            }
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
