// What becomes of a finished number: it is stored in the result and, where all ranks sum that, in their memories, too.
//
// A sender (common/comm/gpu/send.h) sends whole words, so a thread then finishes two neighbouring columns, the first
// one even; without one it finishes a column. Both round at the same points: common/gemm/epilogue.h.
#pragma once

#include "../../common/comm/gpu/send.h"
#include "../../common/gemm/epilogue.h"
#include "../skinny_gemm.h"

namespace rocm_fp8::skinny_gemm::cuda {
namespace {

// Columns a thread.
template <class To>
constexpr int kApieceOf = To::kSends ? 2 : 1;

// out[m, n], or out[m, n] and out[m, n + 1]. sum(i): of column n + i.
template <int kApiece, class To, class Sum>
__device__ inline void finish(const Args& a, const To& to, int64_t m, int64_t n, const gemm::Column& column,
                              const gemm::Column& next, float scale_a, const Sum& sum) {
    const gemm::Epilogue& e = a.epilogue;
    if constexpr (!To::kSends) {
        gemm::finish(e, m, n, column, scale_a, sum(0));
    } else {
        static_assert(kApiece == 2);
        const float v[2] = {gemm::finished(e, sum(0), scale_a, column.scale, column.bias),
                            gemm::finished(e, sum(1), scale_a, next.scale, next.bias)};
        const int64_t at = m * e.out.row_stride + n, sent = m * a.n + n;
        if (e.out.dtype == DType::f32) {
            const uint32_t bits[2] = {float_bits(v[0]), float_bits(v[1])};
            to.send(sent * 4, bits);
            gemm::put(e.out, at, v[0]);
            gemm::put(e.out, at + 1, v[1]);
        } else {
            const uint32_t bits[1] = {gemm::rounded_pair(e.out.dtype, {v[0], v[1]})};
            to.send(sent * 2, bits);
            uint16_t* own = global<uint16_t>(e.out.data) + at;
            own[0] = uint16_t(bits[0]), own[1] = uint16_t(bits[0] >> 16);
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::skinny_gemm::cuda
