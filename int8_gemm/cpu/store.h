// The epilogue on the CPU: rows of 12 or 32 sums, by the functions of ../epilogue.h, which the compiler makes vectors of.
#pragma once

#include <cstring>

#include "../../common/gemm/cpu/gemm.h"
#include "../epilogue.h"

namespace rocm_fp8::int8_gemm {

// Columns at once of all but AMX.
constexpr int kColumns = 12;

namespace {

// What the epilogue needs of at most kColumns columns from n0; those beyond `count` may be anything.
template <int kColumns>
struct ColumnsOf {
    int64_t n0;
    int count, done = 0;  // done: of those whose sums are known
    float scale[kColumns] = {}, addend[kColumns] = {}, beta, scale_out;
    int32_t sum[kColumns] = {};

    ColumnsOf(const Epilogue& e, int64_t batch, int64_t n0, int count)
        : n0(n0), count(count), beta(scale_at(e.addend.beta, 0, 0)), scale_out(scale_at(e.scale_out, 0, 0)) {
        for (int j = 0; j < count; ++j) {
            const Column column(e, batch, n0 + j);
            scale[j] = column.scale;
            sum[j] = column.sum;
        }
        if (e.addend.data && e.addend.row_stride == 0) read_addend(e.addend, batch, 0, addend);
    }

    void read_addend(const Addend& d, int64_t batch, int64_t m, float* to) const {
        const int64_t at = batch * d.group_stride + m * d.row_stride + n0;
        if (d.dtype == DType::f32) std::memcpy(to, static_cast<const float*>(d.data) + at, count * sizeof(float));
        else if (d.dtype == DType::i8)
            for (int j = 0; j < count; ++j) to[j] = float(static_cast<const int8_t*>(d.data)[at + j]);
        else
            for (int j = 0; j < count; ++j) to[j] = addend_at(d, batch, m, n0 + j);
    }
};

using Columns = ColumnsOf<kColumns>;

// Of kColumns columns. `values` has as many elements as a block of Lanes<F>.
template <class F, DType out_type, int kColumns>
void store_results(void* to, const float* values, int count) {
    using L = Lanes<F>;
    static_assert(kColumns <= L::block);
    if constexpr (out_type == DType::i8) {
        int8_t codes[kColumns];
        for (int j = 0; j < kColumns; ++j) codes[j] = to_int8(values[j]);
        if (count == kColumns) std::memcpy(to, codes, kColumns);
        else std::memcpy(to, codes, count);
    } else {
        using Whole = std::integral_constant<int, L::block>;
        auto v = L::tame_nan(L::template load<DType::f32, out_type>(values, Whole()));
        if constexpr (out_type != DType::f32) v = L::template round_to<out_type>(v);
        L::template store<out_type, out_type>(to, v, count);
    }
}

// Stores the columns of rows [first, first + count). totals: [count][kColumns].
template <class F, DType out_type, int kColumns>
void store_rows(const Args& p, int64_t batch, int64_t first, int64_t count, const ColumnsOf<kColumns>& columns,
                const int32_t* totals) {
    const Epilogue& e = p.epilogue;
    const ColumnsOf<kColumns> c = columns;  // no store changes a copy
    alignas(64) float v[Lanes<F>::block] = {};
    float d[kColumns];
    std::memcpy(d, c.addend, sizeof d);
    for (int64_t i = 0; i < count; ++i, totals += kColumns) {
        const int64_t m = first + i;
        const Row row(e, batch, m);
        if (e.zero_a.data)
            for (int j = 0; j < kColumns; ++j) v[j] = product(totals[j], row.zero, c.sum[j]);
        else
            for (int j = 0; j < kColumns; ++j) v[j] = product(totals[j]);
        for (int j = 0; j < kColumns; ++j) v[j] = scaled(v[j], row.scale, c.scale[j]);
        if (e.addend.data) {
            if (e.addend.row_stride != 0) c.read_addend(e.addend, batch, m, d);
            for (int j = 0; j < kColumns; ++j) v[j] = added(v[j], c.beta, d[j]);
        }
        if (e.activation == Activation::relu)
            for (int j = 0; j < kColumns; ++j) v[j] = activated(Activation::relu, v[j]);
        else if (e.activation != Activation::none)
            for (int j = 0; j < c.count; ++j) v[j] = activated(e.activation, v[j]);
        if (e.divides)
            for (int j = 0; j < kColumns; ++j) v[j] /= c.scale_out;
        const int64_t to = batch * e.out.group_stride + m * e.out.row_stride + c.n0;
        store_results<F, out_type, kColumns>(at<out_type>(e.out.data, to), v, c.count);
    }
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm
