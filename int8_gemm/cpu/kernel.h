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
// Files: kernel.h (this kernel), store.h (the epilogue), one .cpp an instruction set, int8_gemm.cpp (the launcher).
//
// Steps and figures: docs/journal/int8_gemm-cpu.md.
#pragma once

#include <algorithm>

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

    static int64_t bytes_of(int64_t k) { return (k + kStep - 1) / kStep * int64_t(sizeof(Operand)); }
    // Of a block of one row.
    static int64_t block_bytes(int64_t k) { return bytes_of(std::min<int64_t>(k, R::block)); }
    static int64_t blocks_of(int64_t k) { return (k + R::block - 1) / R::block; }

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
            const int8_t* codes = p.a.data + a.batch * p.a.batch_stride + (a.first + row) * p.a.row_stride;
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
                for (int j = 0; j < N; ++j) {
                    const Operand w = R::decode_b(from + j * apart);
                    for (int i = 0; i < M; ++i)
                        sum[i * N + j] = R::dot(sum[i * N + j], R::load_operand(rows + i * row_bytes), w);
                }
                rows += sizeof(Operand);
            };
            constexpr int kLine = 64;  // bytes of a cache line
            int64_t k = 0;
            for (; k + kLine <= length; k += kLine) {
                for (int j = 0; j < N; ++j) prefetch(codes + j * stride + k + kPrefetch);
                for (int u = 0; u < kLine; u += kStep) step(codes + k + u, stride);
            }
            for (; k + kStep <= length; k += kStep) step(codes + k, stride);
            if (k < length) {
                int8_t tails[N * kStep] = {};
                for (int j = 0; j < N; ++j) std::memcpy(tails + j * kStep, codes + j * stride + k, length - k);
                step(tails, kStep);
            }
        }
        R::template totals<M * N>(sum, [&](int i, int32_t total) {
            totals[i / N * kColumns + columns.done + i % N] = int32_t(uint32_t(total) - uint32_t(a.surplus[i / N]));
        });
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

    // M rows of A times N of B over a block of `bytes`; adds to totals [M][kColumns].
    template <int M, int N>
    static void block_tile(const char* a, const char* b, int64_t bytes, int64_t stride, int32_t* totals) {
        Sum sum[M * N];
        for (Sum& v : sum) v = R::zero();
        for (int64_t k = 0; k < bytes; k += sizeof(Operand)) {
            Operand w[N];
            for (int j = 0; j < N; ++j) w[j] = R::load_operand(b + j * stride + k);
            for (int i = 0; i < M; ++i) {
                const Operand v = R::load_operand(a + i * stride + k);
                for (int j = 0; j < N; ++j) sum[i * N + j] = R::dot(sum[i * N + j], v, w[j]);
            }
        }
        R::template totals<M * N>(sum, [&](int i, int32_t total) {
            int32_t& to = totals[i / N * kColumns + i % N];
            to = int32_t(uint32_t(to) + uint32_t(total));
        });
    }

    template <int M>
    static void block_rows(const Args& p, const Chunk& a, const char* b, int64_t block, int64_t row, int32_t* totals) {
        constexpr int N = M == kTileM ? R::tile_n : R::stream_n(M);
        static_assert(kColumns % N == 0);
        const char* rows = operands_of(p, a, block, row);
        const int64_t stride = block_bytes(p.k);
        const int64_t bytes = bytes_of(std::min<int64_t>(R::block, p.k - block * R::block));
        for (int j = 0; j < kColumns; j += N)
            block_tile<M, N>(rows, b + j * stride, bytes, stride, totals + row * kColumns + j);
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
            for (int j = 0; j < columns.count; ++j) {
                steps_of(b + j * p.b.row_stride + k0, std::min<int64_t>(R::block, p.k - k0),
                         [&](int64_t i, const int8_t* step) {
                             R::store_operand(decoded + j * stride + i * sizeof(Operand), R::decode_b(step));
                         });
            }
            int64_t row = 0;
            for (; row + kTileM <= a.count; row += kTileM) block_rows<kTileM>(p, a, decoded, block, row, totals);
            switch (a.count - row) {
                case 1: block_rows<1>(p, a, decoded, block, row, totals); break;
                case 2: block_rows<2>(p, a, decoded, block, row, totals); break;
                case 3: block_rows<3>(p, a, decoded, block, row, totals); break;
            }
        }
        if constexpr (R::offset) {
            for (int64_t row = 0; row < a.count; ++row)
                for (int j = 0; j < kColumns; ++j)
                    totals[row * kColumns + j] =
                        int32_t(uint32_t(totals[row * kColumns + j]) - uint32_t(a.surplus[row]));
        }
        store_rows<typename R::Floats, out_type>(p, a.batch, a.first, a.count, columns, totals);
    }

    static void columns(const Args& p, const Chunk& a, int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; n += kColumns) {
            Columns columns(p.epilogue, a.batch, n, int(std::min<int64_t>(kColumns, end - n)));
            const int8_t* b = p.b.data + a.batch * p.b.batch_stride + n * p.b.row_stride;
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
    static Kernel kernel() { return {operand_bytes, decode_rows, columns}; }
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

}  // namespace rocm_fp8::int8_gemm
