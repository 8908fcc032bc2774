// MX weights on the CPU, over any of common/cpu/simd_*.h. With AMX: amx.cpp, but for float16 rows.
//
// Bytes: (k / 2 or k) + k / 32 a column, read once for each kMostRows rows. Floor: those bytes at memory's rate.
//
//     rows of A  --> float32, once, in the order in which decoding gives weights, zeros behind them to a whole unit
//     up to kFewRows rows: a unit's codes --> float32 in registers --> products of its blocks --> times their scales, added
//     more rows:           kStrip columns are decoded to memory first, for all rows
//
// A unit is what is decoded at a time: a block or, where lanes of a register have different blocks, two.
// Order of a sum, the same for every number of rows: a lane adds the products of its block, and its blocks one after the
// other; then the lanes are added in a tree.
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
    const float* a;        // [count][units of k], widened, in the order of the registers
    const float* blocks;   // [count][blocks of the units]: A's scales of blocks, or nullptr
    const float* factors;  // [count]: A's scales of rows, or nullptr
    int64_t count;
    const uint8_t* b;      // the group's matrix
    gemm::Scales scale_b;  // its own
    gemm::Bias bias;
    void* out;  // its first row
    const Args& args;
};

constexpr int kMostRows = 32, kFewRows = 4, kStrip = 12,
              kAhead = 2048;  // kAhead: bytes that prefetching is ahead, at least

struct Kernel {
    int unit;  // numbers, a multiple of kMxBlock
    int64_t units(int64_t k) const { return (k + unit - 1) / unit; }
    // Row `row` of A to `to`.
    void (*widen)(const Args& args, const uint8_t* row, float* to);
    void (*columns)(const Rows& rows, int64_t begin, int64_t end);
};

namespace {

template <DType format>
inline float value_of(const uint8_t* row, int64_t i) {
    if constexpr (format == DType::e2m1) return e2m1_value(row[i / 2] >> i % 2 * 4 & 15);
    else if constexpr (is_fp8(format)) return fp8_decode<format>(row[i]);
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, 2);
    return format == DType::f16 ? half_to_float(bits) : bits_float(uint32_t(bits) << 16);
}

// e8m0_value in steps that a compiler makes vectors of without choices.
inline float power_of(uint32_t byte) {
    constexpr uint32_t kTop = 0x00400000u;  // of the mantissa: 2^-127 alone, NaN beside the largest exponent
    return bits_float(std::max(byte << 23, kTop) | (byte == 255 ? kTop : 0));
}

template <class R, DType format>
class MxGemm {
    using V = typename R::V;
    static constexpr bool kFour = format == DType::e2m1;
    static constexpr int kWidth = R::width, kBlocks = kFour ? R::e2m1_blocks : 1, kUnit = kBlocks * kMxBlock,
                         kUnitBytes = kFour ? kUnit / 2 : kUnit, kVectors = kUnit / kWidth;
    // Registers: sums and a unit's products of M x N tiles, N weights and a number of A.
    static constexpr bool kWide = kWidth == 16;
    static constexpr int kTileM = kWide ? 4 : 2, kTileN = kWide ? 3 : 2, kStreamN = kWide ? 6 : 2;

    static int64_t units(const Args& args) { return kernel().units(args.k); }

    template <DType of_row>
    static void widen_as(int64_t k, const uint8_t* row, float* to) {
        int64_t first = 0;
        const auto put = [&](int i) {
            if constexpr (kFour) to[first + R::e2m1_place(i)] = value_of<of_row>(row, first + i);
            else to[first + i] = value_of<of_row>(row, first + i);
        };
        for (; first + kUnit <= k; first += kUnit)
            for (int i = 0; i < kUnit; ++i) put(i);
        if (first == k) return;
        std::fill_n(to + first, kUnit, 0.0f);
        for (int i = 0; i < k - first; ++i) put(i);
    }
    static void widen(const Args& args, const uint8_t* row, float* to) {
        switch (args.format_a) {
            case DType::bf16: return widen_as<DType::bf16>(args.k, row, to);
            case DType::f16: return widen_as<DType::f16>(args.k, row, to);
            case DType::e4m3fn: return widen_as<DType::e4m3fn>(args.k, row, to);
            case DType::e4m3fnuz: return widen_as<DType::e4m3fnuz>(args.k, row, to);
            default: return widen_as<DType::e2m1>(args.k, row, to);
        }
    }

    // Columns' weights, unit by unit.
    struct Coded {
        const uint8_t* first;
        int64_t stride, ahead;  // ahead: columns
        [[gnu::always_inline]] void load(int column, int64_t unit, V (&w)[kVectors]) const {
            decode(first + column * stride + unit * kUnitBytes, w);
        }
        // Nothing behind a column is read.
        [[gnu::always_inline]] void load_rest(int column, int64_t unit, V (&w)[kVectors]) const {
            uint8_t codes[kUnitBytes] = {};
            std::memcpy(codes, first + column * stride + unit * kUnitBytes, kUnitBytes / kBlocks);
            decode(codes, w);
        }
        [[gnu::always_inline]] static void decode(const uint8_t* p, V (&w)[kVectors]) {
            if constexpr (kFour) {
                R::decode_e2m1(p, w);
            } else {
                for (int v = 0; v < kVectors; ++v) w[v] = R::template decode_fp8<format>(p + v * kWidth);
            }
        }
        // The same place of a column that comes next, or so much later that its bytes and page tables are there in time.
        [[gnu::always_inline]] void prefetch(int column, int columns, int64_t unit) const {
            if (unit % (64 / kUnitBytes) == 0)
                __builtin_prefetch(first + (column + std::max<int64_t>(columns, ahead)) * stride + unit * kUnitBytes);
        }
    };
    struct Decoded {
        const float* first;
        int64_t stride;
        [[gnu::always_inline]] void load(int column, int64_t unit, V (&w)[kVectors]) const {
            for (int v = 0; v < kVectors; ++v) R::load_sum(first + column * stride + unit * kUnit + v * kWidth, w[v]);
        }
        [[gnu::always_inline]] void load_rest(int column, int64_t unit, V (&w)[kVectors]) const {
            load(column, unit, w);
        }
        void prefetch(int, int, int64_t) const {}
    };

    static V scale_of(const float* blocks) {
        if constexpr (kBlocks > 1) return R::of_blocks(blocks);
        else return R::set1(*blocks);
    }

    // scales: [columns][blocks of units], of the tile's columns.
    template <int M, int N, bool scaled, class Weights>
    static void tile(const Rows& rows, const Weights& weights, const float* scales, int64_t row, int64_t column) {
        const Args& p = rows.args;
        const int64_t count = units(p), whole = p.k / kUnit, k = count * kUnit, blocks = count * kBlocks;
        const float *a = rows.a + row * k, *of_a = scaled ? rows.blocks + row * blocks : nullptr;
        V sum[M][N];
        for (auto& of_row : sum)
            for (V& v : of_row) v = R::zero();
        const auto add = [&](int64_t unit, const auto& load) __attribute__((always_inline)) {
            V w[N][kVectors], part[M][N];
            for (int j = 0; j < N; ++j) load(j, w[j]);
            for (int v = 0; v < kVectors; ++v) {
                for (int m = 0; m < M; ++m) {
                    V x;
                    R::load_sum(a + m * k + unit * kUnit + v * kWidth, x);
                    for (int j = 0; j < N; ++j)
                        part[m][j] = v == 0 ? R::mul(x, w[j][v]) : R::multiply_add(part[m][j], x, w[j][v]);
                }
            }
            for (int j = 0; j < N; ++j) {
                const V of_b = scale_of(scales + j * blocks + unit * kBlocks);
                for (int m = 0; m < M; ++m) {
                    V scale = of_b;
                    if constexpr (scaled) scale = R::mul(scale_of(of_a + m * blocks + unit * kBlocks), of_b);
                    sum[m][j] = R::multiply_add(sum[m][j], scale, part[m][j]);
                }
            }
        };
#pragma GCC unroll 2
        for (int64_t unit = 0; unit < whole; ++unit) {
            for (int j = 0; j < N; ++j) weights.prefetch(j, N, unit);
            add(unit, [&](int j, V(&w)[kVectors]) __attribute__((always_inline)) { weights.load(j, unit, w); });
        }
        if (whole < count)
            add(whole, [&](int j, V(&w)[kVectors]) __attribute__((always_inline)) { weights.load_rest(j, whole, w); });
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

    template <int M, int N, class Weights>
    static void tiles(const Rows& rows, const Weights& weights, const float* scales, int64_t row, int64_t column) {
        if (rows.blocks) tile<M, N, true>(rows, weights, scales, row, column);
        else tile<M, N, false>(rows, weights, scales, row, column);
    }

    template <int M, int N, class WeightsAt>
    static void across(const Rows& rows, const WeightsAt& at, const float* scales, int64_t row, int64_t begin,
                       int64_t end) {
        const int64_t blocks = units(rows.args) * kBlocks;
        int64_t n = begin;
        for (; n + N <= end; n += N) tiles<M, N>(rows, at(n), scales + (n - begin) * blocks, row, n);
        for (; n < end; ++n) tiles<M, 1>(rows, at(n), scales + (n - begin) * blocks, row, n);
    }

    // Of columns [begin, end), `some` each, to [columns][blocks].
    static void widen_scales(const gemm::Scales& from, int64_t begin, int64_t end, int64_t some, int64_t blocks,
                             float* to) {
        const uint8_t* p = static_cast<const uint8_t*>(from.data) + begin * from.row_stride;
        // Those of the next columns, as many: they are read all at once, too late for the processor to run ahead.
        for (int64_t n = 0; from.block_stride == 1 && n < end - begin; ++n)
            for (int64_t at = 0; at < some; at += 64) prefetch(p + (end - begin + n) * from.row_stride + at);
        // One long loop: the ends of a column's cost as much as its vectors.
        if (from.block_stride == 1 && from.row_stride == blocks && some == blocks) {
            for (int64_t j = 0; j < (end - begin) * blocks; ++j) to[j] = power_of(p[j]);
            return;
        }
        for (; begin < end; ++begin, p += from.row_stride, to += blocks) {
            for (int64_t j = 0; j < some; ++j) to[j] = power_of(p[j * from.block_stride]);
            std::fill(to + some, to + blocks, 1.0f);
        }
    }

    static void columns(const Rows& rows, int64_t begin, int64_t end) {
        static thread_local KeptMemory kept_scales, kept_weights;
        const Args& p = rows.args;
        const int64_t count = units(p), k = count * kUnit, blocks = count * kBlocks;
        auto* scales = reinterpret_cast<float*>(kept_scales.at_least(kStrip * blocks * sizeof(float)));
        const int64_t ahead = kAhead / std::max<int64_t>(1, p.b.row_stride) + 1;
        const bool few = rows.count <= kFewRows;
        auto* weights = few ? nullptr : reinterpret_cast<float*>(kept_weights.at_least(kStrip * k * sizeof(float)));
        for (; begin < end; begin += kStrip) {
            const int64_t stop = std::min<int64_t>(begin + kStrip, end);
            widen_scales(rows.scale_b, begin, stop, p.k / kMxBlock, blocks, scales);
            const auto coded = [&](int64_t n) { return Coded{rows.b + n * p.b.row_stride, p.b.row_stride, ahead}; };
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
                for (int64_t unit = 0; unit < count; ++unit) {
                    V w[kVectors];
                    if ((unit + 1) * kUnit <= p.k) coded(n).load(0, unit, w);
                    else coded(n).load_rest(0, unit, w);
                    for (int v = 0; v < kVectors; ++v)
                        R::store_sum(weights + (n - begin) * k + unit * kUnit + v * kWidth, w[v]);
                }
            }
            const auto decoded = [&](int64_t n) { return Decoded{weights + (n - begin) * k, k}; };
            int64_t row = 0;
            for (; row + kTileM <= rows.count; row += kTileM)
                across<kTileM, kTileN>(rows, decoded, scales, row, begin, stop);
            for (; row < rows.count; ++row) across<1, kTileN>(rows, decoded, scales, row, begin, stop);
        }
    }

  public:
    static Kernel kernel() { return {kUnit, widen, columns}; }
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
