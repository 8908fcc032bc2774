// Few rows by 16 columns with AVX-512, a lane a column: the bits that AMX gives, and those that it cannot give.
//
// AMX adds a block's products of even k, and those of odd k, by fused operations in the order of k; then both sums.
// It takes subnormal numbers for 0. Here none are.
#pragma once

#include <array>

#include "words.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr int kLanes = 16, kLine = 64;

// Brings the codes of columns that come next in memory's order, which is faster than a line of each column in turn.
class CodesAhead {
  public:
    CodesAhead(const uint8_t* column, int64_t stride, int64_t bytes)
        : column_(column), stride_(stride), bytes_(bytes) {}
    void fetch() {
        if (at_ >= bytes_) at_ = 0, column_ += stride_;
        prefetch(column_ + at_);
        at_ += kLine;
    }

  private:
    const uint8_t* column_;
    const int64_t stride_, bytes_;
    int64_t at_ = 0;
};

// Exponents of 16 columns as floats, [block][column]; bytes: [16][blocks rounded up to 64].
inline void spread_scales(const uint8_t* bytes, int64_t blocks, float* to) {
    const int64_t stride = (blocks + 63) / 64 * 64;
    for (int64_t first = 0; first < blocks; first += 64) {
        __m512i x[kLanes];
        for (int i = 0; i < kLanes; ++i) x[i] = _mm512_loadu_si512(bytes + i * stride + first);
        transpose_dwords(x);
        for (int64_t j = 0; j < std::min<int64_t>(64, blocks - first); ++j) {
            const __m512i byte = _mm512_and_si512(_mm512_srl_epi32(x[j / 4], _mm_cvtsi32_si128(int(j % 4 * 8))),
                                                  _mm512_set1_epi32(0xFF));
            const __m512i half_of_least = _mm512_set1_epi32(0x00400000);
            const __m512i bits = _mm512_mask_mov_epi32(_mm512_max_epu32(_mm512_slli_epi32(byte, 23), half_of_least),
                                                       _mm512_cmpeq_epi32_mask(byte, _mm512_set1_epi32(0xFF)),
                                                       _mm512_set1_epi32(0x7FC00000));
            _mm512_storeu_si512(to + (first + j) * kLanes, bits);
        }
    }
}

// Rows as float32, and their scales of blocks.
struct WideRows {
    const float* a;       // [rows][k]
    const float* blocks;  // [rows][k / 32], or nullptr
};

// A block of 16 columns. pair<r>: numbers 2 r and 2 r + 1 of each.
template <DType format>
class ColumnsOfBlock {
  public:
    [[gnu::always_inline]] ColumnsOfBlock(const Words<format>& words, const uint8_t* const* columns, int64_t block) {
        for (int i = 0; i < kLanes; ++i) x_[i] = words(columns[i] + block * kBlockBytes<format>);
        transpose_dwords(x_);
    }
    template <int r>
    [[gnu::always_inline]] void pair(const Words<format>&, __m512& even, __m512& odd) const {
        even = _mm512_castsi512_ps(_mm512_slli_epi32(x_[r], 16));
        odd = _mm512_castsi512_ps(_mm512_and_si512(x_[r], _mm512_set1_epi32(int(0xFFFF0000u))));
    }

  private:
    __m512i x_[kLanes];
};
template <>
class ColumnsOfBlock<DType::e2m1> {
  public:
    [[gnu::always_inline]] ColumnsOfBlock(const Words<DType::e2m1>&, const uint8_t* const* columns, int64_t block) {
        const auto four = [&](int i) {
            const auto codes = [&](int j) {
                return _mm_loadu_si128(reinterpret_cast<const __m128i*>(columns[i + 4 * j] + block * 16));
            };
            __m512i x = _mm512_castsi128_si512(codes(0));
            x = _mm512_inserti32x4(x, codes(1), 1);
            x = _mm512_inserti32x4(x, codes(2), 2);
            return _mm512_inserti32x4(x, codes(3), 3);
        };
        const __m512i a = four(0), b = four(1), c = four(2), d = four(3);
        const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
        const __m512i more_ab = _mm512_unpackhi_epi32(a, b), more_cd = _mm512_unpackhi_epi32(c, d);
        codes_[0] = _mm512_unpacklo_epi64(ab, cd);
        codes_[1] = _mm512_unpackhi_epi64(ab, cd);
        codes_[2] = _mm512_unpacklo_epi64(more_ab, more_cd);
        codes_[3] = _mm512_unpackhi_epi64(more_ab, more_cd);
    }
    template <int r>
    [[gnu::always_inline]] void pair(const Words<DType::e2m1>&, __m512& even, __m512& odd) const {
        constexpr int kShift = r % 4 * 8;  // the look-up reads the lowest four bits of a lane
        const __m512 numbers = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
        even = _mm512_permutexvar_ps(_mm512_srli_epi32(codes_[r / 4], kShift), numbers);
        odd = _mm512_permutexvar_ps(_mm512_srli_epi32(codes_[r / 4], kShift + 4), numbers);
    }

  private:
    __m512i codes_[4];  // of each column eight
};

// M rows by 16 N columns of `format`, of which `count` exist. scales: N of spread_scales. sums: a row each `apart`.
template <int M, int N, DType format>
void multiply_pairs(const WideRows& rows, const uint8_t* b, int64_t stride, int count, const float* scales, int64_t k,
                    float* sums, int64_t apart) {
    const Words<format> words;
    const uint8_t* columns[N * kLanes];
    for (int i = 0; i < N * kLanes; ++i) columns[i] = b + std::min(i, count - 1) * stride;
    const int64_t blocks = k / kMxBlock;
    __m512 sum[M][N];
    for (auto& of_row : sum)
        for (auto& s : of_row) s = _mm512_setzero_ps();
    constexpr int kBlocksOfLine = kLine / int(kBlockBytes<format>);
    CodesAhead next(b + N * kLanes * stride, stride, blocks * kBlockBytes<format>);
    for (int64_t block = 0; block < blocks; ++block) {
        for (int i = 0; i < N * kLanes / kBlocksOfLine; ++i) next.fetch();
        __m512 even[M][N], odd[M][N];
        const auto codes = [&]<int... n>(std::integer_sequence<int, n...>) {
            return std::array<ColumnsOfBlock<format>, N>{ColumnsOfBlock<format>(words, columns + n * kLanes, block)...};
        }(std::make_integer_sequence<int, N>());
        each_constant<16>([&](auto r) {
            for (int n = 0; n < N; ++n) {
                __m512 first, second;
                codes[n].template pair<r()>(words, first, second);
                for (int m = 0; m < M; ++m) {
                    const float* const a = rows.a + m * k + block * kMxBlock + 2 * r();
                    const __m512 x = _mm512_set1_ps(a[0]), y = _mm512_set1_ps(a[1]);
                    even[m][n] = r() == 0 ? _mm512_mul_ps(first, x) : _mm512_fmadd_ps(first, x, even[m][n]);
                    odd[m][n] = r() == 0 ? _mm512_mul_ps(second, y) : _mm512_fmadd_ps(second, y, odd[m][n]);
                }
            }
        });
        for (int m = 0; m < M; ++m) {
            for (int n = 0; n < N; ++n) {
                __m512 scale = _mm512_loadu_ps(scales + (n * blocks + block) * kLanes);
                if (rows.blocks) scale = _mm512_mul_ps(scale, _mm512_set1_ps(rows.blocks[m * blocks + block]));
                sum[m][n] = _mm512_fmadd_ps(scale, _mm512_add_ps(even[m][n], odd[m][n]), sum[m][n]);
            }
        }
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) _mm512_storeu_ps(sums + m * apart + n * kLanes, sum[m][n]);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
