// Skinny FP8 GEMM on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: n k of weights, read once. A (m k) is decoded once a call and stays in the caches. Floor at m = 1: n k at the
// memory's read rate. Two cores reach it only if they decode 64 weights in about 10 cycles. Above about 4 rows the
// multiplications are the limit: m n k / (products an instruction).
//
//     few rows (m <= 4)    tiles of m x R::stream_n(m); the weights are decoded in registers, used m times
//     more rows            K in slices: kColumns rows of B x kSlice are decoded into the nearest cache, then
//                          multiplied with all rows of A in tiles of kTileM x R::tile_n
//
// Decoded A is stored slice after slice, with the m rows of a slice next to each other. With rows K elements apart, all
// of them would map to the same few sets of the cache.
//
// Order of the sum, the same in both and for every m, tile and thread count: one accumulator adds the products of a
// step of R::step elements, step after step, lane by lane. Then the lanes are added in a tree. So a row's bits do not
// depend on the batch.
//
// Decoding, NaN codes and the tree: common/gemm/cpu/gemm.h.
//
// Files: kernel.h (this kernel), avx2.cpp, avx512.cpp, amx.cpp (another kernel), skinny_gemm.cpp (the launcher).
//
// Limit today, on two cores of a Zen 4: m = 1 reaches 0.62 to 0.97 of the read rate (AVX2: 0.44 to 0.92), by how busy
// the machine's memory is; more rows are bound by multiplications.
//
// Steps and figures: docs/journal/skinny_gemm-cpu.md.
#pragma once

#include <limits>

#include "../../common/gemm/cpu/gemm.h"
#include "../../common/gemm/epilogue.h"
#include "../skinny_gemm.h"

namespace rocm_fp8::skinny_gemm {

// What each instruction set's translation unit hands to the launcher.
struct Kernel {
    // Decodes the rows of A into `operands` (64-byte aligned, `operand_bytes`) and notes which hold NaN.
    void (*decode_rows)(const Args& args, char* operands, bool* has_nan);
    int64_t operand_bytes;
    // Computes columns [begin, end) of the result.
    void (*columns)(const Args& args, const char* operands, const bool* has_nan, int64_t begin, int64_t end);
    // The launcher cuts the columns into multiples of this.
    int64_t part_columns;
};

// Of all but AMX.
constexpr int kPartColumns = 12;

namespace {

template <class R, DType format>
class Gemm {
    using G = GemmLanes<R, format>;
    using L = typename G::L;
    using Sum = typename G::Sum;
    using Operand = typename G::Operand;
    static constexpr int kStep = G::kStep, kParts = G::kParts, kLanes = G::kLanes, kStepBytes = G::kStepBytes;
    static constexpr int kTileM = 4, kColumns = kPartColumns, kMaxStreamed = 4;
    static_assert(kColumns % R::tile_n == 0);
    // A decoded slice of a row is 512 bytes: the slices of 32 rows of A and 12 of B fit into 32 KiB.
    static constexpr int kSlice = 512 / kStepBytes * kStep;
    static constexpr int kSliceBytes = kSlice / kStep * kStepBytes;
    static constexpr int kPrefetch = 512;  // bytes ahead in a row of weights

    // Few rows are read step by step, so a step is their slice.
    static int64_t slice_of(int64_t m) { return m <= kMaxStreamed ? kStep : kSlice; }
    static int64_t slices(const Args& p) { return (p.k + slice_of(p.m) - 1) / slice_of(p.m); }

    static void decode_rows(const Args& p, char* operands, bool* has_nan) {
        const int64_t slice = slice_of(p.m), slice_bytes = slice / kStep * kStepBytes;
        for (int64_t m = 0; m < p.m; ++m) {
            typename R::NanMask nan;
            for (int64_t s = 0; s < slices(p); ++s) {
                const int64_t left = p.k - s * slice;
                G::template decode<true>(p.a.data + m * p.a.row_stride + s * slice, left < slice ? left : slice,
                                         operands + (s * p.m + m) * slice_bytes, nan);
            }
            has_nan[m] = R::any_nan(nan);
        }
    }

    // --- epilogue: lanes to one number, scales, bias, rounding ---

    // Scales and bias of at most L::block columns from n0.
    struct Columns {
        float scale[L::block], bias[L::block];
        Columns(const Args& p, int64_t n0, int count) {
            for (int j = 0; j < count; ++j) {
                const gemm::Column column(p.epilogue, n0 + j);
                scale[j] = column.scale;
                bias[j] = column.bias;
            }
        }
    };

    // Row m of the tile of `count` columns from n0. lanes: kLanes sums a column, of a multiple of 4 columns.
    template <DType out_type>
    static void finish(const Args& p, int64_t m, int64_t n0, int count, const Columns& c, bool nan_row, const bool* nan,
                       const float* lanes) {
        const float scale_a = gemm::scale_at(p.epilogue.scale_a, m);
        float values[L::block] = {};
        G::totals(lanes, (count + 3) / 4 * 4, values);
        for (int j = 0; j < count; ++j) {
            const float result = gemm::finished(p.epilogue, values[j], scale_a, c.scale[j], c.bias[j]);
            values[j] = nan_row || nan[j] ? std::numeric_limits<float>::quiet_NaN() : result;
        }
        G::template store_results<out_type>(at<out_type>(p.epilogue.out.data, m * p.epilogue.out.row_stride + n0),
                                            values, count);
    }

    // --- few rows: M rows of A times N rows of B, straight from the bytes ---

    template <int M, int N, DType out_type>
    static void stream_tile(const Args& p, const char* a, const bool* has_nan, int64_t n0) {
        Sum acc[M][N];
        typename R::NanMask any_nan;  // one mask for all columns: registers are scarce here, and NaN codes rare
        for (auto& row : acc)
            for (Sum& v : row) v = R::zero();
        const uint8_t* b = p.b.data + n0 * p.b.row_stride;

        auto step = [&](const uint8_t* bytes, int64_t stride) {
            for (int j = 0; j < N; ++j) {
                Operand w[kParts];
                R::template decode<format>(bytes + j * stride, w);
                R::template note_nan<format>(any_nan, bytes + j * stride);
                for (int i = 0; i < M; ++i)
                    for (int q = 0; q < kParts; ++q)
                        acc[i][j] = R::dot(acc[i][j], R::load_operand(a + i * kStepBytes + q * sizeof(Operand)), w[q]);
            }
            a += M * kStepBytes;
        };
        constexpr int kLine = kStep > 64 ? kStep : 64;  // one prefetch a cache line
        int64_t k = 0;
        for (; k + kLine <= p.k; k += kLine) {
            for (int j = 0; j < N; ++j) {
                __builtin_prefetch(b + j * p.b.row_stride + k + kPrefetch);
                // Prefetches the next tile into L2, early enough for page-table walks.
                __builtin_prefetch(b + (j + N) * p.b.row_stride + k, 0, 2);
            }
            for (int u = 0; u < kLine; u += kStep) step(b + k + u, p.b.row_stride);
        }
        for (; k + kStep <= p.k; k += kStep) step(b + k, p.b.row_stride);
        if (k < p.k) {
            uint8_t tails[N * kStep] = {};
            for (int j = 0; j < N; ++j) std::memcpy(tails + j * kStep, b + j * p.b.row_stride + k, p.k - k);
            step(tails, kStep);
        }
        bool nan[N] = {};
        if (R::any_nan(any_nan))
            for (int j = 0; j < N; ++j) nan[j] = G::holds_nan(b + j * p.b.row_stride, p.k);
        const Columns columns(p, n0, N);
        for (int i = 0; i < M; ++i) {
            constexpr int kFours = (N + 3) / 4 * 4;
            alignas(64) float lanes[kFours * kLanes];
            for (int j = 0; j < kFours; ++j) R::store_sum(lanes + j * kLanes, j < N ? acc[i][j] : R::zero());
            finish<out_type>(p, i, n0, N, columns, has_nan[i], nan, lanes);
        }
    }

    template <int M, DType out_type>
    static void stream_columns(const Args& p, const char* a, const bool* has_nan, int64_t begin, int64_t end) {
        constexpr int N = R::stream_n(M);
        for (; begin + N <= end; begin += N) stream_tile<M, N, out_type>(p, a, has_nan, begin);
        for (; begin < end; ++begin) stream_tile<M, 1, out_type>(p, a, has_nan, begin);
    }

    // --- more rows: through decoded slices ---

    // Scratch of one thread: a slice of decoded weights, and the accumulators of kColumns columns.
    struct Scratch {
        alignas(64) char slice[kColumns * kSliceBytes];
        alignas(64) float acc[kMaxRows * kColumns * kLanes];
    };

    template <int M, int N>
    static void slice_tile(const char* a, const char* b, int64_t bytes, float* acc) {
        Sum sum[M][N];
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) R::load_sum(acc + (i * kColumns + j) * kLanes, sum[i][j]);
        for (int64_t k = 0; k < bytes; k += sizeof(Operand)) {
            Operand w[N];
            for (int j = 0; j < N; ++j) w[j] = R::load_operand(b + j * kSliceBytes + k);
            for (int i = 0; i < M; ++i) {
                const Operand v = R::load_operand(a + i * kSliceBytes + k);
                for (int j = 0; j < N; ++j) sum[i][j] = R::dot(sum[i][j], v, w[j]);
            }
        }
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) R::store_sum(acc + (i * kColumns + j) * kLanes, sum[i][j]);
    }

    // M rows times kColumns columns. Columns beyond the last use stale data of the slice and are dropped in the
    // epilogue.
    template <int M>
    static void slice_rows(const char* a, int64_t bytes, Scratch& s, int64_t m) {
        for (int j = 0; j < kColumns; j += R::tile_n)
            slice_tile<M, R::tile_n>(a + m * kSliceBytes, s.slice + j * kSliceBytes, bytes,
                                     s.acc + (m * kColumns + j) * kLanes);
    }

    template <DType out_type>
    static void slice_columns(const Args& p, const char* a, const bool* has_nan, int64_t begin, int64_t end) {
        static thread_local Scratch s;
        for (int64_t n0 = begin; n0 < end; n0 += kColumns) {
            const int count = int(end - n0 < kColumns ? end - n0 : kColumns);
            typename R::NanMask nan[kColumns];
            std::memset(s.acc, 0, sizeof(float) * kColumns * kLanes * p.m);
            for (int64_t k = 0; k < p.k; k += kSlice) {
                const int64_t length = p.k - k < kSlice ? p.k - k : kSlice;
                const int64_t bytes = (length + kStep - 1) / kStep * kStepBytes;
                for (int j = 0; j < count; ++j)
                    G::template decode<false>(p.b.data + (n0 + j) * p.b.row_stride + k, length,
                                              s.slice + j * kSliceBytes, nan[j]);
                const char* rows = a + k / kSlice * p.m * kSliceBytes;
                int64_t m = 0;
                for (; m + kTileM <= p.m; m += kTileM) slice_rows<kTileM>(rows, bytes, s, m);
                for (; m < p.m; ++m) slice_rows<1>(rows, bytes, s, m);
            }
            const Columns columns(p, n0, count);
            bool has_code[kColumns];
            for (int j = 0; j < kColumns; ++j) has_code[j] = R::any_nan(nan[j]);
            for (int64_t m = 0; m < p.m; ++m)
                finish<out_type>(p, m, n0, count, columns, has_nan[m], has_code, s.acc + m * kColumns * kLanes);
        }
    }

    template <DType out_type>
    static auto pick_columns(int64_t m) {
        switch (m) {
            case 1: return stream_columns<1, out_type>;
            case 2: return stream_columns<2, out_type>;
            case 3: return stream_columns<3, out_type>;
            case 4: return stream_columns<4, out_type>;
            default: return slice_columns<out_type>;
        }
    }

  public:
    static Kernel pick(const Args& p) {
        return {decode_rows, slices(p) * p.m * (slice_of(p.m) / kStep * kStepBytes),
                p.epilogue.out.dtype == DType::f32   ? pick_columns<DType::f32>(p.m)
                : p.epilogue.out.dtype == DType::f16 ? pick_columns<DType::f16>(p.m)
                                                     : pick_columns<DType::bf16>(p.m),
                kPartColumns};
    }
};

template <class R>
Kernel pick_skinny_gemm(const Args& args) {
    return args.format == DType::e4m3fn ? Gemm<R, DType::e4m3fn>::pick(args) : Gemm<R, DType::e4m3fnuz>::pick(args);
}

}  // namespace

Kernel kernel_avx2(const Args& args);
Kernel kernel_avx512(const Args& args);
Kernel kernel_amx(const Args& args);

}  // namespace rocm_fp8::skinny_gemm
