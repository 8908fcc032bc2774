// Block-scaled FP8 GEMM on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: n k of weights, read once for each kMaxChunk rows. Floor at m = 1: n k at the memory's read rate. Above about 4
// rows the multiplications are the limit: m n k / (products an instruction).
//
//     A                  in chunks of rows. A chunk is decoded once, by all threads, with its scales as floats
//     few rows (m <= 4)  tiles of m x R::stream_n(m); the weights are decoded in registers, used m times
//     more rows          a block of kColumns rows of B is decoded into the nearest cache, then multiplied with all rows
//                        of the chunk in tiles of kTileM x R::tile_n
//     column-major       B in strips of kStrip columns, A of 16 rows: transposed, then as above
//
// Decoded A is stored block after block, with the rows of a block next to each other. With rows K elements apart, all of
// them would map to the same few sets of the cache.
//
// Order of the sum, the same in all of them, for every m, tile and thread count. Within a block of 128 k an accumulator
// adds the products of a step of R::step elements, step after step, lane by lane. Each lane is then multiplied by
// scale_a * scale_b and added to the lane's sum over blocks. Last, the lanes are added in a tree. So a row's bits do not
// depend on the batch.
//
// Files: kernel.h (this kernel), scales.h, transpose.h, avx2.cpp, avx512.cpp, amx.cpp (another kernel),
// block_scaled_gemm.cpp (the launcher).
//
// Steps and figures: docs/journal/block_scaled_gemm-cpu.md.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "../../common/cpu/kept_memory.h"
#include "../../common/gemm/cpu/gemm.h"
#include "../../common/gemm/scales.h"
#include "../block_scaled_gemm.h"
#include "scales.h"
#include "transpose.h"

namespace rocm_fp8::block_scaled_gemm {

// Rows [first, first + count) of A, decoded.
struct Chunk {
    int64_t first, count;
    char* operands;  // 64-byte aligned, Kernel::operand_bytes(k) a row
    float* scales;   // [count, blocks_of(k)]; of tiles [blocks][count]
    bool* has_nan;   // [count]
};

// What each instruction set's translation unit hands to the launcher.
struct Kernel {
    // Of one decoded row.
    int64_t (*operand_bytes)(int64_t k);
    // Decodes rows [begin, end) of the chunk, counted from its first.
    void (*decode_rows)(const Args& args, const Chunk& a, int64_t begin, int64_t end);
    // Computes columns [begin, end) of the chunk's rows of the result.
    void (*columns)(const Args& args, const Chunk& a, int64_t begin, int64_t end);
    // The launcher cuts at multiples of these: rows to decode, columns, columns of a column-major B.
    int64_t rows_at_once, columns_at_once, strip;
};

// Columns at once of all but AMX.
constexpr int kColumns = 12, kStrip = 48;
// The most rows of a chunk: their sums in lanes stay in the second cache.
constexpr int kMaxChunk = 256;

namespace {

template <class R, DType format, DType out_type>
class BlockScaledGemm {
    using G = GemmLanes<R, format>;
    using L = typename G::L;
    using Sum = typename G::Sum;
    using Operand = typename G::Operand;
    using NanMask = typename G::NanMask;
    static constexpr int kStep = G::kStep, kParts = G::kParts, kLanes = G::kLanes, kStepBytes = G::kStepBytes;
    static constexpr int kTileM = 4, kMaxStreamed = 4;
    static constexpr int64_t kBlockBytes = G::bytes_of(kBlock);
    static constexpr int kPrefetch = 512;  // bytes ahead in a row of weights
    // Of so few rows a block ends when the processor's own prefetching of A has just begun.
    static constexpr int kShortChunk = 64;
    static_assert(kBlock % kStep == 0 && kColumns % R::tile_n == 0 && kColumns % 4 == 0 && kColumns <= L::block);

    // --- A ---

    static int64_t operand_bytes(int64_t k) { return blocks_of(k) * kBlockBytes; }

    static void decode_rows(const Args& p, const Chunk& a, int64_t begin, int64_t end) {
        constexpr int64_t kRows = 16;
        for (; begin < end; begin += kRows) {
            const int64_t count = std::min(kRows, end - begin), first = a.first + begin;
            const Codes codes = rows_of(p.a, first, count, p.k);
            for (int64_t i = 0; i < count; ++i) {
                const int64_t row = begin + i;
                NanMask nan;
                for (int64_t k = 0; k < p.k; k += kBlock)
                    G::template decode<true>(codes.data + i * codes.stride + k, std::min<int64_t>(kBlock, p.k - k),
                                             a.operands + (k / kBlock * a.count + row) * kBlockBytes, nan);
                a.has_nan[row] = R::any_nan(nan);
                fill_scales(p.scale_a, a.first + row, blocks_of(p.k), a.scales + row * blocks_of(p.k));
            }
        }
    }

    static const char* operands_of(const Chunk& a, int64_t block, int64_t row) {
        return a.operands + (block * a.count + row) * kBlockBytes;
    }

    // --- sums ---

    // What the epilogue needs of at most kColumns columns from n0.
    struct Columns {
        int64_t n0;
        int count;
        bool any_nan = false;  // codes
        bool nan[kColumns] = {};
        float bias[kColumns] = {};
        Columns(const Args& p, int64_t n0, int count) : n0(n0), count(count) {
            for (int j = 0; p.bias.data && j < count; ++j) bias[j] = gemm::bias_at(p.bias, n0 + j);
        }
        void note_nan(int column, bool seen) {
            nan[column] = seen;
            any_nan |= seen;
        }
    };

    // Stores the columns of `count` rows from the chunk's `first`. lanes: [count][kColumns][kLanes] sums; those of
    // columns beyond the last may be anything.
    static void finish(const Args& p, const Chunk& a, int64_t first, int64_t count, const Columns& columns,
                       const float* lanes) {
        // Two loops: a load that waits for the totals' narrower stores would take longer than the work.
        constexpr int kRows = 16;
        const int fours = (columns.count + 3) / 4 * 4;
        alignas(64) float values[kRows][L::block] = {};
        for (; count > 0; first += kRows, count -= kRows, lanes += kRows * kColumns * kLanes) {
            const int rows = int(std::min<int64_t>(count, kRows));
            for (int i = 0; i < rows; ++i) G::totals(lanes + i * kColumns * kLanes, fours, values[i]);
            for (int i = 0; i < rows; ++i) {
                const int64_t row = first + i;
                if (p.bias.data)  // without one, -0 stays -0
                    for (int j = 0; j < kColumns; ++j) values[i][j] += columns.bias[j];
                if (a.has_nan[row] || columns.any_nan)
                    for (int j = 0; j < kColumns; ++j)
                        if (a.has_nan[row] || columns.nan[j]) values[i][j] = std::numeric_limits<float>::quiet_NaN();
                void* to = at<out_type>(p.out.data, (a.first + row) * p.out.row_stride + columns.n0);
                if (columns.count == kColumns) G::template store_results<out_type>(to, values[i], kColumns);
                else G::template store_results<out_type>(to, values[i], columns.count);
            }
        }
    }

    // --- few rows: M rows of A times N rows of B, straight from the bytes ---

    // columns, lanes: of kColumns columns, of which these are those from `first` on.
    template <int M, int N>
    static void stream_tile(const Args& p, const Chunk& a, Codes b, const float* const* scale_b, int first,
                            Columns& columns, float (*lanes)[kColumns][kLanes]) {
        const int64_t blocks = blocks_of(p.k);
        Sum sum[M][N];
        NanMask any_nan;  // one mask for all columns: registers are scarce here, and NaN codes rare
        for (auto& row : sum)
            for (Sum& v : row) v = R::zero();

        for (int64_t block = 0; block < blocks; ++block) {
            const char* rows = operands_of(a, block, 0);
            const int64_t k0 = block * kBlock, length = std::min<int64_t>(kBlock, p.k - k0);
            const uint8_t* codes = b.data + k0;
            Sum part[M][N];
            for (auto& row : part)
                for (Sum& v : row) v = R::zero();
            auto step = [&](const uint8_t* bytes, int64_t stride) {
                for (int j = 0; j < N; ++j) {
                    Operand w[kParts];
                    R::template decode<format>(bytes + j * stride, w);
                    R::template note_nan<format>(any_nan, bytes + j * stride);
                    for (int i = 0; i < M; ++i)
                        for (int q = 0; q < kParts; ++q)
                            part[i][j] =
                                R::dot(part[i][j], R::load_operand(rows + i * kBlockBytes + q * sizeof(Operand)), w[q]);
                }
                rows += kStepBytes;
            };
            if (length == kBlock) {
                constexpr int kLine = kStep > 64 ? kStep : 64;  // one prefetch a cache line
                for (int k = 0; k < kBlock; k += kLine) {
                    for (int j = 0; j < N; ++j) {
                        __builtin_prefetch(codes + j * b.stride + k + kPrefetch);
                        // Prefetches the next tile into L2, early enough for page-table walks.
                        __builtin_prefetch(codes + (j + N) * b.stride + k, 0, 2);
                    }
                    for (int u = 0; u < kLine; u += kStep) step(codes + k + u, b.stride);
                }
            } else {
                int64_t k = 0;
                for (; k + kStep <= length; k += kStep) step(codes + k, b.stride);
                if (k < length) {
                    uint8_t tails[N * kStep] = {};
                    for (int j = 0; j < N; ++j) std::memcpy(tails + j * kStep, codes + j * b.stride + k, length - k);
                    step(tails, kStep);
                }
            }
            for (int i = 0; i < M; ++i)
                for (int j = 0; j < N; ++j)
                    sum[i][j] = R::multiply_add(sum[i][j], R::set1(a.scales[i * blocks + block] * scale_b[j][block]),
                                                part[i][j]);
        }

        if (R::any_nan(any_nan))
            for (int j = 0; j < N; ++j) columns.note_nan(first + j, G::holds_nan(b.data + j * b.stride, p.k));
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) R::store_sum(lanes[i][first + j], sum[i][j]);
    }

    template <int M>
    static void stream_columns(const Args& p, const Chunk& a, Codes b, const float* const* scale_b, int64_t n0,
                               int count) {
        constexpr int N = R::stream_n(M);
        Columns columns(p, n0, count);
        alignas(64) float lanes[M][kColumns][kLanes];
        auto tile = [&](auto width, int j) {
            stream_tile<M, width>(p, a, {b.data + j * b.stride, b.stride}, scale_b + j, j, columns, lanes);
        };
        int j = 0;
        for (; j + N <= count; j += N) tile(std::integral_constant<int, N>(), j);
        for (; j < count; ++j) tile(std::integral_constant<int, 1>(), j);
        for (; j % 4; ++j)
            for (auto& row : lanes) R::store_sum(row[j], R::zero());
        finish(p, a, 0, M, columns, lanes[0][0]);
    }

    // --- more rows: through decoded blocks ---

    // A block of M rows of A times N of B: kBlockBytes apart, `bytes` long. scales: [M][kColumns], lanes: [M][kColumns].
    // first: the lanes hold nothing yet.
    template <int M, int N, class Bytes>
    static void block_tile(const char* a, const char* b, Bytes bytes, const float* scales, float* lanes, bool first) {
        Sum part[M][N];
        for (auto& row : part)
            for (Sum& v : row) v = R::zero();
        auto step = [&](int64_t k) {
            Operand w[N];
            for (int j = 0; j < N; ++j) w[j] = R::load_operand(b + j * kBlockBytes + k);
            for (int i = 0; i < M; ++i) {
                const Operand v = R::load_operand(a + i * kBlockBytes + k);
                for (int j = 0; j < N; ++j) part[i][j] = R::dot(part[i][j], v, w[j]);
            }
        };
        if constexpr (std::is_same_v<Bytes, int64_t>) {
            for (int64_t k = 0; k < bytes; k += sizeof(Operand)) step(k);
        } else {
            // Without a loop: the last jump of one of 16 steps is mispredicted in every block.
            [&]<int... i>(std::integer_sequence<int, i...>) {
                (step(i * sizeof(Operand)), ...);
            }(std::make_integer_sequence<int, Bytes::value / sizeof(Operand)>());
        }
        auto add = [&](auto before) {
            for (int i = 0; i < M; ++i)
                for (int j = 0; j < N; ++j) {
                    float* lane = lanes + (i * kColumns + j) * kLanes;
                    R::store_sum(lane, R::multiply_add(before(lane), R::set1(scales[i * kColumns + j]), part[i][j]));
                }
        };
        if (first) {
            add([](const float*) { return R::zero(); });
        } else {
            add([](const float* lane) {
                Sum sum;
                R::load_sum(lane, sum);
                return sum;
            });
        }
    }

    // The i-th of n parts of a block of kTileM rows of A: in all tiles of the rows two before it.
    static void prefetch_part(const char* rows, int i, int n) {
        const int64_t part = kTileM * kBlockBytes / n;
        for (int64_t byte = i * part; byte < (i + 1) * part; byte += 64) __builtin_prefetch(rows + byte);
    }

    // A block of M rows of the chunk, from `row`, times kColumns columns b. Columns beyond the last use stale codes and
    // are dropped in the epilogue.
    template <int M>
    static void block_rows(const Args& p, const Chunk& a, const char* b, const float* scale_b, int64_t block,
                           int64_t row, float* lanes) {
        constexpr int N = M == kTileM ? R::tile_n : R::stream_n(M);
        const char* rows = operands_of(a, block, row);
        float scales[M][kColumns];
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < kColumns; ++j) scales[i][j] = a.scales[(row + i) * blocks_of(p.k) + block] * scale_b[j];
        const int64_t length = p.k - block * kBlock;
        for (int j = 0; j < kColumns; j += N) {
            if (M == kTileM && a.count <= kShortChunk)
                prefetch_part(rows + 2 * kTileM * kBlockBytes, j / N, kColumns / N);
            const char* columns = b + j * kBlockBytes;
            float* sums = lanes + (row * kColumns + j) * kLanes;
            if (length >= kBlock) {
                constexpr std::integral_constant<int64_t, kBlockBytes> bytes;
                block_tile<M, N>(rows, columns, bytes, &scales[0][j], sums, block == 0);
            } else {
                block_tile<M, N>(rows, columns, G::bytes_of(length), &scales[0][j], sums, block == 0);
            }
        }
    }

    static void decoded_columns(const Args& p, const Chunk& a, Codes b, const float* const* scale_b, int64_t n0,
                                int count) {
        alignas(64) static thread_local char decoded[kColumns * kBlockBytes];
        static thread_local KeptMemory memory;
        auto* lanes = reinterpret_cast<float*>(memory.at_least(a.count * kColumns * sizeof(Sum)));
        NanMask nan[kColumns];
        float scales[kColumns] = {};
        for (int64_t block = 0; block < blocks_of(p.k); ++block) {
            const int64_t k = block * kBlock;
            for (int j = 0; j < count; ++j) {
                G::template decode<false>(b.data + j * b.stride + k, std::min<int64_t>(kBlock, p.k - k),
                                          decoded + j * kBlockBytes, nan[j]);
                scales[j] = scale_b[j][block];
            }
            int64_t row = 0;
            for (; row + kTileM <= a.count; row += kTileM) block_rows<kTileM>(p, a, decoded, scales, block, row, lanes);
            switch (a.count - row) {
                case 1: block_rows<1>(p, a, decoded, scales, block, row, lanes); break;
                case 2: block_rows<2>(p, a, decoded, scales, block, row, lanes); break;
                case 3: block_rows<3>(p, a, decoded, scales, block, row, lanes); break;
            }
        }
        Columns columns(p, n0, count);
        for (int j = 0; j < count; ++j) columns.note_nan(j, R::any_nan(nan[j]));
        finish(p, a, 0, a.count, columns, lanes);
    }

    // --- both ---

    // At most kColumns columns from n0; b: their codes.
    static void columns_of_codes(const Args& p, const Chunk& a, Codes b, int64_t n0, int count) {
        static thread_local KeptMemory memory;
        const int64_t blocks = blocks_of(p.k);
        const float* scale_b[kColumns];
        auto* floats = reinterpret_cast<float*>(memory.at_least(kColumns * blocks * sizeof(float)));
        scale_rows(p.scale_b, n0, count, blocks, floats, scale_b);
        switch (a.count) {
            case 1: return stream_columns<1>(p, a, b, scale_b, n0, count);
            case 2: return stream_columns<2>(p, a, b, scale_b, n0, count);
            case 3: return stream_columns<3>(p, a, b, scale_b, n0, count);
            case 4: return stream_columns<4>(p, a, b, scale_b, n0, count);
            default: return decoded_columns(p, a, b, scale_b, n0, count);
        }
    }

    static void columns(const Args& p, const Chunk& a, int64_t begin, int64_t end) {
        const int64_t strip = p.b.k_contiguous() ? end - begin : kStrip;
        for (; begin < end; begin += strip) {
            const int64_t stop = std::min(begin + strip, end);
            const Codes codes = rows_of(p.b, begin, stop - begin, p.k);
            for (int64_t n = begin; n < stop; n += kColumns)
                columns_of_codes(p, a, {codes.data + (n - begin) * codes.stride, codes.stride}, n,
                                 int(std::min<int64_t>(kColumns, stop - n)));
        }
    }

  public:
    static Kernel kernel() { return {operand_bytes, decode_rows, columns, 1, kColumns, kStrip}; }
};

template <class R, DType format>
Kernel pick_of_format(DType out) {
    return out == DType::f32   ? BlockScaledGemm<R, format, DType::f32>::kernel()
           : out == DType::f16 ? BlockScaledGemm<R, format, DType::f16>::kernel()
                               : BlockScaledGemm<R, format, DType::bf16>::kernel();
}

template <class R>
Kernel pick_block_scaled_gemm(const Args& args) {
    return args.format == DType::e4m3fn ? pick_of_format<R, DType::e4m3fn>(args.out.dtype)
                                        : pick_of_format<R, DType::e4m3fnuz>(args.out.dtype);
}

}  // namespace

Kernel kernel_avx2(const Args& args);
Kernel kernel_avx512(const Args& args);
Kernel kernel_amx(const Args& args);

}  // namespace rocm_fp8::block_scaled_gemm
