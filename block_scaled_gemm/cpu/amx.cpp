// Block-scaled FP8 GEMM by AMX: ../../common/gemm/cpu/amx.h.
//
//     A          a chunk of rows is packed once, by all threads: [block of 128 k][16 rows]
//     <= 32 rows 16 columns of 4 or 2 blocks are decoded into the nearest cache: few streams of weights, long pieces of
//                each. An accumulator is a block's sum
//     more rows  kWide columns of a block are decoded, then multiplied with all rows of the chunk in tiles of 32 x 32.
//                Sums over blocks stay in the second cache, [16 rows][kWide][16], and are turned at the end
//
// Order of the sum, for every m, tile and thread count: along the 128 k of a block in AMX's order, then
// sum = fma(scale_a scale_b, that, sum), block after block.
#include "../../common/gemm/cpu/amx.h"
#include "kernel.h"

namespace rocm_fp8::block_scaled_gemm {
namespace {

template <DType format, DType out_type>
class TileGemm {
    using G = GemmLanes<Avx512, format>;
    // A chunk's rows come from the last cache once for so many columns.
    static constexpr int kWide = 128, kFewTiles = 2;
    static constexpr int kPrefetch = 1024;  // bytes ahead in a row of weights, of more rows
    static_assert(kTileK == kBlock);

    // Of a row among 16; of fewer the last one has room for PackedRows::kBehind.
    static int64_t operand_bytes(int64_t k) { return blocks_of(k) * kDecodedRow + PackedRows::kBehind; }
    static int64_t tiles_of(const Chunk& a) { return (a.count + kTileRows - 1) / kTileRows; }

    static void decode_rows(const Args& p, const Chunk& a, int64_t begin, int64_t end) {
        static thread_local KeptMemory memory;
        const int64_t blocks = blocks_of(p.k), tiles = tiles_of(a);
        const PackedRows packed(a.count);
        auto* const scales = reinterpret_cast<float*>(memory.at_least(blocks * sizeof(float)));
        for (; begin < end; begin += kTileRows) {
            const int count = int(std::min<int64_t>(kTileRows, end - begin));
            const int64_t first = a.first + begin, tile = begin / kTileRows;
            const Codes codes = rows_of(p.a, first, count, p.k);
            for (int64_t block = 0; block < blocks; ++block)
                pack_block<format>(codes.data + block * kBlock, codes.stride, length_of(p, block), count, packed,
                                   a.operands + (block * tiles + tile) * packed.block_bytes());
            for (int i = 0; i < kTileRows; ++i) {
                if (i < count) fill_scales(p.scale_a, first + i, blocks, scales);
                for (int64_t block = 0; block < blocks; ++block)
                    a.scales[(block * tiles + tile) * kTileRows + i] = i < count ? scales[block] : 0.0f;
            }
        }
    }

    static int64_t length_of(const Args& p, int64_t block) { return std::min<int64_t>(kBlock, p.k - block * kBlock); }

    // --- sums ---

    // 16 rows by 16 columns of a block.
    static void add(const float (*part)[kTileRows], const float* scale_a, const float* scale_b, float* sums,
                    bool first) {
        const __m512 of_rows = _mm512_loadu_ps(scale_a);
        for (int n = 0; n < kTileRows; ++n) {
            float* const sum = sums + n * kTileRows;
            const __m512 scale = _mm512_mul_ps(of_rows, _mm512_set1_ps(scale_b[n]));
            const __m512 before = first ? _mm512_setzero_ps() : _mm512_load_ps(sum);
            _mm512_store_ps(sum, _mm512_fmadd_ps(scale, _mm512_load_ps(part[n]), before));
        }
    }

    static void take_parts(float (*parts)[kTileRows][kTileRows]) {
        each_constant<4>([&](auto i) { store_tile<i()>(parts[i], kTileRowBytes); });
    }

    // The four accumulators: M tiles of rows by 4 / M tiles of columns, or blocks.
    static void zero_parts() {
        each_constant<4>([](auto i) { zero_tile<i()>(); });
    }

    // --- few rows ---

    // 16 columns at most, from n0. While N blocks are multiplied, the next N are decoded, and the sums take those before.
    template <int M>
    static void narrow_columns(const Args& p, const Chunk& a, Codes b, int64_t n0, int count, float* sums) {
        constexpr int N = 4 / M;
        constexpr int64_t kApart = kTileRows * kDecodedRow;
        const PackedRows packed(a.count);
        const int64_t rows_apart = M * packed.block_bytes();
        alignas(64) static thread_local char weights[2][N * kApart];
        static thread_local KeptMemory memory;
        alignas(64) float parts[4][kTileRows][kTileRows];
        const int64_t blocks = blocks_of(p.k);
        const float* scales[kTileRows];
        scale_rows(p.scale_b, n0, count, blocks,
                   reinterpret_cast<float*>(memory.at_least(kTileRows * blocks * sizeof(float))), scales);
        const auto live = [&](int64_t from) { return int(std::min<int64_t>(N, blocks - from)); };
        const auto decode = [&](int64_t from, int begin, int end) {
            char* const to = weights[from / N % 2];
            for (int j = begin; j < std::min(end, count); ++j)
                for (int n = 0; n < live(from); ++n) {
                    const uint8_t* const codes = b.data + j * b.stride + (from + n) * kBlock;
                    stream_block<format>(codes, kTileRows * b.stride, length_of(p, from + n),
                                         to + n * kApart + j * kDecodedRow);
                }
        };
        const auto add_parts = [&](int64_t from) {
            for (int n = 0; n < live(from); ++n) {
                float scale_b[kTileRows] = {};
                for (int j = 0; j < count; ++j) scale_b[j] = scales[j][from + n];
                for (int m = 0; m < M; ++m)
                    add(parts[m * N + n], a.scales + ((from + n) * M + m) * kTileRows, scale_b,
                        sums + m * kWide * kTileRows, from + n == 0);
            }
        };
        decode(0, 0, kTileRows);
        int64_t from = 0;
        for (; from < blocks; from += N) {
            zero_parts();
            multiply_block<M, N>(weights[from / N % 2], kApart, packed, a.operands + from * rows_apart, rows_apart,
                                 live(from), [&](int t) {
                                     constexpr int kColumnsOfStep = kTileRows / kTilesOfBlock;
                                     if (from + N < blocks)
                                         decode(from + N, t * kColumnsOfStep, (t + 1) * kColumnsOfStep);
                                     if (t == 0 && from > 0) add_parts(from - N);
                                 });
            take_parts(parts);
        }
        add_parts(from - N);
    }

    // --- more rows ---

    // A block of M tiles of rows by `count` columns, 4 / M tiles of them at a time.
    template <int M>
    static void wide_rows(const char* weights, const char* rows, const float* scale_a, const float* scale_b, int count,
                          float* sums, bool first) {
        constexpr int N = 4 / M;
        alignas(64) float parts[4][kTileRows][kTileRows];
        for (int n0 = 0; n0 < count; n0 += N * kTileRows) {
            zero_parts();
            multiply_block<M, N>(weights + n0 * kDecodedRow, kTileRows * kDecodedRow, PackedRows(kTileRows), rows, 0, N,
                                 [](int) {});
            take_parts(parts);
            for (int m = 0; m < M; ++m)
                for (int i = 0; i < N; ++i) {
                    const int n = n0 + i * kTileRows;
                    add(parts[m * N + i], scale_a + m * kTileRows, scale_b + n, sums + (m * kWide + n) * kTileRows,
                        first);
                }
        }
    }

    // At most kWide columns from n0; b: their codes. Columns beyond the last use stale codes and are dropped at the end.
    static void wide_columns(const Args& p, const Chunk& a, Codes b, int64_t n0, int count, float* sums) {
        alignas(64) static thread_local char weights[kWide * kDecodedRow];
        static thread_local KeptMemory memory;
        const int64_t blocks = blocks_of(p.k), tiles = tiles_of(a);
        const float* scales[kWide];
        scale_rows(p.scale_b, n0, count, blocks,
                   reinterpret_cast<float*>(memory.at_least(kWide * blocks * sizeof(float))), scales);
        float scale_b[kWide] = {};
        for (int64_t block = 0; block < blocks; ++block) {
            for (int n = 0; n < count; ++n) {
                const uint8_t* const codes = b.data + n * b.stride + block * kBlock;
                for (int i = 0; i < kBlock; i += 64) prefetch(codes + kPrefetch + i);
                decode_block<format>(codes, length_of(p, block), weights + n * kDecodedRow);
                scale_b[n] = scales[n][block];
            }
            for (int64_t m = 0; m < tiles; m += 2) {
                const char* const rows = a.operands + (block * tiles + m) * PackedRows(kTileRows).block_bytes();
                const float* const scale_a = a.scales + (block * tiles + m) * kTileRows;
                const auto multiply = m + 1 < tiles ? wide_rows<2> : wide_rows<1>;
                multiply(weights, rows, scale_a, scale_b, count, sums + m * kWide * kTileRows, block == 0);
            }
        }
    }

    // --- both ---

    static void finish(const Args& p, const Chunk& a, const float* sums, int64_t n0, int count) {
        alignas(64) float values[kTileRows][kTileColumns];
        for (int n = 0; n < count; n += kTileColumns) {
            const int columns = std::min(kTileColumns, count - n);
            float bias[kTileColumns] = {};
            for (int j = 0; p.bias.data && j < columns; ++j) bias[j] = gemm::bias_at(p.bias, n0 + n + j);
            for (int64_t row = 0; row < a.count; row += kTileRows) {
                turn_sums(sums + (row / kTileRows * kWide + n) * kTileRows, values);
                for (int i = 0; i < std::min<int64_t>(kTileRows, a.count - row); ++i) {
                    if (p.bias.data)  // without one, -0 stays -0
                        for (int j = 0; j < kTileColumns; ++j) values[i][j] += bias[j];
                    const int64_t at_row = (a.first + row + i) * p.out.row_stride + n0 + n;
                    G::template store_results<out_type>(at<out_type>(p.out.data, at_row), values[i], columns);
                }
            }
        }
    }

    static void columns(const Args& p, const Chunk& a, int64_t begin, int64_t end) {
        static thread_local KeptMemory memory;
        const TilesInUse in_use;
        const int64_t tiles = tiles_of(a);
        auto* const sums = reinterpret_cast<float*>(memory.at_least(tiles * kWide * kTileRows * sizeof(float)));
        for (; begin < end; begin += kWide) {
            const int count = int(std::min<int64_t>(kWide, end - begin));
            const Codes codes = rows_of(p.b, begin, count, p.k);
            if (tiles <= kFewTiles) {
                const auto narrow = tiles == 1 ? narrow_columns<1> : narrow_columns<2>;
                for (int n = 0; n < count; n += kTileRows)
                    narrow(p, a, {codes.data + n * codes.stride, codes.stride}, begin + n,
                           std::min(kTileRows, count - n), sums + n * kTileRows);
            } else {
                wide_columns(p, a, codes, begin, count, sums);
            }
            finish(p, a, sums, begin, count);
        }
    }

  public:
    static Kernel kernel() { return {operand_bytes, decode_rows, columns, kTileRows, kTileColumns, kWide}; }
};

template <DType format>
Kernel pick_of_tiles(DType out) {
    return out == DType::f32   ? TileGemm<format, DType::f32>::kernel()
           : out == DType::f16 ? TileGemm<format, DType::f16>::kernel()
                               : TileGemm<format, DType::bf16>::kernel();
}

}  // namespace

Kernel kernel_amx(const Args& args) {
    return args.format == DType::e4m3fn ? pick_of_tiles<DType::e4m3fn>(args.out.dtype)
                                        : pick_of_tiles<DType::e4m3fnuz>(args.out.dtype);
}

}  // namespace rocm_fp8::block_scaled_gemm
