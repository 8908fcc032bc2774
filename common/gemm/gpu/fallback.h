// The main loop of the GEMM for any K, stride and alignment, on AMD and NVIDIA GPUs. Each wave (or warp) loads its
// operands straight into registers.
//
//     workgroup   one tile of columns
//     wave w      the steps w, w + kFallbackWaves, ... of 64 k each; kFallbackUnroll of them at a time
//     lane        the columns, rows and 16 bytes of a step that Tile names
//
// A Tile has: kColumnLoads, kRowLoads; Chunk, zero(), of_words(); load_weights(p), load_rows(p); column(lane, i),
// row(lane, i), chunk(lane); multiply(columns, rows).
#pragma once

#include "../../vendor.h"

namespace rocm_fp8::gemm {
namespace {

constexpr int kFallbackWaves = 8, kFallbackUnroll = 4, kFallbackStep = 64, kFallbackChunk = 16;

// Loads 16 bytes of a row from k on, with zeros from `end` on. Without alignment it loads single bytes, none beyond
// the row's end.
template <class Tile, bool aligned, bool weights>
__device__ inline typename Tile::Chunk load_chunk(const uint8_t* row, int64_t k, int64_t end) {
    if constexpr (aligned) {
        // A chunk is wholly inside or outside. Outside, the row's first chunk is loaded instead of a branch.
        const void* p = offset(row, k < end ? k : 0);
        const typename Tile::Chunk v = weights ? Tile::load_weights(p) : Tile::load_rows(p);
        return k < end ? v : Tile::zero();
    } else {
        uint32_t words[kFallbackChunk / 4] = {};
        for (int i = 0; i < kFallbackChunk; ++i) {
            if (k + i < end) words[i / 4] |= uint32_t(global<uint8_t>(row)[k + i]) << (i % 4 * 8);
        }
        return Tile::of_words(words);
    }
}

// Adds this wave's share of the steps [begin, end) of a tile of columns. Args has a, b, m, n and k as in
// skinny_gemm.h. Rows and columns beyond the last are copies of it, which the caller must not store.
template <class Tile, bool aligned, class Args>
__device__ inline void multiply_fallback(const Args& a, int64_t first_column, int64_t begin, int64_t end, int wave,
                                         int lane, Tile& tile) {
    using Chunk = typename Tile::Chunk;
    const uint8_t *column[Tile::kColumnLoads], *row[Tile::kRowLoads];
    for (int i = 0; i < Tile::kColumnLoads; ++i) {
        const int64_t n = first_column + Tile::column(lane, i);
        column[i] = a.b.data + (n < a.n ? n : a.n - 1) * a.b.row_stride;
    }
    for (int i = 0; i < Tile::kRowLoads; ++i) {
        const int64_t m = Tile::row(lane, i);
        row[i] = a.a.data + (m < a.m ? m : a.m - 1) * a.a.row_stride;
    }
    for (int64_t first = begin + wave; first < end; first += kFallbackWaves * kFallbackUnroll) {
        Chunk columns[kFallbackUnroll][Tile::kColumnLoads], rows[kFallbackUnroll][Tile::kRowLoads];
#pragma unroll
        for (int u = 0; u < kFallbackUnroll; ++u) {
            const int64_t step = first + u * kFallbackWaves;
            const int64_t k = step * kFallbackStep + Tile::chunk(lane) * kFallbackChunk, limit = step < end ? a.k : 0;
#pragma unroll
            for (int i = 0; i < Tile::kColumnLoads; ++i) {
                columns[u][i] = load_chunk<Tile, aligned, true>(column[i], k, limit);
            }
#pragma unroll
            for (int i = 0; i < Tile::kRowLoads; ++i) {
                rows[u][i] = load_chunk<Tile, aligned, false>(row[i], k, limit);
            }
        }
#pragma unroll
        for (int u = 0; u < kFallbackUnroll; ++u) tile.multiply(columns[u], rows[u]);
    }
}

}  // namespace
}  // namespace rocm_fp8::gemm
