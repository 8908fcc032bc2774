// Residual + LayerNorm + int8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes, with a residual and 16-bit types: 2 (x) + 2 (residual) + 2 (residual written) + 1 (out) = 7 an element. Floor:
// those bytes at the copy rate. One thread owns a row, which stays in the nearest caches as float32:
//
//     pass 1   x, residual -> h -> residual       32 partial sums of h
//     pass 2   h - mean                           32 partial sums of its squares
//     pass 3   * r * weight + bias -> y           the range of y, where its scale is computed
//     pass 4   y / scale -> out
//
// Files: kernel.h (this kernel), ../../common/rows/cpu/int8.h, avx2.cpp, avx512.cpp, layer_norm_int8.cpp (the
// launcher).
#pragma once

#include <cmath>

#include "../../common/cpu/kept_memory.h"
#include "../../common/rows/cpu/int8.h"
#include "../layer_norm_int8.h"

namespace rocm_fp8::layer_norm_int8 {
namespace {

template <class L, DType in, DType weight_type>
void layer_norm_rows(const Args& a, int64_t begin, int64_t end) {
    using F = typename L::F;
    Int8Rows rows(a.scale);
    static thread_local KeptMemory memory;
    auto* const values = reinterpret_cast<float*>(memory.at_least(a.d * int64_t(sizeof(float))));
    const auto load = [&](int64_t i, auto n) { return L::template load<DType::f32, in>(values + i, n); };
    const auto store = [&](int64_t i, F v, auto n) { L::template store<DType::f32, in>(values + i, v, n); };
    const auto round = [](F v) {
        if constexpr (in != DType::f32) return L::template round_to<in>(L::tame_nan(v));
        else return v;
    };
    // Beyond the last element the terms must be 0: term(i, n) may not make others of loaded zeros.
    const auto mean_of = [&](auto term) {
        F sums[kPartialSums / L::block];
        for (F& sum : sums) sum = L::set1(0);
        for_blocks<L>(a.d, [&](int64_t i, auto n, int u) { sums[u] = L::add(sums[u], term(i, n)); });
        return L::template sum<in>(sums) / float(a.d);
    };
    for (int64_t row = begin; row < end; ++row) {
        const void* x = at<in>(a.x, row * a.x_stride);
        void* residual = a.residual ? at<in>(a.residual, row * a.residual_stride) : nullptr;
        const float mean = mean_of([&](int64_t i, auto n) {
            F h = L::template load<in, in>(at<in>(x, i), n);
            if (residual) {
                h = round(L::add(h, L::template load<in, in>(at<in>(residual, i), n)));
                L::template store<in, in>(at<in>(residual, i), h, n);
            }
            store(i, h, n);
            return h;
        });
        const float variance = mean_of([&](int64_t i, auto n) {
            const F centered = L::add(load(i, n), L::set1(-mean));
            store(i, centered, n);
            const F kept = load(i, n);  // zeros after the last
            return L::mul(kept, kept);
        });
        const F r = L::set1(1.0f / std::sqrt(variance + a.epsilon));
        for_blocks<L>(a.d, [&](int64_t i, auto n, int) {
            const auto of = [&](const void* p) { return L::template load<weight_type, in>(at<weight_type>(p, i), n); };
            F y = L::mul(L::mul(load(i, n), r), of(a.weight));
            if (a.bias) y = L::add(y, of(a.bias));
            store(i, round(y), n);
        });
        if (rows.computed()) {
            FiniteRange range;
            range.note(values, a.d);
            rows.compute(row, range);
        }
        rows.quantize(values, a.d, a.out + row * a.out_stride);
    }
}

template <class L, DType in>
RowsKernel<Args> pick_by_weight(const Args& a) {
    return a.weight_dtype == DType::f32 ? layer_norm_rows<L, in, DType::f32> : layer_norm_rows<L, in, in>;
}
template <class L>
RowsKernel<Args> pick(const Args& a) {
    if (a.dtype == DType::f32) return pick_by_weight<L, DType::f32>(a);
    return a.dtype == DType::f16 ? pick_by_weight<L, DType::f16>(a) : pick_by_weight<L, DType::bf16>(a);
}

}  // namespace

RowsKernel<Args> kernel_avx2(const Args& args);
RowsKernel<Args> kernel_avx512(const Args& args);

}  // namespace rocm_fp8::layer_norm_int8
