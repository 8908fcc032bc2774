// What the CPU's FP8 GEMMs by AMX share: operands as tiles, and their products.
//
// Products are made transposed: weights are tiles of rows as they lie in memory, rows of A the tiles with pairs of k,
// packed once a call. FP8 codes become bfloat16, which holds each of them exactly, NaN too, by Avx512's tables: 64 codes
// give 2 tiles' rows, in an order of k that is the same for both operands.
#pragma once

#include "../../cpu/amx.h"
#include "gemm.h"

namespace rocm_fp8 {
namespace {

// A block is 128 k: four tiles. Columns (rows of B) come in pairs of tiles.
constexpr int kTileK = 128, kTilesOfBlock = kTileK / 32, kTileColumns = 2 * kTileRows;
// Bytes of a block of a row that was decoded.
constexpr int64_t kDecodedRow = kTilesOfBlock * kTileRowBytes;

// Rows of A, packed in tiles of 16. Of fewer rows than 16 only those are kept: zeros for the others would take the nearest
// cache from the weights. A tile register then reads bytes of other k for the others, whose products nobody takes. At the
// end it reads up to kBehind bytes behind the last block.
struct PackedRows {
    int64_t row_bytes;  // of a tile's row: a dword for each row of A
    explicit PackedRows(int64_t rows) : row_bytes(rows < kTileRows ? rows * 4 : kTileRowBytes) {}
    int64_t tile_bytes() const { return kTileRows * row_bytes; }
    int64_t block_bytes() const { return kTilesOfBlock * tile_bytes(); }
    static constexpr int64_t kBehind = kTileRowBytes;
};

// `length` <= 128 codes of a row; zeros fill the block. Inlined: the decoder's tables stay in registers.
template <DType format>
[[gnu::always_inline]] inline void decode_block(const uint8_t* codes, int64_t length, char* out) {
    const auto decode = [&](const uint8_t* from) {
        for (int step = 0; step < kTileK; step += Avx512::step) {
            __m512i w[Avx512::parts];
            Avx512::decode<format>(from + step, w);
            for (int i = 0; i < Avx512::parts; ++i, out += kTileRowBytes) _mm512_storeu_si512(out, w[i]);
        }
    };
    if (length == kTileK) return decode(codes);
    uint8_t filled[kTileK] = {};
    std::memcpy(filled, codes, length);
    decode(filled);
}

// decode_block of weights that memory sends. `below`: bytes to the same codes of the columns that come next.
template <DType format>
[[gnu::always_inline]] inline void stream_block(const uint8_t* codes, int64_t below, int64_t length, char* out) {
    constexpr int kAhead = 1024, kLine = 64;  // bytes ahead in the row; of a cache line
    for (int i = 0; i < kTileK; i += kLine) {
        __builtin_prefetch(codes + kAhead + i);
        prefetch(codes + below + i);  // early enough for page-table walks
    }
    decode_block<format>(codes, length, out);
}

// decode_block of 16 rows of A, of which the first `count` exist; the others are 0.
template <DType format>
void pack_block(const uint8_t* codes, int64_t stride, int64_t length, int count, const PackedRows& packed,
                char* tiles) {
    alignas(64) char rows[kTileRows][kDecodedRow];
    for (int i = 0; i < count; ++i) decode_block<format>(codes + i * stride, length, rows[i]);
    for (int i = count; i < kTileRows; ++i) std::memset(rows[i], 0, kDecodedRow);
    for (int t = 0; t < kTilesOfBlock; ++t)
        pack_tile(rows[0] + t * kTileRowBytes, kDecodedRow, tiles + t * packed.tile_bytes(), packed.row_bytes);
}

// A block's products, added to M N <= 4 accumulators: tile m N + n is that of weights + n weights_apart with the rows at
// rows + m blocks + n rows_apart. Of n only `count` exist. between(t): other work behind the products of step t,
// which take longer than their instructions.
template <int M, int N, class Between>
void multiply_block(const char* weights, int64_t weights_apart, const PackedRows& packed, const char* rows,
                    int64_t rows_apart, int count, const Between& between) {
    static_assert(M * N <= 4 && M <= 2);
    for (int t = 0; t < kTilesOfBlock; ++t) {
        const auto load_rows = [&](int n) {
            each_constant<M>([&](auto m) {
                load_tile<4 + m()>(rows + n * rows_apart + m * packed.block_bytes() + t * packed.tile_bytes(),
                                   packed.row_bytes);
            });
        };
        if (rows_apart == 0) load_rows(0);
        each_constant<N>([&](auto n) {
            constexpr int of_n = 6 + n() % 2;
            if (n() >= count) return;
            load_tile<of_n>(weights + n * weights_apart + t * kTileRowBytes, kDecodedRow);
            if (rows_apart != 0) load_rows(n);
            each_constant<M>([&](auto m) { multiply_bf16_tiles<m() * N + n(), of_n, 4 + m()>(); });
        });
        between(t);
    }
}

// From [32 columns][16 rows] of sums to 16 rows of 32 values.
inline void turn_sums(const float* sums, float (*values)[kTileColumns]) {
    for (int half = 0; half < 2; ++half) {
        __m512i x[16];
        for (int i = 0; i < 16; ++i) x[i] = _mm512_load_si512(sums + (half * 16 + i) * kTileRows);
        transpose_dwords(x);
        for (int i = 0; i < 16; ++i) _mm512_store_si512(values[i] + half * 16, x[i]);
    }
}

}  // namespace
}  // namespace rocm_fp8
