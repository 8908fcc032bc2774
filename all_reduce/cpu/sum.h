// The sum over ranks on the CPU, over any of common/cpu/simd_*.h: blocks of a row in registers, one rank after another.
//
// Bytes: each rank's x is written once and read once by every rank; beyond kWholeSums bytes of three ranks or more each
// rank reads one share of all, and the others' shares of the sum. Files: sum.h, avx2.cpp, avx512.cpp,
// all_reduce.cpp (the launchers), ../../common/comm/cpu/meet.h. Journal: docs/journal/all_reduce.md.
#pragma once

#include "../../common/cpu/lanes.h"
#include "../../common/rows/cpu/run.h"
#include "../all_reduce.h"

namespace rocm_fp8::all_reduce {

struct SumArgs {
    const void* from[comm::kMostRanks];  // dtype [rows, d], rows d elements apart
    int count;
    void* out;  // dtype [rows, d], rows out_stride apart
    int64_t rows, d, out_stride;
    int64_t elements;  // of all rows: the last one may be shorter
    DType dtype;
};

namespace {

template <class L, DType type>
void sum_rows(const SumArgs& a, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const int64_t first = row * a.d, rest = a.elements - first;
        void* out = at<type>(a.out, row * a.out_stride);
        for_blocks<L>(rest < a.d ? rest : a.d, [&](int64_t i, auto count, int) {
            typename L::F sum = L::template load<type, type>(at<type>(a.from[0], first + i), count);
            for (int rank = 1; rank < a.count; ++rank)
                sum = L::add(sum, L::template load<type, type>(at<type>(a.from[rank], first + i), count));
            if constexpr (type != DType::f32) sum = L::template round_to<type>(sum);
            L::template store<type, type>(at<type>(out, i), sum, count);
        });
    }
}

template <class L>
RowsKernel<SumArgs> pick(const SumArgs& a) {
    return a.dtype == DType::f32   ? sum_rows<L, DType::f32>
           : a.dtype == DType::f16 ? sum_rows<L, DType::f16>
                                   : sum_rows<L, DType::bf16>;
}

}  // namespace

RowsKernel<SumArgs> sum_avx2(const SumArgs& args);
RowsKernel<SumArgs> sum_avx512(const SumArgs& args);

}  // namespace rocm_fp8::all_reduce
