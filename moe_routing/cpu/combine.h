// moe_combine on the CPU, over any of common/cpu/simd_*.h: a token's rows are added in blocks of registers, slot after
// slot, so that each number of y is read once.
//
// Bytes: those of the rows of y that are not dropped, and of the result. Files: combine.h, one .cpp an instruction set,
// moe_routing.cpp (the launchers; route and sort, which take far less time).
#pragma once

#include "../../common/cpu/lanes.h"
#include "../../common/rows/cpu/run.h"
#include "../moe_routing.h"

namespace rocm_fp8::moe_routing {
namespace {

template <class L, DType in, DType out_type>
void combine_rows(const CombineArgs& a, int64_t begin, int64_t end) {
    using F = typename L::F;
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
                sum =
                    L::add(sum, L::mul(L::set1(weights[j]), L::template load<in, out_type>(at<in>(from[j], i), count)));
            if (a.shared) {
                const auto add = [&]<DType type>() {
                    const void* shared = at<type>(a.shared, row * a.shared_stride + i);
                    sum = L::add(sum, L::template load<type, out_type>(shared, count));
                };
                if (a.shared_dtype == DType::f32) add.template operator()<DType::f32>();
                else if (a.shared_dtype == DType::f16) add.template operator()<DType::f16>();
                else add.template operator()<DType::bf16>();
            }
            sum = L::tame_nan(sum);
            if constexpr (out_type != DType::f32) sum = L::template round_to<out_type>(sum);
            L::template store<out_type, out_type>(at<out_type>(out, i), sum, count);
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

RowsKernel<CombineArgs> combine_portable(const CombineArgs& args);
RowsKernel<CombineArgs> combine_avx2(const CombineArgs& args);
RowsKernel<CombineArgs> combine_avx512(const CombineArgs& args);

}  // namespace rocm_fp8::moe_routing
