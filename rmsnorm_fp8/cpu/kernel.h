// Residual + RMSNorm + FP8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes, with a residual and 16-bit types: 2 (x) + 2 (residual) + 2 (residual written) + 1 (out) = 7 an element.
// Floor: those bytes at the copy rate. One thread owns a row:
//
//     pass 1   x, residual -> h -> residual            32 partial sums of h^2
//     pass 2   h (from the nearest cache: a row of 16384 is 32 KiB) * r * weight / scale -> out
//
// so memory sees each element once each way. Pass 2 prefetches the next row.
//
// Files: kernel.h (this kernel), avx2.cpp, avx512.cpp, rmsnorm_fp8.cpp (the launcher).
//
// Limit today: 0.57 to 0.87 of the copy rate with AVX-512 on two cores of a Zen 4, by how busy the machine's memory
// is.
//
// Steps and figures: docs/journal/rmsnorm_fp8-cpu.md.
#pragma once

#include <cmath>

#include "../../common/rows/cpu/quantize.h"
#include "../rmsnorm_fp8.h"

namespace rocm_fp8::rms_norm {

using Job = DynamicJob<Args>;

namespace {

template <class L, DType in, DType weight_type, DType out_type, bool with_residual>
void rms_norm_rows(const Job& args, int64_t begin, int64_t end) {
    using F = typename L::F;
    constexpr bool can_flush = is_fp8(out_type) && L::template can_flush<in>;
    // What a flushing instruction makes 0 is 0 in FP8, but not in a result of the type.
    const bool may_flush =
        can_flush && !args.normalized && L::template all_below<weight_type>(args.weight, args.d, L::kFlushedFactor);
    const bool computed = args.is_dynamic();
    // Not used where the result is not FP8.
    RowQuantizer<L, in, is_fp8(out_type) ? out_type : DType::e4m3fn> quantizer(args);
    for (int64_t row = begin; row < end; ++row) {
        const void* x = at<in>(args.x, row * args.x_stride);
        void* residual = with_residual ? at<in>(args.residual, row * args.residual_stride) : nullptr;
        void* out = at<out_type>(args.out, row * args.out_stride);

        F sums[kPartialSums / L::block];
        for (F& sum : sums) sum = L::set1(0);
        for_blocks<L>(args.d, [&](int64_t i, auto n, int u) {
            F h = L::template load<in, in>(at<in>(x, i), n);
            if constexpr (with_residual) {
                h = L::template round_to<in>(L::add(h, L::template load<in, in>(at<in>(residual, i), n)));
                L::template store<in, in>(at<in>(residual, i), h, n);
            }
            sums[u] = L::fma(h, h, sums[u]);
        });
        const float mean = L::template sum<in>(sums) / float(args.d);
        const F r = L::set1(1.0f / std::sqrt(mean + args.epsilon));

        const void* h_row = with_residual ? residual : x;
        // This pass reads from caches only, so the next row is prefetched from memory meanwhile.
        const int64_t ahead = row + 1 < end ? 1 : 0;
        const void* next_x = at<in>(x, ahead * args.x_stride);
        const void* next_residual = with_residual ? at<in>(residual, ahead * args.residual_stride) : next_x;
        // store(i, product, n) rounds and stores the elements from i on.
        auto normalize = [&](int64_t first, int64_t length, auto flush, auto store) {
            for_blocks<L>(length, [&](int64_t i, auto n, int) {
                prefetch(at<in>(next_x, first + i));
                if constexpr (with_residual) prefetch(at<in>(next_residual, first + i));
                F normal = L::mul(L::template load<in, in>(at<in>(h_row, first + i), n), r);
                if constexpr (decltype(flush)::value) normal = L::round_flushing(normal);
                else normal = L::template round_to<in>(normal);
                // The product of two 16-bit numbers in their own arithmetic is the float32 product rounded, so
                // one expression serves both types of weight.
                const F weight = L::template load<weight_type, in>(at<weight_type>(args.weight, first + i), n);
                F product = L::mul(normal, weight);
                if constexpr (weight_type == DType::f32) product = L::tame_nan(product);
                store(i, product, n);
            });
        };
        if constexpr (is_fp8(out_type)) {
            // Computed scales are usual ones, by which flushed numbers are 0. Of a scale that is not, nothing is flushed.
            const float given = computed ? (args.normalized ? 0.0f : 1.0f) : *args.scale;
            const typename L::Scale scale(given, Fp8Format<out_type>::max);
            const auto make = [&](int64_t first, int64_t length, void* to) {
                auto store = [&](int64_t i, F product, auto n) {
                    L::template store_for_fp8<in>(at<in>(to, i), product, scale, n);
                };
                if (may_flush) normalize(first, length, std::bool_constant<L::template can_flush<in>>(), store);
                else normalize(first, length, std::false_type(), store);
            };
            void* kept = args.normalized ? at<in>(args.normalized, row * args.normalized_stride) : nullptr;
            quantizer.make(row, args.d, kept, out, make);
        } else {
            normalize(0, args.d, std::false_type(), [&](int64_t i, F product, auto n) {
                L::template store<in, in>(at<in>(out, i), L::template round_to<in>(product), n);
            });
        }
    }
}

// Every instantiation, chosen by the arguments' types.
template <class L, DType in, DType weight_type, DType out_type>
RowsKernel<Job> rms_norm_by_residual(const Job& a) {
    return a.residual ? rms_norm_rows<L, in, weight_type, out_type, true>
                      : rms_norm_rows<L, in, weight_type, out_type, false>;
}

template <class L, DType in, DType weight_type>
RowsKernel<Job> rms_norm_by_out(const Job& a) {
    if (a.out_dtype == DType::e4m3fn) return rms_norm_by_residual<L, in, weight_type, DType::e4m3fn>(a);
    if (a.out_dtype == DType::e4m3fnuz) return rms_norm_by_residual<L, in, weight_type, DType::e4m3fnuz>(a);
    return rms_norm_by_residual<L, in, weight_type, in>(a);
}

template <class L, DType in>
RowsKernel<Job> rms_norm_by_weight(const Job& a) {
    return a.weight_dtype == DType::f32 ? rms_norm_by_out<L, in, DType::f32>(a) : rms_norm_by_out<L, in, in>(a);
}

template <class L>
RowsKernel<Job> pick(const Job& a) {
    return a.dtype == DType::f16 ? rms_norm_by_weight<L, DType::f16>(a) : rms_norm_by_weight<L, DType::bf16>(a);
}

}  // namespace

RowsKernel<Job> kernel_avx2(const Job& job);
RowsKernel<Job> kernel_avx512(const Job& job);

}  // namespace rocm_fp8::rms_norm
