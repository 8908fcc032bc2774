// Int8 GEMM on the CPU, over any of the instruction sets in portable.cpp, avx2.cpp and avx512.cpp.
//
// Bytes: n k of B, read once for each chunk of rows of A. Floor at m = 1: n k at the memory's read rate. Above a few rows
// the multiplications are the limit: m n k / (products an instruction).
//
//     A                  in chunks of rows, decoded once by all threads to what the instruction set multiplies
//     few rows (m <= 4)  tiles of m x R::stream_n(m); B is decoded in registers, used m times
//     more rows          R::block k of kColumns rows of B are decoded into the nearest cache, then multiplied with all
//                        rows of the chunk in tiles of kTileM x R::tile_n
//
// An operand is R::step neighbours of a row: int16 (portable, AVX2: vpmaddwd; vpmaddubsw would saturate) or int8
// (AVX-512 VNNI). vpdpbusd takes one unsigned factor: B's bytes with the sign bit turned over are b + 128. The surplus,
// 128 times the sum of a row of A, is subtracted at the end. Sums wrap around, so that it is exact.
//
// Decoded A is stored block after block, with the rows of a block next to each other: rows K elements apart would fall
// into the same few sets of a cache.
//
// Files: kernel.h (this kernel), store.h (the epilogue), one .cpp an instruction set, amx.cpp (another kernel),
// int8_gemm.cpp (the launcher).
//
// Steps and figures: docs/journal/int8_gemm-cpu.md.
#pragma once

#include <algorithm>

#include "../../common/cpu/kept_memory.h"
#include "../int8_gemm.h"
#include "store.h"

namespace rocm_fp8::int8_gemm {

// Rows [first, first + count) of A of one batch, decoded.
struct Chunk {
    int64_t batch, first, count;
    char* operands;    // 64-byte aligned, Kernel::operand_bytes(k) a row
    int32_t* surplus;  // [count]: what R::offset makes of a row
};

// What each instruction set's translation unit hands to the launcher.
struct Kernel {
    // Of one decoded row.
    int64_t (*operand_bytes)(int64_t k);
    // Decodes rows [begin, end) of the chunk, counted from its first.
    void (*decode_rows)(const Args& args, const Chunk& a, int64_t begin, int64_t end);
    // Computes columns [begin, end) of the chunk's rows of the result.
    void (*columns)(const Args& args, const Chunk& a, int64_t begin, int64_t end);
    // The launcher cuts at multiples of these: rows to decode, columns.
    int64_t rows_at_once, columns_at_once;
};

// The most rows of a chunk: their sums stay in the second cache.
constexpr int kMaxChunk = 512;

namespace {

template <class R, DType out_type>
class Int8Gemm {
    using Sum = typename R::Sum;
    using Operand = typename R::Operand;
    static constexpr int kStep = R::step, kTileM = 4;
    static constexpr int kPrefetch = 512;  // bytes ahead in a row of B
    static_assert(R::block % kStep == 0 && kColumns % R::tile_n == 0 && kColumns % 4 == 0);

    static const int8_t* rows_of(const int8_gemm::Operand& x, int64_t batch, int64_t row) {
        return reinterpret_cast<const int8_t*>(x.data) + batch * x.group_stride + row * x.row_stride;
    }
    static int64_t bytes_of(int64_t k) { return (k + kStep - 1) / kStep * int64_t(sizeof(Operand)); }
    // Of a block of one row.
    static int64_t block_bytes(int64_t k) { return bytes_of(std::min<int64_t>(k, R::block)); }
    static int64_t blocks_of(int64_t k) { return (k + R::block - 1) / R::block; }

    // Columns of a tile of so many rows.
    static constexpr int tile_n(int m) { return m == kTileM ? R::tile_n : R::stream_n(m); }
    // The least multiple of four that is not smaller.
    static constexpr int fours(int n) { return (n + 3) / 4 * 4; }
    // Without overflow: sums wrap around.
    static int32_t difference(int32_t x, int32_t y) { return int32_t(uint32_t(x) - uint32_t(y)); }

    // --- A ---

    static int64_t operand_bytes(int64_t k) { return blocks_of(k) * block_bytes(k); }

    // Calls use(i, codes) with the i-th step of `length` codes; zeros fill the last one.
    template <class Use>
    static void steps_of(const int8_t* codes, int64_t length, const Use& use) {
        int64_t k = 0;
        for (; k + kStep <= length; k += kStep) use(k / kStep, codes + k);
        if (k < length) {
            int8_t tail[kStep] = {};
            std::memcpy(tail, codes + k, length - k);
            use(k / kStep, tail);
        }
    }

    static void decode_rows(const Args& p, const Chunk& a, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const int8_t* codes = rows_of(p.a, a.batch, a.first + row);
            for (int64_t k = 0; k < p.k; k += R::block) {
                char* to = a.operands + (k / R::block * a.count + row) * block_bytes(p.k);
                steps_of(codes + k, std::min<int64_t>(R::block, p.k - k), [&](int64_t i, const int8_t* step) {
                    R::store_operand(to + i * sizeof(Operand), R::decode_a(step));
                });
            }
            uint32_t surplus = 0;
            if constexpr (R::offset)
                for (int64_t k = 0; k < p.k; ++k) surplus += uint32_t(codes[k]);
            a.surplus[row] = int32_t(surplus * R::offset);
        }
    }

    static const char* operands_of(const Args& p, const Chunk& a, int64_t block, int64_t row) {
        return a.operands + (block * a.count + row) * block_bytes(p.k);
    }

    // --- few rows: M rows of A times N of B, straight from the bytes ---

    template <int M, int N>
    static void stream_tile(const Args& p, const Chunk& a, const int8_t* b, const Columns& columns, int32_t* totals) {
        const int64_t stride = p.b.row_stride, row_bytes = block_bytes(p.k);
        Sum sum[M * N];
        for (Sum& v : sum) v = R::zero();
        for (int64_t k0 = 0; k0 < p.k; k0 += R::block) {
            const char* rows = operands_of(p, a, k0 / R::block, 0);
            const int64_t length = std::min<int64_t>(R::block, p.k - k0);
            const int8_t* codes = b + k0;
            auto step = [&](const int8_t* from, int64_t apart) {
                Operand v[M];
                for (int i = 0; i < M; ++i) {
                    v[i] = R::keep(R::load_operand(rows + i * row_bytes));  // in its register: N loads take longer
                }
                for (int j = 0; j < N; ++j) {
                    const Operand w = R::decode_b(from + j * apart);
                    for (int i = 0; i < M; ++i) {
                        Sum& s = sum[i * N + j];
                        s = R::keep(R::dot(s, v[i], w));
                    }
                }
                rows += sizeof(Operand);
            };
            constexpr int kLine = 64;  // bytes of a cache line
            int64_t k = 0;
            for (; k + kLine <= length; k += kLine) {
                // After a row's end: of the rows of the next tile. The processor's own prefetching stops at a page's.
                int64_t ahead = k + kPrefetch;
                ahead += k0 + ahead < p.k ? 0 : N * stride - p.k;
                for (int j = 0; j < N; ++j) prefetch(codes + j * stride + ahead);
                for (int u = 0; u < kLine; u += kStep) step(codes + k + u, stride);
            }
            for (; k + kStep <= length; k += kStep) step(codes + k, stride);
            if (k < length) {
                int8_t tails[N * kStep] = {};
                for (int j = 0; j < N; ++j) std::memcpy(tails + j * kStep, codes + j * stride + k, length - k);
                step(tails, kStep);
            }
        }
        int32_t found[fours(M * N)];
        R::template totals<M * N>(sum, found);
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j)
                totals[i * kColumns + columns.done + j] = difference(found[i * N + j], a.surplus[i]);
    }

    template <int M>
    static void stream_columns(const Args& p, const Chunk& a, const int8_t* b, Columns& columns) {
        constexpr int N = R::stream_n(M);
        int32_t totals[M * kColumns] = {};
        for (; columns.done + N <= columns.count; columns.done += N)
            stream_tile<M, N>(p, a, b + columns.done * p.b.row_stride, columns, totals);
        for (; columns.done < columns.count; ++columns.done)
            stream_tile<M, 1>(p, a, b + columns.done * p.b.row_stride, columns, totals);
        store_rows<typename R::Floats, out_type>(p, a.batch, a.first, M, columns, totals);
    }

    // --- more rows: through decoded blocks ---

    // M rows of A times N of B over a block of `bytes`; adds to totals [M][N].
    template <int M, int N, class Bytes>
    static void block_tile(const char* a, const char* b, Bytes bytes, int64_t stride, int32_t* totals) {
        Sum sum[M * N];
        for (Sum& v : sum) v = R::zero();
        const auto step = [&](int64_t k) {
            Operand w[N];
            for (int j = 0; j < N; ++j) w[j] = R::load_operand(b + j * stride + k);
            for (int i = 0; i < M; ++i) {
                const Operand v = R::keep(R::load_operand(a + i * stride + k));
                for (int j = 0; j < N; ++j) {
                    Sum& s = sum[i * N + j];
                    s = R::keep(R::dot(s, v, w[j]));
                }
            }
        };
        constexpr int64_t kOne = sizeof(Operand);
        if constexpr (std::is_same_v<Bytes, int64_t>) {
            for (int64_t k = 0; k < bytes; k += kOne) step(k);
        } else {
            static_assert(Bytes::value % (4 * kOne) == 0);
            for (int64_t k = 0; k < bytes; k += 4 * kOne) {
                step(k);
                step(k + kOne);
                step(k + 2 * kOne);
                step(k + 3 * kOne);
            }
        }
        int32_t found[fours(M * N)];
        R::template totals<M * N>(sum, found);
        for (int i = 0; i < M * N; ++i) totals[i] = int32_t(uint32_t(totals[i]) + uint32_t(found[i]));
    }

    // A block of M rows of A, from `row`, times kColumns of B; adds to totals [kColumns / N][M][N] of these rows.
    template <int M>
    static void block_rows(const Args& p, const Chunk& a, const char* b, int64_t block, int64_t row, int32_t* totals) {
        constexpr int N = tile_n(M);
        static_assert(kColumns % N == 0);
        const char* rows = operands_of(p, a, block, row);
        totals += row * kColumns;
        const int64_t length = p.k - block * R::block;
        for (int j = 0; j < kColumns; j += N, totals += M * N) {
            if (length >= R::block) {  // a constant, so that the loop's end is foreseen
                constexpr std::integral_constant<int64_t, R::block / kStep * sizeof(Operand)> bytes;
                block_tile<M, N>(rows, b + j * bytes, bytes, bytes, totals);
            } else {
                const int64_t stride = block_bytes(p.k);
                block_tile<M, N>(rows, b + j * stride, bytes_of(length), stride, totals);
            }
        }
    }

    // From the tiles' order to [M][kColumns], without the surplus.
    template <int M>
    static void in_order(int32_t* totals, const int32_t* surplus) {
        constexpr int N = tile_n(M);
        int32_t tiles[M * kColumns];
        std::memcpy(tiles, totals, sizeof tiles);
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < kColumns; ++j)
                totals[i * kColumns + j] = difference(tiles[j / N * M * N + i * N + j % N], surplus[i]);
    }

    // Calls use(M, row) with each tile's number of rows, as a constant, and its first.
    template <class Use>
    static void tiles_of_rows(int64_t count, const Use& use) {
        int64_t row = 0;
        for (; row + kTileM <= count; row += kTileM) use(std::integral_constant<int, kTileM>(), row);
        switch (count - row) {
            case 1: use(std::integral_constant<int, 1>(), row); break;
            case 2: use(std::integral_constant<int, 2>(), row); break;
            case 3: use(std::integral_constant<int, 3>(), row); break;
        }
    }

    static void decoded_columns(const Args& p, const Chunk& a, const int8_t* b, Columns& columns) {
        alignas(64) static thread_local char decoded[kColumns * R::block / kStep * sizeof(Operand)];
        static thread_local KeptMemory memory;
        auto* totals = reinterpret_cast<int32_t*>(memory.at_least(a.count * kColumns * sizeof(int32_t)));
        std::fill_n(totals, a.count * kColumns, 0);
        const int64_t stride = block_bytes(p.k);
        for (int64_t block = 0; block < blocks_of(p.k); ++block) {
            const int64_t k0 = block * R::block;
            // Columns beyond the last have what was there before, and are not stored.
            // Bytes of the next block are fetched ahead; after a row's end those of the next columns.
            const bool last = k0 + R::block >= p.k;
            const int8_t* next = last ? b + kColumns * p.b.row_stride : b + k0 + R::block;
            const int64_t bytes = std::min<int64_t>(R::block, last ? p.k : p.k - k0 - R::block);
            for (int j = 0; j < columns.count; ++j) {
                constexpr int kLine = 64;  // bytes of a cache line
                for (int64_t i = 0; i < bytes; i += kLine) prefetch(next + j * p.b.row_stride + i);
                steps_of(b + j * p.b.row_stride + k0, std::min<int64_t>(R::block, p.k - k0),
                         [&](int64_t i, const int8_t* step) {
                             R::store_operand(decoded + j * stride + i * sizeof(Operand), R::decode_b(step));
                         });
            }
            tiles_of_rows(a.count, [&](auto m, int64_t row) { block_rows<m()>(p, a, decoded, block, row, totals); });
        }
        tiles_of_rows(a.count, [&](auto m, int64_t row) { in_order<m()>(totals + row * kColumns, a.surplus + row); });
        store_rows<typename R::Floats, out_type>(p, a.batch, a.first, a.count, columns, totals);
    }

    static void columns(const Args& p, const Chunk& a, int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; n += kColumns) {
            Columns columns(p.epilogue, a.batch, n, int(std::min<int64_t>(kColumns, end - n)));
            const int8_t* b = rows_of(p.b, a.batch, n);
            switch (a.count) {
                case 1: stream_columns<1>(p, a, b, columns); break;
                case 2: stream_columns<2>(p, a, b, columns); break;
                case 3: stream_columns<3>(p, a, b, columns); break;
                case 4: stream_columns<4>(p, a, b, columns); break;
                default: decoded_columns(p, a, b, columns);
            }
        }
    }

  public:
    static Kernel kernel() { return {operand_bytes, decode_rows, columns, 1, kColumns}; }
};

template <class R>
Kernel pick_int8_gemm(const Args& args) {
    switch (args.epilogue.out.dtype) {
        case DType::i8: return Int8Gemm<R, DType::i8>::kernel();
        case DType::f32: return Int8Gemm<R, DType::f32>::kernel();
        case DType::f16: return Int8Gemm<R, DType::f16>::kernel();
        default: return Int8Gemm<R, DType::bf16>::kernel();
    }
}

}  // namespace

Kernel kernel_portable(const Args& args);
Kernel kernel_avx2(const Args& args);
Kernel kernel_avx512(const Args& args);
Kernel kernel_amx(const Args& args);

}  // namespace rocm_fp8::int8_gemm
