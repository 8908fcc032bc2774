// Skinny FP8 GEMM on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: n k of weights, read once; A (m k) is decoded to float32 once a call and stays in the caches. At
// m = 1 the floor is the memory's read rate; the work is to decode 16 weights in about 3 cycles, so that two
// cores keep up with it. Above about 4 rows the multiplications are the limit: m n k / lanes FMAs.
//
//   few rows (m <= 4)    tiles of m x kColumns; the weights are decoded in registers, used m times
//   more rows            K in slices: kColumns rows of B x kSlice are decoded to float32 in the nearest
//                        cache, then multiplied with all rows of A in tiles of kTileM x kTileN
//
// Order of the sum, the same in both and for every m, tile and thread count: lane l of one accumulator adds
// the products of k = l, l + lanes, l + 2 lanes ... one after the other, then the lanes are added in a tree.
// That is what makes a row's bits independent of the batch.
//
// Decoding moves the byte's fields to where IEEE half has them; the half's value is the number times
// 1 / half_scale (2^-8 or 2^-7), which the epilogue undoes exactly. NaN codes would decode to a number, so
// they are noted on the side and put into the result at the end.
//
// Versions, 2304 x 16384, 2 cores with AVX2, against torch's float32 linear at m = 1 / 8 / 32
// (benchmarks/cpu_ratios.py):
//   1  as above
#pragma once

#include <limits>

#include "../common/cpu/rows.h"
#include "skinny_gemm.h"

namespace rocm_fp8 {

// A decoded to float32: rows k_padded (a multiple of 16, zeros above k) apart, and which of them hold NaN.
struct DecodedRows {
    const float* values;
    int64_t k_padded;
    const bool* has_nan;
};

// Computes columns [begin, end) of the result.
using ColumnsKernel = void (*)(const SkinnyGemmArgs& args, const DecodedRows& a, int64_t begin, int64_t end);

namespace {

constexpr int kStep = 16;  // bytes of K that one decoding takes

template <class S, DType format>
class SkinnyGemm {
    using G = typename S::G;
    static constexpr int L = S::gemm_lanes, kParts = kStep / L;
    // 16 registers with AVX2: 4 x 3 accumulators, 3 columns and the row.
    static constexpr int kTileM = 4, kTileN = 3;
    static constexpr int kColumns = 12, kSlice = 256;
    static constexpr int kPrefetch = 1024;  // bytes ahead in a row of weights

    static float sum(G v) {
        float lane[L];
        S::g_store(lane, v);
        for (int width = L / 2; width > 0; width /= 2)
            for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
        return lane[0];
    }

    template <DType out_type>
    static void finish(const SkinnyGemmArgs& p, const DecodedRows& a, int64_t m, int64_t n, G partial, bool nan) {
        float v = sum(partial) * Fp8Format<format>::half_scale;
        if (nan || a.has_nan[m]) v = std::numeric_limits<float>::quiet_NaN();
        v = v * p.scale_a[m * p.scale_a_stride] * p.scale_b[n * p.scale_b_stride];
        if (p.bias) v += scalar(p.bias_dtype, p.bias, n * p.bias_stride);
        alignas(64) float block[kLanes] = {v};
        store<S, out_type>(at<out_type>(p.out, m * p.out_stride + n), S::load_f32(block), 1);
    }

    static float scalar(DType type, const void* p, int64_t i) {
        float block[kLanes];
        S::store_f32(block, type == DType::f32   ? load<S, DType::f32>(at<DType::f32>(p, i), 1)
                            : type == DType::f16 ? load<S, DType::f16>(at<DType::f16>(p, i), 1)
                                                 : load<S, DType::bf16>(at<DType::bf16>(p, i), 1));
        return block[0];
    }

    // M rows of A times N rows of B, straight from the bytes.
    template <int M, int N, DType out_type>
    static void stream_tile(const SkinnyGemmArgs& p, const DecodedRows& a, int64_t n0) {
        G acc[M][N];
        typename S::NanMask nan[N];
        for (auto& row : acc)
            for (G& v : row) v = S::g_zero();
        const uint8_t* b = p.b + n0 * p.b_stride;

        auto step = [&](int64_t k, auto bytes_of) {
            for (int j = 0; j < N; ++j) {
                const uint8_t* bytes = bytes_of(j);
                G w[kParts];
                S::g_decode(bytes, w);
                S::template note_nan<format>(nan[j], bytes);
                for (int i = 0; i < M; ++i)
                    for (int q = 0; q < kParts; ++q)
                        acc[i][j] = S::g_fma(S::g_load(a.values + i * a.k_padded + k + q * L), w[q], acc[i][j]);
            }
        };
        int64_t k = 0;
        for (; k + 4 * kStep <= p.k; k += 4 * kStep) {
            for (int j = 0; j < N; ++j)
                __builtin_prefetch(b + j * p.b_stride + k + kPrefetch);
            for (int u = 0; u < 4; ++u)
                step(k + u * kStep, [&](int j) { return b + j * p.b_stride + k + u * kStep; });
        }
        for (; k + kStep <= p.k; k += kStep) step(k, [&](int j) { return b + j * p.b_stride + k; });
        if (k < p.k) {
            uint8_t tails[N][kStep] = {};
            for (int j = 0; j < N; ++j) std::memcpy(tails[j], b + j * p.b_stride + k, p.k - k);
            step(k, [&](int j) -> const uint8_t* { return tails[j]; });
        }
        for (int j = 0; j < N; ++j)
            for (int i = 0; i < M; ++i) finish<out_type>(p, a, i, n0 + j, acc[i][j], S::any_nan(nan[j]));
    }

    template <int M, int N, DType out_type>
    static void stream_columns(const SkinnyGemmArgs& p, const DecodedRows& a, int64_t begin, int64_t end) {
        for (; begin + N <= end; begin += N) stream_tile<M, N, out_type>(p, a, begin);
        for (; begin < end; ++begin) stream_tile<M, 1, out_type>(p, a, begin);
    }

    // --- more rows: through decoded slices ---

    // Scratch of one thread: a slice of decoded weights, and the accumulators of kColumns columns.
    struct Scratch {
        alignas(64) float slice[kColumns * kSlice];
        alignas(64) float acc[kSkinnyGemmMaxRows * kColumns * L];
    };

    template <int M, int N>
    static void slice_tile(const float* a, int64_t a_stride, const float* b, int64_t length, float* acc) {
        G sum[M][N];
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) sum[i][j] = S::g_load(acc + (i * kColumns + j) * L);
        for (int64_t k = 0; k < length; k += L) {
            G w[N];
            for (int j = 0; j < N; ++j) w[j] = S::g_load(b + j * kSlice + k);
            for (int i = 0; i < M; ++i) {
                const G v = S::g_load(a + i * a_stride + k);
                for (int j = 0; j < N; ++j) sum[i][j] = S::g_fma(v, w[j], sum[i][j]);
            }
        }
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) S::g_store(acc + (i * kColumns + j) * L, sum[i][j]);
    }

    // One K slice of M rows times kColumns columns (those beyond the last hold whatever the slice held
    // before and are dropped at the end).
    template <int M>
    static void slice_rows(const DecodedRows& a, int64_t m, int64_t k, int64_t length, Scratch& s) {
        for (int j = 0; j < kColumns; j += kTileN)
            slice_tile<M, kTileN>(a.values + m * a.k_padded + k, a.k_padded, s.slice + j * kSlice, length,
                                  s.acc + (m * kColumns + j) * L);
    }

    template <DType out_type>
    static void slice_columns(const SkinnyGemmArgs& p, const DecodedRows& a, int64_t begin, int64_t end) {
        static thread_local Scratch s;
        for (int64_t n0 = begin; n0 < end; n0 += kColumns) {
            const int columns = int(end - n0 < kColumns ? end - n0 : kColumns);
            typename S::NanMask nan[kColumns];
            std::memset(s.acc, 0, sizeof(float) * kColumns * L * p.m);
            for (int64_t k0 = 0; k0 < p.k; k0 += kSlice) {
                const int64_t length = p.k - k0 < kSlice ? p.k - k0 : kSlice;
                const int64_t padded = (length + kStep - 1) / kStep * kStep;
                for (int j = 0; j < columns; ++j) {
                    const uint8_t* row = p.b + (n0 + j) * p.b_stride + k0;
                    for (int64_t k = 0; k < padded; k += kStep) {
                        uint8_t tail[kStep] = {};
                        const bool whole = k + kStep <= length;
                        if (!whole) std::memcpy(tail, row + k, length - k);
                        decode(whole ? row + k : tail, s.slice + j * kSlice + k, nan[j]);
                    }
                }
                int64_t m = 0;
                for (; m + kTileM <= p.m; m += kTileM) slice_rows<kTileM>(a, m, k0, padded, s);
                for (; m < p.m; ++m) slice_rows<1>(a, m, k0, padded, s);
            }
            for (int j = 0; j < columns; ++j)
                for (int64_t m = 0; m < p.m; ++m)
                    finish<out_type>(p, a, m, n0 + j, S::g_load(s.acc + (m * kColumns + j) * L), S::any_nan(nan[j]));
        }
    }

    static void decode(const uint8_t* bytes, float* out, typename S::NanMask& nan) {
        G w[kParts];
        S::g_decode(bytes, w);
        S::template note_nan<format>(nan, bytes);
        for (int q = 0; q < kParts; ++q) S::g_store(out + q * L, w[q]);
    }

  public:
    template <DType out_type>
    static ColumnsKernel pick(int64_t m) {
        switch (m) {
            case 1: return stream_columns<1, 4, out_type>;
            case 2: return stream_columns<2, 4, out_type>;
            case 3: return stream_columns<3, 3, out_type>;
            case 4: return stream_columns<4, 3, out_type>;
            default: return slice_columns<out_type>;
        }
    }
};

template <class S, DType format>
ColumnsKernel pick_by_out(const SkinnyGemmArgs& args) {
    if (args.out_dtype == DType::f32) return SkinnyGemm<S, format>::template pick<DType::f32>(args.m);
    if (args.out_dtype == DType::f16) return SkinnyGemm<S, format>::template pick<DType::f16>(args.m);
    return SkinnyGemm<S, format>::template pick<DType::bf16>(args.m);
}

template <class S>
ColumnsKernel pick_skinny_gemm(const SkinnyGemmArgs& args) {
    return args.format == DType::e4m3fn ? pick_by_out<S, DType::e4m3fn>(args) : pick_by_out<S, DType::e4m3fnuz>(args);
}

}  // namespace

ColumnsKernel skinny_gemm_portable(const SkinnyGemmArgs& args);
ColumnsKernel skinny_gemm_avx2(const SkinnyGemmArgs& args);
ColumnsKernel skinny_gemm_avx512(const SkinnyGemmArgs& args);

}  // namespace rocm_fp8
