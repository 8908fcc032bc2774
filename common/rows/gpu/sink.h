// What becomes of a row of values that a RowHolder has in registers: the values themselves, FP8 by a given scale, or FP8
// by scales that are computed of them and written.
#pragma once

#include "../write_scale.h"
#include "holder.h"
#include "quantized.h"

namespace rocm_fp8 {
namespace {

// The scale of values with this largest magnitude, written by those threads that are to.
__device__ inline float computed_scale(const DynamicScale& to, float bound, uint32_t largest, bool writes, int64_t row,
                                       int64_t group) {
    const float scale = scale_of(bits_float(largest), to, bound);
    if (writes) write_scale(to, row, group, scale);
    return scale;
}

// FP8 of vector `at` of a row, by the scale of its group, a multiple of 32 values, whose lanes follow one another. Of
// lanes that are live the group's first writes that scale.
template <DType type>
__device__ inline EightBytes quantized_in_group(const Eight<type>& y, const DynamicScale& rule, float bound,
                                                int64_t row, uint32_t at, bool live) {
    const uint32_t shift = rule.group == 32 ? 2 : rule.group == 64 ? 3 : 4;  // a group's vectors, no division
    const uint32_t largest = largest_of_lanes(y.largest(), rule.group), group = at >> shift;
    const bool leads = live && group << shift == at;
    return y.quantized(QuantizationScale(computed_scale(rule, bound, largest, leads, row, group)));
}

// Each of a thread's vectors, value(v), has a store of its own.
template <int kHeld, class Row, class Value>
__device__ inline void store_row(void* row, const Row& by, uint32_t vectors, const Value& value) {
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        if (by.index(v) < vectors) store_vector(row, VectorIndex(by.index(v)) * sizeof(value(v)), value(v));
    }
}

// FP8 of an even number of vectors, in rows of 16 bytes. On AMD GPUs neighbours exchange halves of two vectors, for
// stores of 128 bits.
template <int kHeld, class Row>
__device__ inline void store_even_row(void* row, const Row& by, uint32_t vectors, const EightBytes (&q)[kHeld]) {
#if !defined(__CUDACC__)
#pragma unroll
    for (int v = 0; v + 1 < kHeld; v += 2) {
        const u32x4 two = pair_up(q[v], q[v + 1]);
        const uint32_t first = by.t & 1 ? by.index(v + 1) - 1 : by.index(v);
        if (first < vectors) store_vector(row, first * 8, two);
    }
    if constexpr (kHeld > 1) return;
#endif
    store_row<kHeld>(row, by, vectors, [&](int v) { return q[v]; });
}

// What a kernel makes of the values. fp8: by a given scale; computed: by scales of its own.
enum class Output { values, fp8, computed };

template <Output output, DType type>
struct Sink {
    QuantizedRows to;  // of values, too: out, rows, d, stride
    void* values;      // with `computed`: where they go as well, rows values_stride elements apart; or nullptr
    int64_t values_stride;
    QuantizationScale given = {};

    // A later computation's operands, before the row has come.
    __device__ void prepare() {
        if constexpr (output == Output::fp8) {
            given = QuantizationScale(to.scale);
            given.have_now();
        }
    }

    // value(v): the thread's vector v, Eight<type>, asked for once.
    template <int kHeld, class Row, class Value>
    __device__ void write(const Row& by, uint32_t vectors, const Value& value) const {
        if constexpr (output == Output::values) {
            void* out = offset(to.out, by.row * to.stride * 2);
#pragma unroll
            for (int v = 0; v < kHeld; ++v) {
                const Eight<type> y = value(v);
                if (by.index(v) < vectors) store_vector(out, VectorIndex(by.index(v)) * 16, y.bits[0]);
            }
        } else {
            EightBytes q[kHeld];
            if constexpr (output == Output::fp8) {
#pragma unroll
                for (int v = 0; v < kHeld; ++v) q[v] = value(v).quantized_by_one(given);
            } else {
                Eight<type> y[kHeld];
#pragma unroll
                for (int v = 0; v < kHeld; ++v) y[v] = value(v);
                if (!computed_quotients(by, vectors, y, q)) return;
            }
            store_even_row(offset(to.out, by.row * to.stride), by, vectors, q);
        }
    }

  private:
    // False: the results, in `q`, are not to be stored.
    template <class Row, int kHeld>
    __device__ bool computed_quotients(const Row& by, uint32_t vectors, const Eight<type> (&y)[kHeld],
                                       EightBytes (&q)[kHeld]) const {
        if (values) {
            void* row = offset(values, by.row * values_stride * 2);
            store_row<kHeld>(row, by, vectors, [&](int v) { return y[v].bits[0]; });
        }
        const DynamicScale& rule = to.dynamic;
        const float bound = upper_bound(rule);
        if (rule.group > 0) {
#pragma unroll
            for (int v = 0; v < kHeld; ++v) {
                // Threads beyond the row's end hold its last vector, which changes no maximum.
                const uint32_t at = by.index(v);
                q[v] = quantized_in_group(y[v], rule, bound, by.row, at, at < vectors);
            }
            return true;
        }
        uint32_t largest = 0;
#pragma unroll
        for (int v = 0; v < kHeld; ++v) largest = larger(largest, y[v].largest());
        largest = by.largest(largest);
        if (rule.group == DynamicScale::kTensor) {  // a second launch takes the rows' maxima
            if (by.t == 0) global<uint32_t>(rule.data)[by.row] = largest;
            return false;
        }
        const QuantizationScale quantization(computed_scale(rule, bound, largest, by.t == 0, by.row, 0));
#pragma unroll
        for (int v = 0; v < kHeld; ++v) q[v] = y[v].quantized(quantization);
        return true;
    }
};

}  // namespace
}  // namespace rocm_fp8
