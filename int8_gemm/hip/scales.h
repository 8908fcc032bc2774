// What a tile's epilogue needs beside its sums: which of its steps a launch has, and what rows and columns bring.
#pragma once

#include "../../common/gemm/hip/work.h"
#include "../epilogue.h"
#include "tile.h"

namespace rocm_fp8::int8_gemm::hip {
namespace {

// What the epilogue does: bits of one number, an argument of the launch that costs one scalar register.
constexpr int kByEights = 1;      // eights of columns; else element by element
constexpr int kWholeEights = 2;   // at multiples of eight, else of four
constexpr int kMatrixAddend = 4;  // eights are loaded of it
constexpr int kZeros = 8, kRelu = 16, kDivides = 32, kRowScales = 64, kColumnScales = 128;
constexpr int kRowAddend = 256;                        // one row for all
constexpr int kTypeShift = 12, kAddendTypeShift = 16;  // the result's type, the addend's: four bits each

inline bool multiples_of(int count, const void* data, int64_t group_stride, int64_t row_stride, DType type) {
    const int bytes = type == DType::i8    ? 1
                      : type == DType::f32 ? 4
                                           : 2,
              vector = count * bytes < 16 ? count * bytes : 16;
    return (group_stride | row_stride) % count == 0 && reinterpret_cast<uintptr_t>(data) % vector == 0;
}
// By the host.
inline int mode_of(const Args& a) {
    const Epilogue& e = a.epilogue;
    const auto out_of = [&](int count) {
        return a.n % count == 0 && multiples_of(count, e.out.data, e.out.group_stride, e.out.row_stride, e.out.dtype);
    };
    const bool matrix = e.addend.data && e.addend.row_stride != 0;
    const bool whole = out_of(8);
    const bool by_eights =
        (e.activation == Activation::none || e.activation == Activation::relu) &&
        (matrix ? whole && multiples_of(8, e.addend.data, e.addend.group_stride, e.addend.row_stride, e.addend.dtype)
                : out_of(4));
    return (by_eights ? kByEights : 0) | (whole ? kWholeEights : 0) |
           (matrix          ? kMatrixAddend
            : e.addend.data ? kRowAddend
                            : 0) |
           (e.zero_a.data ? kZeros : 0) | (e.activation == Activation::relu ? kRelu : 0) | (e.divides ? kDivides : 0) |
           (e.scale_a.data ? kRowScales : 0) | (e.scale_b.data ? kColumnScales : 0) | int(e.out.dtype) << kTypeShift |
           int(e.addend.dtype) << kAddendTypeShift;
}

// Of lane `from`.
__device__ inline float of_lane(int from, float v) {
    return bits_float(uint32_t(__builtin_amdgcn_ds_bpermute(from * 4, int(float_bits(v)))));
}
__device__ inline int32_t of_lane(int from, int32_t v) { return __builtin_amdgcn_ds_bpermute(from * 4, v); }

// A wave's place in its tile: the first row and column of what it stores, in the matrix.
template <class S>
struct Corner {
    int64_t row, column;

    __device__ Corner(const WorkItem& item, int wave) {
        const int place = wave % S::grid_waves;
        row = first_row<S>(item) + place / S::waves_n * S::wave_rows;
        column = first_column<S>(item) + place % S::waves_n * S::wave_columns;
    }
};

// What the epilogue reads of rows and columns. A lane has one of the wave's columns, and every 64th row.
//
// prepare() is for the time in which a tile's first loads are on their way. It loads nothing, since the compiler would
// wait for what it loads, where a choice decides on it, together with the tile's. request() follows when these are here.
template <class S>
struct Scales {
    static constexpr int kRows = (S::wave_rows + kWave - 1) / kWave;
    static_assert(S::wave_columns <= kWave && (kRows == 1 || kWave % S::matrix == 0));

    struct Places {
        const void *row[kRows], *column, *sum, *addend;
    };

    int way;
    float row[kRows], column;
    int32_t sum;
    uint32_t addend;  // as it lies in memory

    // Of a number of 4 bytes.
    template <class Numbers>
    static __device__ const void* place(const Numbers& of, int64_t batch, int64_t row) {
        return offset(of.data, (batch * of.group_stride + row * of.row_stride) * 4);
    }
    __device__ Places prepare(const Args& a, int way_of_launch, const WorkItem& item) {
        const Epilogue& e = a.epilogue;
        const int lane = fresh_thread() % kWave;
        const Corner<S> corner(item, uniform(fresh_thread() / kWave));
        const int64_t batch = item.group, last_m = a.m - 1, last_n = a.n - 1;
        const int64_t own = corner.column + lane % S::wave_columns, n = own < last_n ? own : last_n;
        way = way_of_launch;
        have_now(way);
        Places at;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int64_t m = corner.row + i * kWave + lane;
            at.row[i] = place(e.scale_a, batch, m < last_m ? m : last_m);
            asm volatile("" : "+v"(at.row[i]));
        }
        at.column = place(e.scale_b, batch, n);
        at.sum = place(e.sum_b, batch, n);
        const DType type = e.addend.dtype;
        const int shift = type == DType::f32 ? 2 : type == DType::i8 ? 0 : 1;
        at.addend = offset(e.addend.data, (batch * e.addend.group_stride + n) << shift);
        asm volatile("" : "+v"(at.column), "+v"(at.sum), "+v"(at.addend));
        return at;
    }
    __device__ void request(const Places& at) {
        column = 0, sum = 0, addend = 0;
#pragma unroll
        for (int i = 0; i < kRows; ++i) row[i] = 0;
        if (way & kRowScales) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) row[i] = *global<float>(at.row[i]);
        }
        if (way & kColumnScales) column = *global<float>(at.column);
        if (way & kZeros) sum = *global<int32_t>(at.sum);
        if (way & kRowAddend) {
            if (addend_type() == DType::f32) {
                addend = *global<uint32_t>(at.addend);
            } else if (addend_type() == DType::i8) {
                addend = *global<uint8_t>(at.addend);
            } else {
                addend = *global<uint16_t>(at.addend);
            }
        }
    }
    // What is one for all rows or columns is no load.
    __device__ void take(const Args& a) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) row[i] = way & kRowScales ? row[i] : a.epilogue.scale_a.value;
        column = way & kColumnScales ? column : a.epilogue.scale_b.value;
    }
    __device__ float added(const Args& a) const {
        if (!(way & kRowAddend)) return -0.0f;  // which changes no sum
        const DType type = addend_type();
        return scale_at(a.epilogue.addend.beta, 0, 0) * (type == DType::f32  ? bits_float(addend)
                                                         : type == DType::i8 ? float(int8_t(addend))
                                                                             : gemm::widened(type, addend));
    }
    __device__ DType addend_type() const { return DType(way >> kAddendTypeShift & 15); }
};

}  // namespace
}  // namespace rocm_fp8::int8_gemm::hip
