// Gates on the CPU, over any of common/cpu/simd_*.h: widened to float32, a plain loop that the compiler makes vectors of,
// rounded.
#pragma once

#include <algorithm>

#include "../../common/rows/cpu/run.h"
#include "../../common/cpu/lanes.h"
#include "../moe_gate.h"

namespace rocm_fp8::moe_gate {
namespace {

template <class L, DType in, DType out, Kind kind>
void gate_rows(const Args& a, int64_t begin, int64_t end) {
    alignas(64) float x[2 * kStage], values[kStage];
    Gate gate = a.gate;
    gate.kind = kind;  // a constant
    for (int64_t row = begin; row < end; ++row) {
        const void* from = at<in>(a.x, row * a.x_stride);
        for (int64_t j = 0; j < a.d; j += kStage) {
            const int64_t n = std::min<int64_t>(kStage, a.d - j);
            if (gate.interleaved) {
                widen<L, in>(at<in>(from, 2 * j), 2 * n, x);
                for (int64_t i = 0; i < n; ++i) values[i] = gated(gate, x[2 * i], x[2 * i + 1]);
            } else {
                widen<L, in>(at<in>(from, j), n, x);
                widen<L, in>(at<in>(from, a.d + j), n, x + kStage);
                for (int64_t i = 0; i < n; ++i) values[i] = gated(gate, x[i], x[kStage + i]);
            }
            void* to = at<out>(a.out, row * a.out_stride + j);
            for_blocks<L>(n, [&](int64_t i, auto count, int) {
                const auto v = L::tame_nan(L::template load<DType::f32, out>(values + i, count));
                L::template store<out, out>(at<out>(to, i), L::template round_to<out>(v), count);
            });
        }
    }
}

template <class L, DType in, DType out>
RowsKernel<Args> pick_by_kind(const Args& a) {
    return a.gate.kind == Kind::oai    ? gate_rows<L, in, out, Kind::oai>
           : a.gate.kind == Kind::silu ? gate_rows<L, in, out, Kind::silu>
                                       : gate_rows<L, in, out, Kind::situ>;
}
template <class L, DType in>
RowsKernel<Args> pick_by_out(const Args& a) {
    return a.out_dtype == DType::f16 ? pick_by_kind<L, in, DType::f16>(a) : pick_by_kind<L, in, DType::bf16>(a);
}
template <class L>
RowsKernel<Args> pick(const Args& a) {
    if (a.dtype == DType::f32) return pick_by_out<L, DType::f32>(a);
    return a.dtype == DType::f16 ? pick_by_out<L, DType::f16>(a) : pick_by_out<L, DType::bf16>(a);
}

}  // namespace

RowsKernel<Args> kernel_avx2(const Args& args);
RowsKernel<Args> kernel_avx512(const Args& args);

}  // namespace rocm_fp8::moe_gate
