// float16 and bfloat16 rows times one expert's matrix on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: 2 n k of weights, read once for each kMostRows rows. Rows of A are widened once; weights in registers, for
// kTileM rows at a time.
//
// Order of the sum, the same for every number of rows: a register of lanes adds the products of a block of L::block
// elements, its first half then its second one, block after block; then the lanes are added in a tree.
#pragma once

#include <algorithm>

#include "../../common/cpu/half.h"
#include "../../common/cpu/lanes.h"
#include "../../common/gemm/scales.h"
#include "../grouped_gemm.h"

namespace rocm_fp8::grouped_gemm {

// Some rows of an expert.
struct HalfRows {
    const float* a;  // [count][half_row(k)], widened, in the order of the registers
    int64_t count;
    const uint8_t* b;  // the expert's matrix
    gemm::Bias bias;   // its own
    void* out;         // its first row
    const Args& args;
};

constexpr int kMostRows = 64, kHalfBlock = 32;
// Floats of a widened row: whole blocks.
inline int64_t half_row(int64_t k) { return (k + kHalfBlock - 1) / kHalfBlock * kHalfBlock; }

struct HalfKernel {
    void (*widen)(const void* row, int64_t k, float* out);
    void (*columns)(const HalfRows& rows, int64_t begin, int64_t end);
};

namespace {

template <class R, DType type>
class HalfGemm {
    using L = Lanes<R>;
    using V = typename L::V;
    using F = typename L::F;
    static constexpr int kWidth = R::width, kTileM = 4, kTileN = R::tile_n, kStreamN = 6;

    static void widen(const void* row, int64_t k, float* out) {
        for (int64_t i = 0; i < half_row(k); i += L::block) {
            const F x = i + L::block <= k ? load(row, i, std::integral_constant<int, L::block>())
                                          : load(row, i, int(std::max<int64_t>(k - i, 0)));
            R::store_sum(out + i, x.a);
            R::store_sum(out + i + kWidth, x.b);
        }
    }
    template <class N>
    static F load(const void* row, int64_t i, N n) {
        return L::template load<type, type>(at<type>(row, i), n);
    }

    template <int M, int N>
    static void tile(const HalfRows& rows, int64_t row, int64_t column) {
        const Args& p = rows.args;
        V sum[M][N];
        for (auto& of_row : sum)
            for (V& v : of_row) v = R::zero();
        const float* a = rows.a + row * half_row(p.k);
        const uint8_t* b = rows.b + column * p.b.row_stride;
        const auto step = [&](int64_t i, auto count) {
            F w[N];
            for (int j = 0; j < N; ++j) w[j] = load(b + j * p.b.row_stride, i, count);
            for (int m = 0; m < M; ++m) {
                V first, second;
                R::load_sum(a + m * half_row(p.k) + i, first);
                R::load_sum(a + m * half_row(p.k) + i + kWidth, second);
                for (int j = 0; j < N; ++j)
                    sum[m][j] = R::multiply_add(R::multiply_add(sum[m][j], first, w[j].a), second, w[j].b);
            }
        };
        int64_t i = 0;
        for (; i + L::block <= p.k; i += L::block) step(i, std::integral_constant<int, L::block>());
        if (i < p.k) step(i, int(p.k - i));
        for (int m = 0; m < M; ++m)
            for (int j = 0; j < N; ++j) {
                alignas(64) float lanes[kWidth];
                R::store_sum(lanes, sum[m][j]);
                for (int half = kWidth / 2; half; half /= 2)
                    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
                float v = lanes[0];
                if (rows.bias.data) v += gemm::bias_at(rows.bias, column + j);
                put(p, rows.out, (row + m) * p.out.row_stride + column + j, v);
            }
    }
    static void put(const Args& p, void* out, int64_t i, float v) {
        if (p.out.dtype == DType::f32) {
            static_cast<float*>(out)[i] = v;
        } else if (p.out.dtype == DType::f16) {
            static_cast<uint16_t*>(out)[i] = float_to_half(v);
        } else {
            static_cast<uint16_t*>(out)[i] = float_to_bfloat16(v);
        }
    }

    template <int M>
    static void few_rows(const HalfRows& rows, int64_t row, int64_t begin, int64_t end) {
        constexpr int N = M == kTileM ? kTileN : M == 1 ? kStreamN : 3;
        int64_t n = begin;
        for (; n + N <= end; n += N) tile<M, N>(rows, row, n);
        for (; n < end; ++n) tile<M, 1>(rows, row, n);
    }

    static void columns(const HalfRows& rows, int64_t begin, int64_t end) {
        constexpr int64_t kStrip = 12;  // columns whose weights stay in a cache while all rows go by
        for (; begin < end; begin += kStrip) {
            const int64_t stop = std::min(begin + kStrip, end);
            int64_t row = 0;
            for (; row + kTileM <= rows.count; row += kTileM) few_rows<kTileM>(rows, row, begin, stop);
            switch (rows.count - row) {
                case 1: few_rows<1>(rows, row, begin, stop); break;
                case 2: few_rows<2>(rows, row, begin, stop); break;
                case 3: few_rows<3>(rows, row, begin, stop); break;
            }
        }
    }

  public:
    static HalfKernel kernel() { return {widen, columns}; }
};

template <class R>
HalfKernel pick_half(const Args& args) {
    return args.format == DType::f16 ? HalfGemm<R, DType::f16>::kernel() : HalfGemm<R, DType::bf16>::kernel();
}

}  // namespace

HalfKernel half_avx2(const Args& args);
HalfKernel half_avx512(const Args& args);

}  // namespace rocm_fp8::grouped_gemm
