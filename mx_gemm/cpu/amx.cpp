// MX weights by AMX, and for one or two rows with AVX-512: the same bits.
//
// Bytes and floor: kernel.h's. More than 32 rows are bound by products: 16 x 16 x 32 of them take AMX 16 cycles.
//
//     A          a chunk of rows is packed once, by all threads: packed_rows.h
//     1, 2 rows  16 or 32 columns at a time, decoded in registers: pairs.h
//     <= 32      32 columns of 256 k (a slice) become bfloat16, with their scales, while those before are multiplied;
//                sums stay in the accumulators along all of K
//     more       128 columns by all rows of the chunk, slice after slice; their sums stay in the second cache
//
// Order of a sum, for every number of rows: that of pairs.h in a block, then block after block. A block's scale is a
// power of two. So it may multiply the weights instead of the block's sum: the bits are the same, unless a number on
// the way becomes subnormal or infinite. Where ranges of exponents fit, none can (words.h). Other rows and columns are
// multiplied by pairs.h afterwards.
//
// Files: amx.h (for the launcher), words.h (decoding, ranges), packed_rows.h, pairs.h, amx.cpp.
// Today's limit, many rows: on the journal's machine loads of tiles and products take turns, and fill the time.
// Steps and figures: docs/journal/mx_gemm.md.
#include "amx.h"

#include <algorithm>

#include "../../common/cpu/kept_memory.h"
#include "packed_rows.h"
#include "pairs.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr int kWide = 128, kPieceColumns = kTileColumns;
constexpr int64_t kPieceBytes = kBlocksOfSlice * kPieceColumns * kTileRowBytes;

template <DType format_a, DType format>
class Tiles {
    using A = RowsOfA<format_a, format>;

    // Of columns: as bytes; as what adds an exponent to words, twice in a dword; their numbers' ranges.
    class Scales {
      public:
        Scales(const Chunk& c, int64_t columns)
            : c(c),
              blocks(c.args.k / kMxBlock),
              row((blocks + 63) / 64 * 64),
              bytes(reinterpret_cast<uint8_t*>(kept_bytes().at_least(columns * row))),
              folds(reinterpret_cast<uint32_t*>(kept_folds().at_least(columns * row * sizeof(uint32_t)))) {}

        void read(int64_t n0, int count) {
            const gemm::Scales& s = c.scale_b;
            for (int j = 0; j < count; ++j) {
                const uint8_t* const from = static_cast<const uint8_t*>(s.data) + (n0 + j) * s.row_stride;
                uint8_t* const to = bytes + j * row;
                for (int64_t i = 0; i < blocks; i += kLine) prefetch(from + count * s.row_stride + i);
                if (s.block_stride == 1) std::memcpy(to, from, blocks);
                else
                    for (int64_t i = 0; i < blocks; ++i) to[i] = from[i * s.block_stride];
            }
        }
        // Of column j of those that were read.
        Range fold(int j, const uint8_t* codes) {
            const uint8_t* const of_column = bytes + j * row;
            __m512i least = _mm512_set1_epi32(255), most = _mm512_setzero_si512();
            for (int64_t i = 0; i < blocks; i += 16) {
                const __mmask16 live = blocks - i < 16 ? __mmask16((1u << (blocks - i)) - 1) : __mmask16(0xFFFF);
                const __m512i x =
                    _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of_column + i)));
                least = _mm512_mask_min_epu32(least, live, least, x);
                most = _mm512_mask_max_epu32(most, live, most, x);
                const __m512i added = _mm512_slli_epi32(_mm512_sub_epi32(x, _mm512_set1_epi32(kExponentBias)), 7);
                _mm512_storeu_si512(folds + j * row + i,
                                    _mm512_mask_blend_epi16(0xAAAAAAAA, added, _mm512_slli_epi32(added, 16)));
            }
            const int low = int(_mm512_reduce_min_epu32(least)), high = int(_mm512_reduce_max_epu32(most));
            constexpr int kLowest = kLeastNormal - kLastBit<format> + kExponentBias,
                          kHighest = kMostExponent - kTop<format> + kExponentBias;
            if (low >= kLowest && high <= kHighest)
                return {low - kExponentBias + kLastBit<format>, high - kExponentBias + kTop<format>};
            Range range = kEmpty;
            for (int64_t i = 0; i < blocks; ++i)
                range = united(range, range_of_block<format>(of_column[i], codes + i * kBlockBytes<format>));
            return range;
        }
        const uint8_t* of(int j) const { return bytes + j * row; }
        __m512i fold_of(int j, int64_t block) const { return _mm512_set1_epi32(int(folds[j * row + block])); }

      private:
        static KeptMemory& kept_bytes() {
            static thread_local KeptMemory memory;
            return memory;
        }
        static KeptMemory& kept_folds() {
            static thread_local KeptMemory memory;
            return memory;
        }
        const Chunk& c;
        const int64_t blocks, row;
        uint8_t* const bytes;
        uint32_t* const folds;
    };

    // --- products ---

    // The blocks of a slice: M tiles of rows by two of columns, whose accumulators go on.
    template <int M, class Between>
    [[gnu::always_inline]] static void multiply(const char* weights, const char* rows, const Sizes& sizes, int blocks,
                                                const Between& between) {
        for (int j = 0; j < blocks; ++j) {
            each_constant<M>([&](auto m) {
                load_tile<4 + m()>(rows + m * sizes.slice_bytes() + j * sizes.packed.tile_bytes(),
                                   sizes.packed.row_bytes);
            });
            each_constant<2>([&](auto n) {
                load_tile<6 + n()>(weights + (2 * j + n) * kTileBytes, kTileRowBytes);
                each_constant<M>([&](auto m) { multiply_bf16_tiles<m() * 2 + n(), 6 + n(), 4 + m()>(); });
            });
            between();
        }
    }

    // `count` columns from n0, at most `wide`. sums: [16 rows][wide][16]. nan: not 0 of columns with a code of it.
    static void sum_columns(const Chunk& c, Scales& scales, int64_t n0, int count, float* sums, int wide,
                            __mmask32* nan) {
        const Args& p = c.args;
        const Sizes sizes(p.k, c.count);
        alignas(64) static thread_local char weights[2][kPieceBytes];
        const Words<format> words;
        const int parts = (count + kPieceColumns - 1) / kPieceColumns;
        const int64_t pieces = sizes.slices() * parts, pairs = (sizes.tiles() + 1) / 2;
        CodesAhead next(c.b + (n0 + count) * p.b.row_stride, p.b.row_stride, sizes.blocks() * kBlockBytes<format>);
        // A column of piece i.
        const auto decode = [&](int64_t i, int j) {
            const int64_t slice = i / parts;
            const int column = int(i % parts) * kPieceColumns + j;
            if (column >= count) return;
            constexpr int64_t kSliceCodes = kBlocksOfSlice * kBlockBytes<format>;
            const uint8_t* const codes = p.b.row_stride * (n0 + column) + c.b + slice * kSliceCodes;
            char* const to = weights[i % 2] + j * kTileRowBytes;
            const int blocks = int(sizes.blocks_of(slice));
            __mmask32 of_column = 0;
            for (int64_t at = 0; at < kSliceCodes; at += kLine) {
                __builtin_prefetch(codes + kSliceCodes + at);
                next.fetch();
            }
            for (int block = 0; block < blocks; ++block)
                _mm512_store_si512(to + block * 2 * kTileBytes,
                                   words(codes + block * kBlockBytes<format>,
                                         scales.fold_of(column, slice * kBlocksOfSlice + block), of_column));
            nan[column] |= of_column;
        };
        for (int j = 0; j < kPieceColumns; ++j) decode(0, j);
        for (int64_t i = 0; i < pieces; ++i) {
            const int64_t slice = i / parts;
            const int blocks = int(sizes.blocks_of(slice)), first = int(i % parts) * kPieceColumns;
            const int64_t steps = pairs * blocks;
            int decoded = i + 1 < pieces ? 0 : kPieceColumns;
            int64_t due = 0;
            const auto between = [&] {
                due += kPieceColumns;
                for (; decoded < kPieceColumns && decoded * steps < due; ++decoded) decode(i + 1, decoded);
            };
            for (int64_t tile = 0; tile < sizes.tiles(); tile += 2) {
                const char* const rows = c.operands + sizes.offset(slice, tile);
                float* const to = sums + (tile * wide + first) * kTileRows;
                const auto of = [&](int m, int n) { return to + (m * wide + n * kTileRows) * kTileRows; };
                const auto run = [&](auto M) {
                    const bool begins = slice == 0, kept = pairs == 1 && parts == 1;
                    each_constant<2 * M()>([&](auto t) {
                        if (begins) zero_tile<t()>();
                        else if (!kept) load_tile<t()>(of(t() / 2, t() % 2), kTileRowBytes);
                    });
                    multiply<M()>(weights[i % 2], rows, sizes, blocks, between);
                    each_constant<2 * M()>([&](auto t) {
                        if (!kept || i + 1 == pieces) store_tile<t()>(of(t() / 2, t() % 2), kTileRowBytes);
                    });
                };
                if (tile + 1 < sizes.tiles()) run(std::integral_constant<int, 2>());
                else run(std::integral_constant<int, 1>());
            }
        }
    }

    // --- results ---

    // Rows that are computed again, one at a time.
    class Again {
      public:
        explicit Again(const Chunk& c) : c(c) {}
        void operator()(int64_t row, int64_t n0, int count, const float* scales, float* sums) {
            static thread_local KeptMemory memory;
            const Args& p = c.args;
            auto* const wide = reinterpret_cast<float*>(memory.at_least((p.k + p.k / kMxBlock) * sizeof(float)));
            if (held != row) A::widen(p, gemm::source(p, c.first + row), wide, wide + p.k);
            held = row;
            multiply_pairs<1, 1, format>({wide, of_blocks(p.scale_a) ? wide + p.k : nullptr}, c.b + n0 * p.b.row_stride,
                                         p.b.row_stride, count, scales, p.k, sums, 0);
        }

      private:
        const Chunk& c;
        int64_t held = -1;
    };

    // values: of kTileColumns columns from n0, of which `count` exist.
    static void store(const Chunk& c, int64_t row, int64_t n0, int count, const float* bias, float* values) {
        using G = GemmLanes<Avx512, DType::e4m3fn>;
        const Args& p = c.args;
        const float factor = c.factors[row];
        for (int j = 0; j < kTileColumns; ++j) {
            values[j] *= factor;
            if (p.bias.data) values[j] += bias[j];  // without one, -0 stays -0
        }
        const int64_t at_row = (c.first + row) * p.out.row_stride + n0;
        const DType out = p.out.dtype;
        if (out == DType::f32) G::template store_results<DType::f32>(at<DType::f32>(p.out.data, at_row), values, count);
        else if (out == DType::f16)
            G::template store_results<DType::f16>(at<DType::f16>(p.out.data, at_row), values, count);
        else G::template store_results<DType::bf16>(at<DType::bf16>(p.out.data, at_row), values, count);
    }

    static void finish(const Chunk& c, const Scales& scales, const Range* of_columns, const float* sums, int wide,
                       int64_t n0, int count) {
        static thread_local KeptMemory memory;
        const Sizes sizes(c.args.k, c.count);
        auto* const spread =
            reinterpret_cast<float*>(memory.at_least(2 * kLanes * sizes.blocks() * int64_t(sizeof(float))));
        alignas(64) float values[kTileRows][kTileColumns];
        Again again(c);
        for (int n = 0; n < count; n += kTileColumns) {
            const int columns = std::min(kTileColumns, count - n);
            bool is_spread = false;
            Range ranges[2] = {kEmpty, kEmpty};
            for (int j = 0; j < columns; ++j) ranges[j / kLanes] = united(ranges[j / kLanes], of_columns[n + j]);
            float bias[kTileColumns] = {};
            for (int j = 0; c.bias.data && j < columns; ++j) bias[j] = gemm::bias_at(c.bias, n0 + n + j);
            for (int64_t row = 0; row < c.count; ++row) {
                if (row % kTileRows == 0) turn_sums(sums + (row / kTileRows * wide + n) * kTileRows, values);
                float* const of_row = values[row % kTileRows];
                for (int half = 0; half * kLanes < columns; ++half) {
                    if (fits(c.ranges[row], ranges[half])) continue;
                    if (!is_spread)
                        for (int i = 0; i * kLanes < columns; ++i)
                            spread_scales(scales.of(n + i * kLanes), sizes.blocks(),
                                          spread + i * kLanes * sizes.blocks());
                    is_spread = true;
                    again(row, n0 + n + half * kLanes, std::min(kLanes, columns - half * kLanes),
                          spread + half * kLanes * sizes.blocks(), of_row + half * kLanes);
                }
                store(c, row, n0 + n, columns, bias, of_row);
            }
        }
    }

    static void few_columns(const Chunk& c, int64_t begin, int64_t end) {
        static thread_local KeptMemory memory;
        const Args& p = c.args;
        const int64_t blocks = p.k / kMxBlock;
        auto* const spread = reinterpret_cast<float*>(memory.at_least(2 * kLanes * blocks * int64_t(sizeof(float))));
        const auto* const wide = reinterpret_cast<const float*>(c.operands);
        const WideRows rows{wide, of_blocks(p.scale_a) ? wide + c.count * p.k : nullptr};
        Scales scales(c, kTileColumns);
        alignas(64) float sums[kFewestRows][kTileColumns] = {};
        for (; begin < end; begin += kTileColumns) {
            const int columns = int(std::min<int64_t>(kTileColumns, end - begin));
            scales.read(begin, columns);
            for (int n = 0; n < columns; n += kLanes) spread_scales(scales.of(n), blocks, spread + n * blocks);
            const auto multiply = [&](auto M) {
                constexpr int N = format == DType::e2m1 ? 2 : 1;
                for (int n = 0; n < columns; n += N * kLanes)
                    multiply_pairs<M(), N, format>(rows, c.b + (begin + n) * p.b.row_stride, p.b.row_stride,
                                                   columns - n, spread + n * blocks, p.k, sums[0] + n, kTileColumns);
            };
            if (c.count == 1) multiply(std::integral_constant<int, 1>());
            else multiply(std::integral_constant<int, 2>());
            float bias[kTileColumns] = {};
            for (int j = 0; c.bias.data && j < columns; ++j) bias[j] = gemm::bias_at(c.bias, begin + j);
            for (int64_t row = 0; row < c.count; ++row) store(c, row, begin, columns, bias, sums[row]);
        }
    }

    static void columns(const Chunk& c, int64_t begin, int64_t end) {
        if (A::few(c.count)) return few_columns(c, begin, end);
        static thread_local KeptMemory memory;
        const TilesInUse in_use;
        const Sizes sizes(c.args.k, c.count);
        const int wide = sizes.tiles() <= 2 ? kPieceColumns : kWide;
        auto* const sums =
            reinterpret_cast<float*>(memory.at_least((sizes.tiles() + 1) * wide * kTileRows * int64_t(sizeof(float))));
        Scales scales(c, wide);
        for (; begin < end; begin += wide) {
            const int count = int(std::min<int64_t>(wide, end - begin));
            Range ranges[kWide];
            __mmask32 nan[kWide] = {};
            scales.read(begin, count);
            for (int j = 0; j < count; ++j) ranges[j] = scales.fold(j, c.b + (begin + j) * c.args.b.row_stride);
            sum_columns(c, scales, begin, count, sums, wide, nan);
            for (int j = 0; j < count; ++j)
                if (nan[j]) ranges[j] = kBeyond;
            finish(c, scales, ranges, sums, wide, begin, count);
        }
    }

  public:
    static TileKernel kernel() { return {A::operand_bytes, A::pack, columns}; }
};

template <DType format_a>
TileKernel pick_tiles(DType format_b) {
    if constexpr (format_a != DType::e4m3fnuz)
        if (format_b == DType::e4m3fn) return Tiles<format_a, DType::e4m3fn>::kernel();
    if constexpr (format_a != DType::e4m3fn)
        if (format_b == DType::e4m3fnuz) return Tiles<format_a, DType::e4m3fnuz>::kernel();
    return Tiles<format_a, DType::e2m1>::kernel();
}

}  // namespace

TileKernel kernel_amx(const Args& args) {
    switch (args.format_a) {
        case DType::e2m1: return Tiles<DType::e2m1, DType::e2m1>::kernel();
        case DType::e4m3fn: return pick_tiles<DType::e4m3fn>(args.format_b);
        case DType::e4m3fnuz: return pick_tiles<DType::e4m3fnuz>(args.format_b);
        default: return pick_tiles<DType::bf16>(args.format_b);
    }
}

}  // namespace rocm_fp8::mx_gemm
