// Skinny FP8 GEMM by AMX: ../../common/gemm/cpu/amx.h.
//
// 32 columns of 256 k are decoded into the nearest cache while those before are multiplied, in 2 or 4 accumulators, which
// keep their sums along all of K. The rows of A are packed once a call: [block of 128 k][16 rows].
//
// Order of the sum, for every m and thread count: along k in AMX's order.
#include "../../common/gemm/cpu/amx.h"
#include "kernel.h"

namespace rocm_fp8::skinny_gemm {
namespace {

template <DType format>
class TileGemm {
    static constexpr int kBlocksAtOnce = 2;
    static constexpr int64_t kBlockBytes = kTileColumns * kDecodedRow, kPieceBytes = kBlocksAtOnce * kBlockBytes;

    static int64_t blocks_of(const Args& p) { return (p.k + kTileK - 1) / kTileK; }
    static int64_t length_of(const Args& p, int64_t block) { return std::min<int64_t>(kTileK, p.k - block * kTileK); }
    static int64_t tiles_of(const Args& p) { return (p.m + kTileRows - 1) / kTileRows; }

    static void decode_rows(const Args& p, char* operands, bool*) {
        const int64_t tiles = tiles_of(p);
        const PackedRows packed(p.m);
        for (int64_t block = 0; block < blocks_of(p); ++block)
            for (int64_t tile = 0; tile < tiles; ++tile)
                pack_block<format>(p.a.data + tile * kTileRows * p.a.row_stride + block * kTileK, p.a.row_stride,
                                   length_of(p, block), int(std::min<int64_t>(kTileRows, p.m - tile * kTileRows)),
                                   packed, operands + (block * tiles + tile) * packed.block_bytes());
    }

    // `count` <= 4 columns of some blocks.
    static void decode(const Args& p, int64_t n0, int count, int64_t block, char* to) {
        const int64_t end = std::min(block + kBlocksAtOnce, blocks_of(p));
        for (int j = 0; j < count; ++j)
            for (int64_t at = block; at < end; ++at) {
                const uint8_t* const codes = p.b.data + (n0 + j) * p.b.row_stride + at * kTileK;
                stream_block<format>(codes, kTileColumns * p.b.row_stride, length_of(p, at),
                                     to + (at - block) * kBlockBytes + j * kDecodedRow);
            }
    }

    // kTileColumns columns at most, from n0. sums: [M][column][row].
    template <int M>
    static void multiply(const Args& p, const char* operands, int64_t n0, int count, float* sums) {
        constexpr int N = kTileColumns / kTileRows, kSteps = kBlocksAtOnce * kTilesOfBlock;
        constexpr int kColumnsOfStep = kTileColumns / kSteps;
        alignas(64) static thread_local char weights[2][kPieceBytes];
        const int64_t blocks = blocks_of(p);
        const PackedRows packed(p.m);
        const auto decode_part = [&](int64_t block, int step) {
            const int j = step * kColumnsOfStep;
            decode(p, n0 + j, std::clamp(count - j, 0, kColumnsOfStep), block,
                   weights[block / kBlocksAtOnce % 2] + j * kDecodedRow);
        };
        each_constant<M * N>([](auto i) { zero_tile<i()>(); });
        for (int step = 0; step < kSteps; ++step) decode_part(0, step);
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t piece = block / kBlocksAtOnce, next = (piece + 1) * kBlocksAtOnce;
            const int part = int(block % kBlocksAtOnce);
            multiply_block<M, N>(weights[piece % 2] + part * kBlockBytes, kTileRows * kDecodedRow, packed,
                                 operands + block * M * packed.block_bytes(), 0, N, [&](int t) {
                                     if (next < blocks) decode_part(next, part * kTilesOfBlock + t);
                                 });
        }
        each_constant<M * N>([&](auto i) { store_tile<i()>(sums + i * kTileRows * kTileRows, kTileRowBytes); });
    }

    template <DType out_type>
    static void columns(const Args& p, const char* operands, const bool*, int64_t begin, int64_t end) {
        using G = GemmLanes<Avx512, format>;
        const TilesInUse in_use;
        alignas(64) float sums[2][kTileColumns * kTileRows], values[kTileRows][kTileColumns];
        for (int64_t n0 = begin; n0 < end; n0 += kTileColumns) {
            const int count = int(std::min<int64_t>(kTileColumns, end - n0));
            if (tiles_of(p) == 1) multiply<1>(p, operands, n0, count, sums[0]);
            else multiply<2>(p, operands, n0, count, sums[0]);
            float scale[kTileColumns] = {}, bias[kTileColumns] = {};
            for (int j = 0; j < count; ++j) {
                const gemm::Column column(p.epilogue, n0 + j);
                scale[j] = column.scale;
                bias[j] = column.bias;
            }
            for (int64_t m = 0; m < p.m; ++m) {
                if (m % kTileRows == 0) turn_sums(sums[m / kTileRows], values);
                float* const row = values[m % kTileRows];
                const float scale_a = gemm::scale_at(p.epilogue.scale_a, m);
                for (int j = 0; j < kTileColumns; ++j)
                    row[j] = gemm::finished(p.epilogue, row[j], scale_a, scale[j], bias[j]);
                G::template store_results<out_type>(
                    at<out_type>(p.epilogue.out.data, m * p.epilogue.out.row_stride + n0), row, count);
            }
        }
    }

  public:
    static Kernel pick(const Args& p) {
        const DType out = p.epilogue.out.dtype;
        return {decode_rows, blocks_of(p) * tiles_of(p) * PackedRows(p.m).block_bytes() + PackedRows::kBehind,
                out == DType::f32   ? columns<DType::f32>
                : out == DType::f16 ? columns<DType::f16>
                                    : columns<DType::bf16>,
                kTileColumns};
    }
};

}  // namespace

Kernel kernel_amx(const Args& args) {
    return args.format == DType::e4m3fn ? TileGemm<DType::e4m3fn>::pick(args) : TileGemm<DType::e4m3fnuz>::pick(args);
}

}  // namespace rocm_fp8::skinny_gemm
