// Rows of A for amx.cpp: packed as tiles with their ranges, or the fewest as float32.
#pragma once

#include "../../common/gemm/cpu/amx.h"
#include "kernel.h"
#include "words.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr int kBlocksOfSlice = 8, kFewestRows = 2;
static_assert(kRowsOfTile == kTileRows);

// A chunk's rows lie slice by slice of k, of which 16 rows, of which block by block: a tile.
struct Sizes {
    int64_t k, count;
    PackedRows packed;
    Sizes(int64_t k, int64_t count) : k(k), count(count), packed(count) {}
    int64_t blocks() const { return k / kMxBlock; }
    int64_t slices() const { return (blocks() + kBlocksOfSlice - 1) / kBlocksOfSlice; }
    int64_t tiles() const { return (count + kTileRows - 1) / kTileRows; }
    int64_t blocks_of(int64_t slice) const {
        return std::min<int64_t>(kBlocksOfSlice, blocks() - slice * kBlocksOfSlice);
    }
    int64_t slice_bytes() const { return kBlocksOfSlice * packed.tile_bytes(); }  // of 16 rows
    int64_t offset(int64_t slice, int64_t tile) const { return (slice * tiles() + tile) * slice_bytes(); }
    int64_t bytes() const { return offset(slices(), 0) + PackedRows::kBehind; }
};

// beside: B's format.
template <DType format, DType beside>
class RowsOfA {
  public:
    static bool few(int64_t count) { return count <= kFewestRows; }
    // Few rows: float32, then their scales of blocks.
    static int64_t operand_bytes(const Args& p, int64_t count) {
        return few(count) ? count * (p.k + p.k / kMxBlock) * int64_t(sizeof(float)) : Sizes(p.k, count).bytes();
    }

    // Row `row` of A, of which -1 are zeros.
    static void widen(const Args& p, int64_t row, float* to, float* blocks) {
        const bool by_blocks = of_blocks(p.scale_a);
        if (row < 0) {
            std::fill_n(to, p.k, 0.0f);
            if (by_blocks) std::fill_n(blocks, p.k / kMxBlock, 1.0f);
            return;
        }
        const Words<format> words;
        for (int64_t j = 0; j < p.k / kMxBlock; ++j, to += kMxBlock) {
            const __m512i x = words(block_of(p, row, j));
            const auto wide = [](__m256i half) { return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16); };
            _mm512_storeu_si512(to, wide(_mm512_castsi512_si256(x)));
            _mm512_storeu_si512(to + kMxBlock / 2, wide(_mm512_extracti64x4_epi64(x, 1)));
        }
        for (int64_t j = 0; by_blocks && j < p.k / kMxBlock; ++j) blocks[j] = e8m0_value(scale_of(p, row, j));
    }

    static void pack(const Chunk& c, int64_t begin, int64_t end) {
        const Args& p = c.args;
        const Words<format> words;
        for (; begin < end; begin += kTileRows) {
            const int count = int(std::min<int64_t>(kTileRows, end - begin));
            int64_t rows[kTileRows];
            for (int i = 0; i < kTileRows; ++i) rows[i] = i < count ? gemm::source(p, c.first + begin + i) : -1;
            for (int i = 0; i < count; ++i) {
                c.factors[begin + i] = factor_of(p, rows[i]);
                if (few(c.count)) {
                    auto* const wide = reinterpret_cast<float*>(c.operands);
                    widen(p, rows[i], wide + (begin + i) * p.k, wide + c.count * p.k + (begin + i) * (p.k / kMxBlock));
                } else {
                    c.ranges[begin + i] = rows[i] < 0 ? kEmpty : range_of(p, rows[i], words);
                }
            }
            if (!few(c.count)) pack_tiles(c, rows, begin / kTileRows, words);
        }
    }

  private:
    static const uint8_t* block_of(const Args& p, int64_t row, int64_t block) {
        return p.a.data + row * p.a.row_stride + block * kBlockBytes<format>;
    }
    static uint8_t scale_of(const Args& p, int64_t row, int64_t block) {
        return static_cast<const uint8_t*>(p.scale_a.data)[row * p.scale_a.row_stride + block * p.scale_a.block_stride];
    }
    static float factor_of(const Args& p, int64_t row) {
        if (row < 0 || !p.scale_a.data || of_blocks(p.scale_a)) return 1.0f;
        return static_cast<const float*>(p.scale_a.data)[row * p.scale_a.row_stride];
    }

    // Numbers that are not finite, or subnormal, are beyond.
    static Range range_of(const Args& p, int64_t row, const Words<format>& words) {
        const int64_t blocks = p.k / kMxBlock;
        if constexpr (format == DType::bf16) {
            const __m512i magnitude = _mm512_set1_epi16(0x7FFF), one = _mm512_set1_epi16(1);
            __m512i least = _mm512_set1_epi16(-1), most = _mm512_setzero_si512();
            for (int64_t j = 0; j < blocks; ++j) {
                const __m512i x = _mm512_and_si512(words(block_of(p, row, j)), magnitude);
                least = _mm512_min_epu16(least, _mm512_sub_epi16(x, one));  // 0 becomes the largest
                most = _mm512_max_epu16(most, x);
            }
            alignas(64) uint16_t low[32], high[32];
            _mm512_store_si512(low, least);
            _mm512_store_si512(high, most);
            const int smallest = *std::min_element(low, low + 32) + 1, largest = *std::max_element(high, high + 32);
            if (largest == 0) return kEmpty;
            constexpr int kMantissa = 7;
            const Range range{(smallest >> kMantissa) - kExponentBias - kMantissa,
                              (largest >> kMantissa) - kExponentBias + 1};
            // Sums of a block are finite without its scale, too; with infinity, or NaN, they are not.
            const bool finite = range.high + kTop<beside> + kBitsOfBlock <= kMostExponent;
            return smallest >> kMantissa == 0 || !finite ? kBeyond : range;
        } else {
            __mmask32 nan = 0;
            for (int64_t j = 0; is_fp8(format) && j < blocks; ++j) words(block_of(p, row, j), fold_of(0), nan);
            if (nan) return kBeyond;
            if (!of_blocks(p.scale_a)) return {kLastBit<format>, kTop<format>};
            Range range = kEmpty;
            for (int64_t j = 0; j < blocks; ++j)
                range = united(range, range_of_block<format>(scale_of(p, row, j), block_of(p, row, j)));
            return range;
        }
    }

    // Of codes with scales of blocks their products.
    static void pack_tiles(const Chunk& c, const int64_t (&rows)[kTileRows], int64_t tile, const Words<format>& words) {
        const Args& p = c.args;
        const Sizes sizes(p.k, c.count);
        const bool by_blocks = of_blocks(p.scale_a);
        for (int64_t block = 0; block < sizes.blocks(); ++block) {
            __m512i x[kTileRows];
            for (int i = 0; i < kTileRows; ++i) {
                x[i] = _mm512_setzero_si512();
                if (rows[i] < 0) continue;
                __mmask32 nan = 0;  // of a row that is beyond
                const int exponent = by_blocks ? scale_of(p, rows[i], block) - kExponentBias : 0;
                x[i] = words(block_of(p, rows[i], block), fold_of(exponent), nan);
            }
            transpose_dwords(x);
            char* const to = c.operands + sizes.offset(block / kBlocksOfSlice, tile) +
                             block % kBlocksOfSlice * sizes.packed.tile_bytes();
            for (int i = 0; i < kTileRows; ++i) _mm512_storeu_si512(to + i * sizes.packed.row_bytes, x[i]);
        }
    }
};

}  // namespace
}  // namespace rocm_fp8::mx_gemm
