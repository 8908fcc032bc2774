// Int8 GEMM by AMX: ../../common/cpu/amx.h.
//
//     A          a chunk of rows is packed once, by all threads: [kBlockK of k][16 rows], in tiles of 64 k
//     <= 32 rows tiles of B come from its rows as they lie in memory, 32 columns along all of K
//     more rows  kWide columns of kBlockK are copied, tile by tile, to the nearest cache, then multiplied with all rows of
//                the chunk in tiles of 32 x 32. Sums over blocks stay in the second cache, [16 rows][kWide][16]
//
// Products are made transposed, as in ../../common/gemm/cpu/amx.h, and turned at the end.
#include "../../common/cpu/amx.h"
#include "kernel.h"

namespace rocm_fp8::int8_gemm {
namespace {

template <DType out_type>
class TileGemm {
    static constexpr int kTileK = 64, kBlockK = 512, kTilesOfBlock = kBlockK / kTileK;
    static constexpr int kTileColumns = 2 * kTileRows, kWide = 64, kFewTiles = 2;
    static constexpr int kPrefetch = 1024;  // bytes ahead in a row of B
    using Columns = ColumnsOf<kTileColumns>;

    static const int8_t* rows_of(const Operand& x, int64_t batch, int64_t row) {
        return reinterpret_cast<const int8_t*>(x.data) + batch * x.group_stride + row * x.row_stride;
    }
    static int64_t tiles_of_k(int64_t k) { return (k + kTileK - 1) / kTileK; }
    static int64_t tiles_of(const Chunk& a) { return (a.count + kTileRows - 1) / kTileRows; }
    // Tiles of rows of A lie block after block, those of a block's rows next to each other.
    static char* packed(const Args& p, const Chunk& a, int64_t tile, int64_t t) {
        const int64_t block = t / kTilesOfBlock, tiles = tiles_of(a);
        const int64_t along = std::min<int64_t>(kTilesOfBlock, tiles_of_k(p.k) - block * kTilesOfBlock);
        return a.operands + (block * kTilesOfBlock * tiles + tile * along + t % kTilesOfBlock) * kTileBytes;
    }

    static int64_t operand_bytes(int64_t k) { return tiles_of_k(k) * kTileRowBytes; }

    // A tile's rows as they lie: `count` of them, the rest and what is behind k being 0.
    static void copy_tile(const int8_t* codes, int64_t stride, int count, int64_t length, char* to) {
        for (int i = 0; i < kTileRows; ++i, to += kTileRowBytes) {
            const __mmask64 there = i >= count ? 0 : length >= kTileK ? ~0ull : (1ull << length) - 1;
            _mm512_store_si512(to, _mm512_maskz_loadu_epi8(there, codes + i * stride));
        }
    }

    static void decode_rows(const Args& p, const Chunk& a, int64_t begin, int64_t end) {
        alignas(64) char rows[kTileBytes];
        for (; begin < end; begin += kTileRows) {
            const int count = int(std::min<int64_t>(kTileRows, end - begin));
            const int8_t* const codes = rows_of(p.a, a.batch, a.first + begin);
            for (int64_t t = 0; t < tiles_of_k(p.k); ++t) {
                copy_tile(codes + t * kTileK, p.a.row_stride, count, p.k - t * kTileK, rows);
                pack_tile(rows, kTileRowBytes, packed(p, a, begin / kTileRows, t));
            }
        }
    }

    // --- few rows ---

    // kTileColumns columns at most. sums: [M][column][row].
    template <int M>
    static void narrow_columns(const Args& p, const Chunk& a, const int8_t* b, int count, int32_t* sums) {
        constexpr int N = kTileColumns / kTileRows;
        alignas(64) char part[kTileBytes];
        each_constant<M * N>([](auto i) { zero_tile<i()>(); });
        for (int64_t t = 0; t < tiles_of_k(p.k); ++t) {
            each_constant<M>([&](auto m) { load_tile<4 + m()>(packed(p, a, m, t), kTileRowBytes); });
            each_constant<N>([&](auto n) {
                const int columns = count - n * kTileRows;
                if (columns <= 0) return;
                const int8_t* const codes = b + n * kTileRows * p.b.row_stride + t * kTileK;
                for (int i = 0; i < columns && i < kTileRows; ++i) {
                    __builtin_prefetch(codes + i * p.b.row_stride + kPrefetch);
                    // The next columns', early enough for page-table walks.
                    prefetch(codes + (i + kTileColumns) * p.b.row_stride);
                }
                if (columns >= kTileRows && p.k - t * kTileK >= kTileK) {
                    load_tile<6 + n()>(codes, p.b.row_stride);
                } else {
                    copy_tile(codes, p.b.row_stride, columns, p.k - t * kTileK, part);
                    load_tile<6 + n()>(part, kTileRowBytes);
                }
                each_constant<M>([&](auto m) { multiply_int8_tiles<m() * N + n(), 6 + n(), 4 + m()>(); });
            });
        }
        each_constant<M * N>([&](auto i) { store_tile<i()>(sums + i * kTileRows * kTileRows, kTileRowBytes); });
    }

    // --- more rows ---

    // A block of M tiles of rows by two of columns, added to sums.
    template <int M>
    static void wide_block(const char* weights, const char* rows, int along, int32_t* sums, bool first) {
        constexpr int N = kTileColumns / kTileRows;
        const auto each_sum = [&](auto use) {
            each_constant<M>([&](auto m) {
                each_constant<N>([&](auto n) {
                    use(std::integral_constant<int, m() * N + n()>(), sums + (m * kWide + n * kTileRows) * kTileRows);
                });
            });
        };
        each_sum([&](auto i, int32_t* sum) {
            if (first) zero_tile<i()>();
            else load_tile<i()>(sum, kTileRowBytes);
        });
        for (int t = 0; t < along; ++t) {
            each_constant<M>([&](auto m) { load_tile<4 + m()>(rows + (m * along + t) * kTileBytes, kTileRowBytes); });
            each_constant<N>([&](auto n) {
                load_tile<6 + n()>(weights + (n * kTilesOfBlock + t) * kTileBytes, kTileRowBytes);
                each_constant<M>([&](auto m) { multiply_int8_tiles<m() * N + n(), 6 + n(), 4 + m()>(); });
            });
        }
        each_sum([&](auto i, int32_t* sum) { store_tile<i()>(sum, kTileRowBytes); });
    }

    // kWide columns at most. sums: [tile of rows][column][row].
    static void wide_columns(const Args& p, const Chunk& a, const int8_t* b, int count, int32_t* sums) {
        alignas(64) static thread_local char weights[kWide / kTileRows * kTilesOfBlock * kTileBytes];
        const int64_t tiles = tiles_of(a);
        for (int64_t t = 0; t < tiles_of_k(p.k); t += kTilesOfBlock) {
            const int along = int(std::min<int64_t>(kTilesOfBlock, tiles_of_k(p.k) - t));
            for (int n = 0; n < count; n += kTileRows)
                for (int i = 0; i < along; ++i)
                    copy_tile(b + n * p.b.row_stride + (t + i) * kTileK, p.b.row_stride, count - n,
                              p.k - (t + i) * kTileK, weights + (n / kTileRows * kTilesOfBlock + i) * kTileBytes);
            for (int64_t m = 0; m < tiles; m += 2)
                for (int n = 0; n < count; n += kTileColumns) {
                    const char* const columns = weights + n / kTileRows * kTilesOfBlock * kTileBytes;
                    int32_t* const to = sums + (m * kWide + n) * kTileRows;
                    const auto multiply = m + 1 < tiles ? wide_block<2> : wide_block<1>;
                    multiply(columns, packed(p, a, m, t), along, to, t == 0);
                }
        }
    }

    // --- both ---

    // Of a tile of rows: [column][row] sums of kTileColumns.
    static void finish(const Args& p, const Chunk& a, int64_t tile, const Columns& columns, const int32_t* sums) {
        alignas(64) int32_t totals[kTileRows][kTileColumns];
        for (int half = 0; half < kTileColumns; half += kTileRows) {
            __m512i x[16];
            for (int i = 0; i < 16; ++i) x[i] = _mm512_load_si512(sums + (half + i) * kTileRows);
            transpose_dwords(x);
            for (int i = 0; i < 16; ++i) _mm512_store_si512(totals[i] + half, x[i]);
        }
        const int64_t row = tile * kTileRows;
        store_rows<Avx512, out_type>(p, a.batch, a.first + row, std::min<int64_t>(kTileRows, a.count - row), columns,
                                     totals[0]);
    }

    static void columns(const Args& p, const Chunk& a, int64_t begin, int64_t end) {
        static thread_local KeptMemory memory;
        const TilesInUse in_use;
        const int64_t tiles = tiles_of(a);
        const bool few = tiles <= kFewTiles;
        const int wide = few ? kTileColumns : kWide;
        auto* const sums = reinterpret_cast<int32_t*>(memory.at_least(tiles * kWide * kTileRows * sizeof(int32_t)));
        for (int64_t n0 = begin; n0 < end; n0 += wide) {
            const int count = int(std::min<int64_t>(wide, end - n0));
            const int8_t* const b = rows_of(p.b, a.batch, n0);
            if (!few) wide_columns(p, a, b, count, sums);
            else if (tiles == 1) narrow_columns<1>(p, a, b, count, sums);
            else narrow_columns<2>(p, a, b, count, sums);
            for (int n = 0; n < count; n += kTileColumns) {
                const Columns of_part(p.epilogue, a.batch, n0 + n, std::min(kTileColumns, count - n));
                for (int64_t tile = 0; tile < tiles; ++tile)
                    finish(p, a, tile, of_part, sums + (tile * wide + n) * kTileRows);
            }
        }
    }

  public:
    static Kernel kernel() { return {operand_bytes, decode_rows, columns, kTileRows, kTileColumns}; }
};

}  // namespace

Kernel kernel_amx(const Args& args) {
    switch (args.epilogue.out.dtype) {
        case DType::i8: return TileGemm<DType::i8>::kernel();
        case DType::f32: return TileGemm<DType::f32>::kernel();
        case DType::f16: return TileGemm<DType::f16>::kernel();
        default: return TileGemm<DType::bf16>::kernel();
    }
}

}  // namespace rocm_fp8::int8_gemm
