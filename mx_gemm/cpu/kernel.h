// MX weights on the CPU, over any of common/cpu/simd_*.h. With AMX: amx.cpp, but for float16 rows.
//
// Bytes: (k / 2 or k) + k / 32 a column, read once for each kMostRows rows. Floor: those bytes at memory's rate.
//
//     rows of A  --> float32, once, in the order in which decoding gives weights
//     up to kFewRows rows: 32 codes --> float32 in registers --> products of the block --> times its scale, added
//     more rows:           kStrip columns are decoded to memory first, for all rows
//
// Order of a sum, the same for every number of rows: a lane adds the products of a block, and blocks one after the other;
// then the lanes are added in a tree.
//
// Files: kernel.h (this kernel), avx2.cpp, avx512.cpp, amx.cpp (another kernel), mx_gemm.cpp (the launcher).
// Steps and figures: docs/journal/mx_gemm.md.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../../common/cpu/half.h"
#include "../../common/cpu/kept_memory.h"
#include "../../common/cpu/lanes.h"
#include "../../common/gemm/cpu/groups.h"
#include "../../common/gemm/scales.h"
#include "../mx_gemm.h"

namespace rocm_fp8::mx_gemm {

// Some rows of a group.
struct Rows {
    const float* a;        // [count][k], widened, in the order of the registers
    const float* blocks;   // [count][k / 32]: A's scales of blocks, or nullptr
    const float* factors;  // [count]: A's scales of rows, or nullptr
    int64_t count;
    const uint8_t* b;      // the group's matrix
    gemm::Scales scale_b;  // its own
    gemm::Bias bias;
    void* out;  // its first row
    const Args& args;
};

constexpr int kMostRows = 32, kFewRows = 4;

struct Kernel {
    // Row `row` of A to `to`.
    void (*widen)(const Args& args, const uint8_t* row, float* to);
    void (*columns)(const Rows& rows, int64_t begin, int64_t end);
};

namespace {

inline float value_of(DType format, const uint8_t* row, int64_t i) {
    if (format == DType::e2m1) return e2m1_value(row[i / 2] >> i % 2 * 4 & 15);
    if (format == DType::e4m3fn) return fp8_decode<DType::e4m3fn>(row[i]);
    if (format == DType::e4m3fnuz) return fp8_decode<DType::e4m3fnuz>(row[i]);
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, 2);
    return format == DType::f16 ? half_to_float(bits) : bits_float(uint32_t(bits) << 16);
}

template <class R, DType format>
class MxGemm {
    using V = typename R::V;
    static constexpr bool kFour = format == DType::e2m1;
    static constexpr int kWidth = R::width, kVectors = kMxBlock / kWidth, kStrip = 12;
    // Registers: sums and a block's products of M x N tiles, N weights and a number of A.
    static constexpr bool kWide = kWidth == 16;
    static constexpr int kTileM = kWide ? 4 : 2, kTileN = kWide ? 3 : 2, kStreamN = kWide ? 6 : 3;

    // MXFP4: of each 2 kWidth numbers the even ones, then the odd ones, as bytes have them.
    static void widen(const Args& args, const uint8_t* row, float* to) {
        for (int64_t i = 0; i < args.k; ++i) {
            const int64_t within = i % (2 * kWidth), first = i - within;
            to[kFour ? first + within / 2 + within % 2 * kWidth : i] = value_of(args.format_a, row, i);
        }
    }

    // 32 weights of a column.
    struct Coded {
        const uint8_t* first;
        int64_t stride;
        void load(int column, int64_t block, V (&w)[kVectors]) const {
            const uint8_t* p = first + column * stride + block * (kFour ? kMxBlock / 2 : kMxBlock);
            if constexpr (kFour) {
                for (int v = 0; v < kVectors; v += 2) R::decode_e2m1(p + v / 2 * kWidth, w[v], w[v + 1]);
            } else {
                for (int v = 0; v < kVectors; ++v) w[v] = R::template decode_fp8<format>(p + v * kWidth);
            }
        }
        // The same place of the next tile's columns: early enough for page-table walks.
        void prefetch_next(int column, int columns, int64_t block) const {
            const int64_t at = block * (kFour ? kMxBlock / 2 : kMxBlock);
            if (at % 64 == 0) __builtin_prefetch(first + (column + columns) * stride + at, 0, 2);
        }
    };
    struct Decoded {
        const float* first;
        int64_t stride;
        void load(int column, int64_t block, V (&w)[kVectors]) const {
            for (int v = 0; v < kVectors; ++v)
                R::load_sum(first + column * stride + block * kMxBlock + v * kWidth, w[v]);
        }
        void prefetch_next(int, int, int64_t) const {}
    };

    // scales: [columns][blocks], of the tile's columns.
    template <int M, int N, class Weights>
    static void tile(const Rows& rows, const Weights& weights, const float* scales, int64_t row, int64_t column) {
        const Args& p = rows.args;
        const int64_t blocks = p.k / kMxBlock;
        V sum[M][N];
        for (auto& of_row : sum)
            for (V& v : of_row) v = R::zero();
        const float* a = rows.a + row * p.k;
        for (int64_t block = 0; block < blocks; ++block) {
            V w[N][kVectors], part[M][N];
            for (int j = 0; j < N; ++j) {
                weights.prefetch_next(j, N, block);
                weights.load(j, block, w[j]);
            }
            for (int v = 0; v < kVectors; ++v) {
                for (int m = 0; m < M; ++m) {
                    V x;
                    R::load_sum(a + m * p.k + block * kMxBlock + v * kWidth, x);
                    for (int j = 0; j < N; ++j)
                        part[m][j] = v == 0 ? R::mul(x, w[j][v]) : R::multiply_add(part[m][j], x, w[j][v]);
                }
            }
            for (int m = 0; m < M; ++m) {
                const float of_a = rows.blocks ? rows.blocks[(row + m) * blocks + block] : 1.0f;
                for (int j = 0; j < N; ++j)
                    sum[m][j] = R::multiply_add(sum[m][j], R::set1(of_a * scales[j * blocks + block]), part[m][j]);
            }
        }
        for (int m = 0; m < M; ++m) {
            for (int j = 0; j < N; ++j) {
                alignas(64) float lanes[kWidth];
                R::store_sum(lanes, sum[m][j]);
                for (int half = kWidth / 2; half; half /= 2)
                    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
                float v = lanes[0];
                if (rows.factors) v *= rows.factors[row + m];
                if (rows.bias.data) v += gemm::bias_at(rows.bias, column + j);  // without one, -0 stays -0
                put(p, rows.out, (row + m) * p.out.row_stride + column + j, v);
            }
        }
    }
    static void put(const Args& p, void* out, int64_t i, float v) {
        if (p.out.dtype == DType::f32) static_cast<float*>(out)[i] = v;
        else static_cast<uint16_t*>(out)[i] = p.out.dtype == DType::f16 ? float_to_half(v) : float_to_bfloat16(v);
    }

    template <int M, int N, class WeightsAt>
    static void across(const Rows& rows, const WeightsAt& at, const float* scales, int64_t row, int64_t begin,
                       int64_t end) {
        const int64_t blocks = rows.args.k / kMxBlock;
        int64_t n = begin;
        for (; n + N <= end; n += N) tile<M, N>(rows, at(n), scales + (n - begin) * blocks, row, n);
        for (; n < end; ++n) tile<M, 1>(rows, at(n), scales + (n - begin) * blocks, row, n);
    }

    static void columns(const Rows& rows, int64_t begin, int64_t end) {
        static thread_local KeptMemory kept_scales, kept_weights;
        const Args& p = rows.args;
        const int64_t blocks = p.k / kMxBlock;
        auto* scales = reinterpret_cast<float*>(kept_scales.at_least(kStrip * blocks * sizeof(float)));
        const bool few = rows.count <= kFewRows;
        auto* weights = few ? nullptr : reinterpret_cast<float*>(kept_weights.at_least(kStrip * p.k * sizeof(float)));
        for (; begin < end; begin += kStrip) {
            const int64_t stop = std::min<int64_t>(begin + kStrip, end);
            for (int64_t n = begin; n < stop; ++n) {
                const uint8_t* bytes = static_cast<const uint8_t*>(rows.scale_b.data) + n * rows.scale_b.row_stride;
                float* to = scales + (n - begin) * blocks;
                for (int64_t j = 0; j < blocks; ++j) to[j] = e8m0_value(bytes[j * rows.scale_b.block_stride]);
            }
            const auto coded = [&](int64_t n) { return Coded{rows.b + n * p.b.row_stride, p.b.row_stride}; };
            if (few) {
                switch (rows.count) {
                    case 1: across<1, kStreamN>(rows, coded, scales, 0, begin, stop); break;
                    case 2: across<2, kTileN>(rows, coded, scales, 0, begin, stop); break;
                    case 3: across<3, kWide ? 3 : 1>(rows, coded, scales, 0, begin, stop); break;
                    case 4: across<4, kWide ? 3 : 1>(rows, coded, scales, 0, begin, stop); break;
                }
                continue;
            }
            for (int64_t n = begin; n < stop; ++n) {
                for (int64_t block = 0; block < blocks; ++block) {
                    V w[kVectors];
                    coded(n).load(0, block, w);
                    for (int v = 0; v < kVectors; ++v)
                        R::store_sum(weights + (n - begin) * p.k + block * kMxBlock + v * kWidth, w[v]);
                }
            }
            const auto decoded = [&](int64_t n) { return Decoded{weights + (n - begin) * p.k, p.k}; };
            int64_t row = 0;
            for (; row + kTileM <= rows.count; row += kTileM)
                across<kTileM, kTileN>(rows, decoded, scales, row, begin, stop);
            for (; row < rows.count; ++row) across<1, kTileN>(rows, decoded, scales, row, begin, stop);
        }
    }

  public:
    static Kernel kernel() { return {widen, columns}; }
};

template <class R>
Kernel pick(const Args& args) {
    return args.format_b == DType::e2m1     ? MxGemm<R, DType::e2m1>::kernel()
           : args.format_b == DType::e4m3fn ? MxGemm<R, DType::e4m3fn>::kernel()
                                            : MxGemm<R, DType::e4m3fnuz>::kernel();
}

}  // namespace

Kernel kernel_avx2(const Args& args);
Kernel kernel_avx512(const Args& args);

}  // namespace rocm_fp8::mx_gemm
