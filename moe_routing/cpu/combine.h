// moe_combine on the CPU, over any of common/cpu/simd_*.h: a token's rows are added in blocks of registers, slot after
// slot, so that each number of y is read once.
//
// Bytes: those of the rows of y that are not dropped, and of the result. Files: combine.h, avx2.cpp, avx512.cpp,
// moe_routing.cpp (the launchers; route and sort, which take far less time).
#pragma once

#include "../../common/cpu/lanes.h"
#include "../../common/rows/cpu/run.h"
#include "../moe_routing.h"

namespace rocm_fp8::moe_routing {
namespace {

// Numbers in the layout of rows of `from`, in that of `to`: bfloat16 has one of its own.
template <class L, DType from, DType to>
typename L::F in_layout(typename L::F x) {
    if constexpr ((from == DType::bf16) == (to == DType::bf16)) {
        return x;
    } else {
        using Whole = std::integral_constant<int, L::block>;
        alignas(64) float values[L::block];
        L::template store<DType::f32, from>(values, x, Whole());
        return L::template load<DType::f32, to>(values, Whole());
    }
}

template <class L, DType in, DType out_type>
void combine_rows(const CombineArgs& a, int64_t begin, int64_t end) {
    using F = typename L::F;
    constexpr DType layout = in == DType::f32 ? out_type : in;
    for (int64_t row = begin; row < end; ++row) {
        const void* from[kMostChosen];
        float weights[kMostChosen];
        int live = 0;
        for (int j = 0; j < a.chosen; ++j) {
            const int64_t place = a.positions[row * a.chosen + j];
            if (place < 0 || place >= a.y_rows) continue;
            from[live] = at<in>(a.y, place * a.y_stride);
            weights[live++] = a.weights[row * a.chosen + j];
        }
        void* out = at<out_type>(a.out, row * a.out_stride);
        for_blocks<L>(a.d, [&](int64_t i, auto count, int) {
            F sum = L::set1(0);
            for (int j = 0; j < live; ++j)
                sum = L::add(sum, L::mul(L::set1(weights[j]), L::template load<in, layout>(at<in>(from[j], i), count)));
            if (a.shared) {
                const auto add = [&]<DType type>() {
                    const void* shared = at<type>(a.shared, row * a.shared_stride + i);
                    constexpr DType own = type == DType::f32 ? layout : type;
                    sum = L::add(sum, in_layout<L, own, layout>(L::template load<type, own>(shared, count)));
                };
                if (a.shared_dtype == DType::f32) add.template operator()<DType::f32>();
                else if (a.shared_dtype == DType::f16) add.template operator()<DType::f16>();
                else add.template operator()<DType::bf16>();
            }
            sum = L::tame_nan(sum);
            if constexpr (out_type == DType::f32) {
                L::template store<DType::f32, layout>(at<out_type>(out, i), sum, count);
            } else {
                sum = in_layout<L, layout, out_type>(L::template round_to<out_type>(sum));
                L::template store<out_type, out_type>(at<out_type>(out, i), sum, count);
            }
        });
    }
}

template <class L, DType in>
RowsKernel<CombineArgs> combine_to(const CombineArgs& a) {
    return a.out_dtype == DType::f32   ? combine_rows<L, in, DType::f32>
           : a.out_dtype == DType::f16 ? combine_rows<L, in, DType::f16>
                                       : combine_rows<L, in, DType::bf16>;
}
template <class L>
RowsKernel<CombineArgs> pick(const CombineArgs& a) {
    return a.dtype == DType::f32   ? combine_to<L, DType::f32>(a)
           : a.dtype == DType::f16 ? combine_to<L, DType::f16>(a)
                                   : combine_to<L, DType::bf16>(a);
}

}  // namespace

RowsKernel<CombineArgs> combine_avx2(const CombineArgs& args);
RowsKernel<CombineArgs> combine_avx512(const CombineArgs& args);

}  // namespace rocm_fp8::moe_routing
