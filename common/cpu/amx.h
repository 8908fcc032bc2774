// AMX: eight tile registers of 16 rows of 64 bytes, and the instructions that multiply them. Sapphire Rapids and later.
//
//     c[i][j] += sum over t of a[i][t] * b[t][j]      i, j < 16; t < 32 (bfloat16, sums in float32) or 64 (int8, int32)
//
// a has a row of t in each of its rows. b has pairs (bfloat16) or fours (int8) of t in its rows: dword j of row r holds
// numbers 2r and 2r + 1, or 4r to 4r + 3, of column j. So a row-major operand is an a as it lies in memory, and becomes
// a b when its 16 x 16 dwords are transposed. A product's sum runs along t in its order: a number's bits do not depend on
// where in a tile it is.
//
// Subnormal numbers, read or written, are 0. NaN and infinity are what IEEE 754 says, and stay in their row or column.
#pragma once

#include <utility>

#include "simd_avx512.h"

namespace rocm_fp8 {
namespace {

constexpr int kTileRows = 16, kTileRowBytes = 64, kTileBytes = kTileRows * kTileRowBytes;

// All tiles whole while it lives, on this thread. Another library's shapes of tiles come back afterwards.
class TilesInUse {
  public:
    TilesInUse() {
        asm volatile("sttilecfg %0" : "=m"(before_));
        static constexpr Shapes kWhole = [] {
            Shapes s{};
            s.palette = 1;
            for (int i = 0; i < 8; ++i) s.row_bytes[i] = kTileRowBytes, s.rows[i] = kTileRows;
            return s;
        }();
        asm volatile("ldtilecfg %0" ::"m"(kWhole));
    }
    ~TilesInUse() { asm volatile("ldtilecfg %0" ::"m"(before_)); }
    TilesInUse(const TilesInUse&) = delete;
    TilesInUse& operator=(const TilesInUse&) = delete;

  private:
    struct alignas(64) Shapes {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    };
    static_assert(sizeof(Shapes) == 64);
    Shapes before_;
};

// Assembler, because GCC's own functions for these do not say that memory is read and written.
template <int t>
void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(t) : "memory");
}
template <int t>
void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(t) : "memory");
}
template <int t>
void zero_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(t));
}
template <int c, int a, int b>
void multiply_bf16_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
}
template <int c, int a, int b>
void multiply_int8_tiles() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
}

// use(std::integral_constant<int, i>) for i < n.
template <int n, class Use>
void each_constant(const Use& use) {
    [&]<int... i>(std::integer_sequence<int, i...>) {
        (use(std::integral_constant<int, i>()), ...);
    }(std::make_integer_sequence<int, n>());
}

// 16 x 16 dwords.
inline void transpose_dwords(__m512i (&x)[16]) {
    __m512i y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {  // x[i + j]: in lane l column 4 l + j of rows i to i + 3
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    constexpr int kEven = 0x88, kOdd = 0xDD;  // of the lanes of two registers
    for (int j = 0; j < 4; ++j) {
        const __m512i even = _mm512_shuffle_i32x4(x[j], x[4 + j], kEven),
                      odd = _mm512_shuffle_i32x4(x[j], x[4 + j], kOdd);
        const __m512i more_even = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], kEven),
                      more_odd = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], kOdd);
        y[j] = _mm512_shuffle_i32x4(even, more_even, kEven);
        y[8 + j] = _mm512_shuffle_i32x4(even, more_even, kOdd);
        y[4 + j] = _mm512_shuffle_i32x4(odd, more_odd, kEven);
        y[12 + j] = _mm512_shuffle_i32x4(odd, more_odd, kOdd);
    }
    for (int i = 0; i < 16; ++i) x[i] = y[i];
}

// 16 rows of 64 bytes, `stride` bytes apart, to a tile of b, whose rows are row_bytes apart: of fewer rows than 16 the
// rest need not be kept. Up to 64 bytes from the last row's begin are written.
inline void pack_tile(const void* rows, int64_t stride, void* tile, int64_t row_bytes = kTileRowBytes) {
    __m512i x[16];
    for (int i = 0; i < 16; ++i) x[i] = _mm512_loadu_si512(static_cast<const char*>(rows) + i * stride);
    transpose_dwords(x);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(static_cast<char*>(tile) + i * row_bytes, x[i]);
}

}  // namespace
}  // namespace rocm_fp8
