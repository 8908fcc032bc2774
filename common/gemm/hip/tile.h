// Tiles of 8-bit GEMMs: how a stage of an operand lies in LDS, and what a wave reads of it for its matrix instructions.
//
// A workgroup makes S::rows (of A) by S::columns (rows of B) of the result. Its waves lie on a grid of S::waves_m x
// S::waves_n; a wave makes subtiles of S::matrix x S::matrix, 16 or 32.
//
//     16  lane l = 16 g + j: 16 bytes from k = 16 g of row j, 64 k a step
//     32  lane l = 32 g + j: 16 bytes from k = 16 g of row j, 32 k a step
//
// An instruction that expects 8 bytes a lane gets the first halves of the 16, then the second halves; one that expects 32
// the 16 of a step of 32 or 64 k and those of the next. That permutes k in the same way in both
// operands, which does not change a dot product.
//
// The transpose is computed: the instruction's first operand is B, its second one is A. So a lane has sums of one row
// m = j, for columns n = 8 q + 4 g ... + 3 (32: q = 0 ... 3) or 4 g ... + 3 (16).
//
// A stage of an operand is [rows][stage / 16 chunks][16 bytes], the chunks of a row permuted by an exclusive or. Lanes
// that access LDS together (shared by 8 on gfx942, by 16 on gfx950) then find different banks: writers have the chunks
// of one or two neighbouring rows, readers the same or neighbouring chunks of groups of four rows. by_columns: every
// other eight rows have neighbouring chunks swapped, for writers that store the same chunk of every fourth row.
//
// S: a kernel's shape, of TileSizes and with by_columns.
#pragma once

#include "../../hip/buffer.h"
#include "tile_shape.h"

namespace rocm_fp8::gemm::hip {
namespace {

constexpr int kChunk = 16;  // bytes (k) of a 128-bit access

// What follows of a shape. chunks: 16 bytes of a lane's fragment of a row, 1 or 2.
template <TileShape s, int chunks_ = 1>
struct TileSizes {
    static constexpr int rows = s.rows, columns = s.columns, waves_m = s.waves_m, waves_n = s.waves_n,
                         waves_k = s.waves_k, matrix = s.matrix, stage = s.stage, ahead = s.ahead, waves = s.waves(),
                         grid_waves = waves / waves_k, threads = waves * kWave;
    static constexpr int wave_rows = rows / waves_m, wave_columns = columns / waves_n;
    static constexpr int sub_m = wave_rows / matrix, sub_n = wave_columns / matrix;  // subtiles of a wave
    static constexpr int quads = matrix == 32 ? 4 : 1;  // a lane's fours of columns in a subtile
    static constexpr int chunks = chunks_;
    static constexpr int step = (matrix == 32 ? 32 : 64) * chunks;  // k of a fragment
    static constexpr int steps = stage / step / waves_k;            // of a stage, a wave's
    // A stage of one step cannot be read half.
    static constexpr bool deep = s.deep || steps == 1;
    static constexpr int a_bytes = rows * stage, b_bytes = columns * stage, stage_bytes = a_bytes + b_bytes;
    static_assert(rows % (waves_m * matrix) == 0 && columns % (waves_n * matrix) == 0);
    static_assert(steps * step * waves_k == stage);
    // Waves per SIMD: the four SIMDs of a compute unit share its workgroups' waves.
    static constexpr int waves_per_simd = (waves * s.per_unit + 3) / 4;
};

// Of `count` rows from `row` on those before `end`.
__device__ inline int rows_before(int64_t end, int64_t row, int count) {
    return int(end - row < count ? end - row : count);
}

// Byte offset of a chunk of a row in a stage of an operand.
template <int stage, bool by_columns>
__device__ constexpr int place(int row, int chunk) {
    constexpr int kChunks = stage / kChunk;
#if defined(__gfx950__)
    constexpr int kRowsTogether = 256 / stage;  // rows that lie side by side in all banks
#else
    constexpr int kRowsTogether = 128 / stage;
#endif
    if constexpr (by_columns) return row * stage + (chunk ^ ((row / kRowsTogether ^ row / 8 % 2) % kChunks)) * kChunk;
    else return row * stage + (chunk ^ (row / kRowsTogether % kChunks)) * kChunk;
}

// Of a lane: its row in subtile i, its first column in the four q of subtile j, within the wave's part of the tile.
template <class S>
__device__ inline int row_in_wave(int lane, int i) {
    return i * S::matrix + lane % S::matrix;
}
template <class S>
__device__ inline int column_in_wave(int lane, int j, int q) {
    return j * S::matrix + 8 * q + lane / S::matrix * 4;
}

// Where in a stage the chunks of a wave's fragments are, bytes: of each step, at its first row and column. The rows
// after it are multiples of 16 away, which leave the permutation of chunks as it is.
template <class S>
struct Places {
    int a[S::steps * S::chunks], b[S::steps * S::chunks];

    __device__ Places() {
        const int lane = threadIdx.x % kWave, j = lane % S::matrix, g = lane / S::matrix;
        const int all = threadIdx.x / kWave, wave = S::waves_k == 1 ? all : all % S::grid_waves;
        constexpr int kCount = S::steps * S::chunks, kTogether = S::step / S::chunks / kChunk;
        const int first = S::waves_k == 1 ? 0 : all / S::grid_waves * kCount;
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
            const int at = place<S::stage, S::by_columns>(j, (first + n) * kTogether + g);
            a[n] = at + wave / S::waves_n * S::wave_rows * S::stage;
            b[n] = at + S::a_bytes + wave % S::waves_n * S::wave_columns * S::stage;
            asm volatile("" : "+v"(a[n]), "+v"(b[n]));  // computed once, not at each step
        }
    }
};

// A wave's fragments of one step, a lane's: `chunks` of each of its rows and columns.
template <class S>
struct Fragments {
    u32x4 a[S::sub_m][S::chunks], b[S::sub_n][S::chunks];

    static constexpr int kReads = (S::sub_m + S::sub_n) * S::chunks;

    // The n-th of kReads: in the order in which subtiles need them.
    __device__ void read(const char* stage, const Places<S>& places, int step, int n) {
        const int row = n / S::chunks, c = n % S::chunks, at = step * S::chunks + c;
        const auto chunk = [&](int from) { return *reinterpret_cast<const u32x4*>(stage + from); };
        if (row == 0 || row > S::sub_n) {
            const int i = row == 0 ? 0 : row - S::sub_n;
            a[i][c] = chunk(places.a[at] + i * S::matrix * S::stage);
        } else {
            b[row - 1][c] = chunk(places.b[at] + (row - 1) * S::matrix * S::stage);
        }
    }
    __device__ void read(const char* stage, const Places<S>& places, int step) {
#pragma unroll
        for (int n = 0; n < kReads; ++n) read(stage, places, step, n);
    }
};

// Of a wave's subtiles, before their products.
template <class T, int count, int each>
__device__ inline void clear_sums(T (&sums)[count][each]) {
#pragma unroll
    for (auto& row : sums) {
#pragma unroll
        for (T& sum : row) sum = T(0);
    }
}

// Calls body(i, j, q, four): each four of a lane's columns.
template <class S, class Body>
__device__ inline void each_four(Body body) {
#pragma unroll
    for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
        for (int j = 0; j < S::sub_n; ++j) {
#pragma unroll
            for (int q = 0; q < S::quads; ++q) body(i, j, q, (i * S::sub_n + j) * S::quads + q);
        }
    }
}
// Four of a lane's sums of a subtile. Four: f32x4 or i32x4.
template <class Four, class Sums>
__device__ inline Four four_of(const Sums& sums, int q) {
    return Four{sums[4 * q], sums[4 * q + 1], sums[4 * q + 2], sums[4 * q + 3]};
}
template <class Four, class Sums>
__device__ inline void set_four(Sums& sums, int q, Four v) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[4 * q + e] = v[e];
}

}  // namespace
}  // namespace rocm_fp8::gemm::hip
