// MXFP4 and MXFP8 weights beside few rows, on any NVIDIA GPU: each warp has a ring of its own and waits for no other, until
// the sums of all are added.
//
//     HBM --> cp.async: a step, 128 k, of 32 columns --> a warp's ring, two steps ahead
//         --> a lane: 32 codes, a block, of each of four columns --> bfloat16, scaled (order.h)
//     L2  --> a lane: the same 32 k of a row of A, a step ahead  --> bfloat16
//         --> m16n8k16: 16 columns by 8 rows. A lane has a block of its own: it needs one scale a column
//     eight warps take every eighth step --> their sums through shared memory, in the warps' order
//         --> scale of the row, bias, gate, rounding
//
// A CTA makes kRows rows of a group by 32 columns. float16 becomes two bfloat16, whose sum it is: twice the products.
// What is rounded: as in tiles.h, which is ahead where a CTA has several tiles: there TMA goes on meanwhile. Bound: latency,
// then instructions: 3 to 4 for a lane's code.
//
// All numbers of rows add a row's products in the same order, aligned operands or not.
// Steps and figures: docs/journal/mx_gemm.md.
#pragma once

#include "../../common/cuda/async_copy.h"
#include "../../common/cuda/shared_memory.h"
#include "../../grouped_gemm/cuda/row_tiles.h"
#include "order.h"

namespace rocm_fp8::mx_gemm {
namespace {

namespace grouped = grouped_gemm::cuda;

constexpr int kStreamColumns = 32, kWideTiles = kStreamColumns / kMmaWide, kWarps = kThreads / kWarp;
constexpr int kBlocksOfStep = 4;  // one a lane of four

// Of a warp two steps' weights, of eight columns at once. No bank conflicts.
template <bool fp8, int kRows>
struct StreamMemory {
    static constexpr int kStoredRows = kRows < 16 ? kRows : 16, kPitch = fp8 ? 128 + 16 : 64;
    alignas(16) uint8_t ring[kWarps][2][kStreamColumns / 8][8][kPitch];
    float sums[kWarps][kStoredRows][kStreamColumns + 4];
    grouped::RowTiles row_tiles;
};

// Where a lane's columns are: numbers g and g + 8 of each 16. A gate and its up are one's, where these are halves.
struct StreamColumns {
    int64_t first, second;  // of the tile, of B

    __device__ StreamColumns(const Args& a, int piece) {
        // The last ones begin earlier, and store some columns anew: the same bits.
        const int columns = of_halves(a) ? kStreamColumns / 2 : kStreamColumns;
        const int64_t last = (of_halves(a) ? a.n / 2 : a.n) - columns, at = int64_t(piece) * columns;
        first = at < last ? at : last;
        second = first + (of_halves(a) ? a.n / 2 : 8);
    }
};

// From a lane's columns of 16 to those of the next 16.
__device__ inline uint32_t step_of(const Args& a) { return of_halves(a) ? 8 : 16; }

template <DType rows_format, bool fp8, int kRows, bool aligned>
class Stream {
    using Of = Weights<fp8>;
    static constexpr int kNarrowTiles = kRows / kMmaNarrow;
    static constexpr bool kTwice = rows_format == DType::f16;
    static constexpr int kBlockBytes = fp8 ? kMxBlock : kMxBlock / 2;
    using Memory = StreamMemory<fp8, kRows>;
    using Exponents = uint32_t[kWideTiles][2];

    const Args& args;
    Memory& memory;
    const int g = int(threadIdx.x) % kWarp / 4, t = int(threadIdx.x) % 4, warp = int(threadIdx.x) / kWarp;
    const int blocks, steps;
    const uint8_t *b[2], *exponents[2];  // of the lane's first columns
    const uint8_t *rows[kNarrowTiles], *row_exponents[kNarrowTiles];
    int slot = 0;  // of the ring: the next step's
    RowPart parts[kNarrowTiles][kBlocksOfStep];
    Exponents of_columns;
    uint32_t of_rows[kNarrowTiles];
    float sums[kWideTiles][kNarrowTiles][4];

  public:
    __device__ Stream(const Args& a, Memory& memory)
        : args(a), memory(memory), blocks(int(a.k / kMxBlock)), steps((blocks + kBlocksOfStep - 1) / kBlocksOfStep) {}

    // Loads the tile's first steps.
    __device__ void begin(const grouped::Tile& tile) {
        const StreamColumns columns(args, tile.piece);
        const uint8_t* const of_group = args.b.data + tile.expert * args.b.group_stride;
        const uint8_t* const exponents_of_group =
            static_cast<const uint8_t*>(args.scale_b.data) + tile.expert * args.scale_b.group_stride;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int64_t column = (i ? columns.second : columns.first) + g;
            b[i] = of_group + column * args.b.row_stride;
            exponents[i] = exponents_of_group + column * args.scale_b.row_stride;
        }
        copy(warp, slot);
        copy(warp + kWarps, slot ^ 1);
#pragma unroll
        for (int n = 0; n < kNarrowTiles; ++n) {
            const int row = tile.row + n * kMmaNarrow + g,
                      source = source_of(args, row < tile.end ? row : tile.end - 1);
            rows[n] = args.a.data + source * args.a.row_stride;
            row_exponents[n] = static_cast<const uint8_t*>(args.scale_a.data) + source * args.scale_a.row_stride;
        }
        load_exponents(warp);
#pragma unroll
        for (int eight = 0; eight < kBlocksOfStep; ++eight) load_rows(warp, eight);
    }
    // Adds the steps of the tile that was begun.
    __device__ void add_steps() {
#pragma unroll
        for (int i = 0; i < kWideTiles * kNarrowTiles * 4; ++i)
            sums[i / 4 / kNarrowTiles][i / 4 % kNarrowTiles][i % 4] = 0;
        for (int step = warp; step < steps; step += kWarps) add(step);
    }

    // Ends the tile whose steps were added.
    __device__ void store(const grouped::Tile& tile) {
        const StreamColumns columns(args, tile.piece);
        gemm::Bias bias = args.bias;
        if (bias.data)
            bias.data = offset(bias.data, tile.expert * args.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
        constexpr int kStored = Memory::kStoredRows;
        const bool by_block = of_blocks(args.scale_a);
        const float lifted = Of::kLifted * (by_block ? kLiftOfFp8 : 1.0f);
        // Of the row, and of the tile's column.
        const auto value = [&](int row, int column, float scale) {
            float v = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) v += memory.sums[w][row][column];
            v *= lifted;
            if (args.scale_a.data && !by_block) v *= scale;
            const int64_t eight = column / 8 % 2 ? columns.second : columns.first;
            // Without a bias -0 stays -0.
            if (bias.data) v += gemm::bias_at(bias, eight + column / 16 * step_of(args) + column % 8);
            return v;
        };
        const int across = args.gated ? kStreamColumns / 2 : kStreamColumns, live = tile.end - tile.row;
#pragma unroll
        for (int part = 0; part < kRows; part += kStored) {
            if (part >= live) break;
            // Barrier: sums of the part, or of the tile, before have been read.
            __syncthreads();
#pragma unroll
            for (int i = 0; i < kStored / kMmaNarrow * kWideTiles * 4; ++i) {
                const int n = i / 4 / kWideTiles, w = i / 4 % kWideTiles, e = i % 4;
                memory.sums[warp][n * kMmaNarrow + 2 * t + e % 2][w * kMmaWide + e / 2 * 8 + g] =
                    sums[w][part / kMmaNarrow + n][e];
            }
            // Barrier: other threads read them.
            __syncthreads();
            for (int i = int(threadIdx.x); i < kStored * across; i += kThreads) {
                const int row = i / across, at = i % across;
                const int64_t m = tile.row + part + row;
                if (m >= tile.end) break;
                const float scale =
                    args.scale_a.data && !by_block ? gemm::scale_at(args.scale_a, source_of(args, m)) : 1.0f;
                const int64_t to = m * args.out.row_stride;
                if (!args.gated) {
                    gemm::put(args.out, to + columns.first + at, value(row, at, scale));
                } else {
                    const int gate = of_halves(args) ? at / 8 * 16 + at % 8 : 2 * at,
                              up = gate + (of_halves(args) ? 8 : 1);
                    const float v = moe_gate::gated(args.gate, value(row, gate, scale), value(row, up, scale));
                    gemm::put(args.out, to + (of_halves(args) ? columns.first : columns.first / 2) + at, v);
                }
            }
        }
    }

  private:
    // The lane's block of a step; beyond the last the last one, whose rows count as 0.
    __device__ int block_of(int step) const {
        const int block = step * kBlocksOfStep + t;
        return block < blocks ? block : blocks - 1;
    }
    // A step's weights to the ring: 16 bytes of eight columns' four blocks a lane.
    __device__ void copy(int step, int slot) const {
        if (step < steps) {
#pragma unroll
            for (int c = 0; c < kStreamColumns / 8; ++c) {
#pragma unroll
                for (int half = 0; half < kBlockBytes / 16; ++half) {
                    const int chunk = half * 4 + t, block = step * kBlocksOfStep + chunk * 16 / kBlockBytes,
                              last = blocks - 1;
                    const uint8_t* const from = b[c % 2] + c / 2 * step_of(args) * uint32_t(args.b.row_stride) +
                                                (block < last ? block : last) * kBlockBytes + chunk * 16 % kBlockBytes;
                    uint8_t* const to = &memory.ring[warp][slot][c][g][chunk * 16];
                    if constexpr (aligned) {
                        copy_vector_async(to, from, 16);
                    } else {
                        const RowPart part = load_row<DType::bf16, false>(from);
                        *reinterpret_cast<uint4*>(to) = {part.words[0], part.words[1], part.words[2], part.words[3]};
                    }
                }
            }
        }
        commit_copies();
    }
    // The lane's block of the c-th eight columns.
    __device__ void read(int c, uint32_t (&words)[Of::kWords]) const {
#pragma unroll
        for (int w = 0; w < Of::kWords; w += 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(&memory.ring[warp][slot][c][g][t * kBlockBytes + 4 * w]);
            words[w] = four.x, words[w + 1] = four.y, words[w + 2] = four.z, words[w + 3] = four.w;
        }
    }
    __device__ void load_exponents(int step) {
        const int block = block_of(step);
#pragma unroll
        for (int w = 0; w < kWideTiles; ++w) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
                of_columns[w][i] = exponents[i][w * step_of(args) * uint32_t(args.scale_b.row_stride) +
                                                block * uint32_t(args.scale_b.block_stride)];
        }
        if ((rows_format == DType::e2m1 || is_fp8(rows_format)) && of_blocks(args.scale_a)) {
#pragma unroll
            for (int n = 0; n < kNarrowTiles; ++n) of_rows[n] = row_exponents[n][block * args.scale_a.block_stride];
        }
    }
    // Eight k of the lane's block.
    __device__ void load_rows(int step, int eight) {
        constexpr int kBytes = kPartBytes<rows_format>;
        const int at = (block_of(step) * (kMxBlock / 8) + eight) * kBytes;
#pragma unroll
        for (int n = 0; n < kNarrowTiles; ++n) parts[n][eight] = load_row<rows_format, aligned>(rows[n] + at);
    }

    // Adds a step's products. Its rows and exponents are replaced by the next step's.
    __device__ void add(int step) {
        constexpr bool kMayScale = rows_format == DType::e2m1 || is_fp8(rows_format);
        if ((step + 1) * kBlocksOfStep > blocks) {  // K ends within it
#pragma unroll
            for (int i = 0; i < kNarrowTiles * kBlocksOfStep * 4; ++i) {
                uint32_t& word = parts[i / 16][i / 4 % 4].words[i % 4];
                word = step * kBlocksOfStep + t < blocks ? word : 0;
                asm volatile("" : "+r"(word));  // a branch, not a choice in each step
            }
        }
        wait_for_copies<1>();
        __syncwarp();  // lanes read what others copied
        uint32_t words[kWideTiles][2][Of::kWords];
        Exponents current, first;
        bool more = false;
#pragma unroll
        for (int c = 0; c < 2 * kWideTiles; ++c) {
            const int w = c / 2, i = c % 2;
            read(c, words[w][i]);
            current[w][i] = of_columns[w][i];
            first[w][i] = Of::first_factor(current[w][i]);
            more |= current[w][i] > Of::kFirstAlone;
            more |= Of::nans(words[w][i]) != 0;
        }
        more = __any_sync(kWholeWarp, more);
        __syncwarp();  // all lanes have read the slot
        copy(step + 2 * kWarps, slot);
        slot ^= 1;
        float by_row[kNarrowTiles];
        const bool scaled = kMayScale && of_blocks(args.scale_a);
        if (scaled) {
#pragma unroll
            for (int n = 0; n < kNarrowTiles; ++n) by_row[n] = e8m0_value(of_rows[n]) / kLiftOfFp8;
        }
        const int next = step + kWarps;
        if (next < steps) load_exponents(next);
#pragma unroll
        for (int eight = 0; eight < kBlocksOfStep; ++eight) {
            uint32_t narrow[kNarrowTiles][4], rest[kNarrowTiles][4];
#pragma unroll
            for (int n = 0; n < kNarrowTiles; ++n) {
                RowPart part = parts[n][eight];
                put_in_16_bits<rows_format>(part);
                if (scaled) {
#pragma unroll
                    for (uint32_t& word : part.words) word = Pairs<DType::bf16>::scaled(word, by_row[n]);
                }
                if constexpr (kTwice) {
                    RowPart low;
                    put_apart(part, low);
                    put_in_pairs<fp8>(low, rest[n]);
                }
                put_in_pairs<fp8>(part, narrow[n]);
            }
            if (next < steps) load_rows(next, eight);
#pragma unroll
            for (int w = 0; w < kWideTiles; ++w) {
                uint32_t wide[2][4];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
#pragma unroll
                    for (int p = 0; p < 4; ++p) wide[i][p] = times(Of::bits(words[w][i], 4 * eight + p), first[w][i]);
                }
                if (more) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const uint32_t by = Of::second_factor(current[w][i]);
#pragma unroll
                        for (int p = 0; p < 4; ++p)
                            wide[i][p] = times(wide[i][p], by) | Of::nans_of(words[w][i], 4 * eight + p);
                    }
                }
                multiply(wide, narrow, sums[w]);
                if constexpr (kTwice) multiply(wide, rest, sums[w]);
            }
        }
    }
    static __device__ void multiply(const uint32_t (&wide)[2][4], const uint32_t (&narrow)[kNarrowTiles][4],
                                    float (&sums)[kNarrowTiles][4]) {
#pragma unroll
        for (int n = 0; n < kNarrowTiles; ++n) {
#pragma unroll
            for (int half = 0; half < 4; half += 2)
                multiply_bf16(sums[n], {wide[0][half], wide[0][half + 1]}, {wide[1][half], wide[1][half + 1]},
                              {narrow[n][half], narrow[n][half + 1]});
        }
    }
};

// On a multiprocessor.
constexpr int stream_ctas(DType rows_format, bool fp8, int rows) {
    return rows > (fp8 || rows_format == DType::f16 ? 8 : 16) ? 1 : 2;
}

template <DType rows, bool fp8, int kRows, bool aligned>
__global__ __launch_bounds__(kThreads, stream_ctas(rows, fp8, kRows)) void mx_gemm_stream(Args a) {
    auto& memory = dynamic_shared<StreamMemory<fp8, kRows>>();
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may write what this one reads
    grouped::make_row_tiles<kRows>(memory.row_tiles, a);
    const int groups = int(a.groups), pieces = int((a.n + kStreamColumns - 1) / kStreamColumns),
              tiles = grouped::tiles_of(memory.row_tiles, groups, pieces);
    Stream<rows, fp8, kRows, aligned> stream(a, memory);
    int number = int(blockIdx.x);
    const auto begin = [&] {
        const grouped::Tile tile = grouped::tile_at<kRows>(memory.row_tiles, groups, pieces, number);
        stream.begin(tile);
        return tile;
    };
    if (number >= tiles) return;
    for (grouped::Tile next = begin(); number < tiles;) {
        stream.add_steps();
        const grouped::Tile made = next;
        number += int(gridDim.x);
        if (number < tiles) next = begin();  // before sums are waited for
        stream.store(made);
    }
}

// --- the launch ---

// Whether it is for these operands.
inline bool streams(const Args& a) {
    constexpr int64_t kMostStride = int64_t(1) << 26;  // columns and blocks are reached by 32 bits
    return a.n >= kStreamColumns && a.k < int64_t(1) << 30 && a.m < int64_t(1) << 31 && a.b.row_stride < kMostStride &&
           a.scale_b.row_stride < kMostStride && a.k / kMxBlock * a.scale_b.block_stride < int64_t(1) << 31;
}
inline bool streams_aligned(const Args& a) {
    const int part = int(a.bytes_of(a.format_a) * 8 / a.k);  // of a row
    return rows_aligned(a.b.data, a.b.row_stride, 16) && a.b.group_stride % 16 == 0 &&
           rows_aligned(a.a.data, a.a.row_stride, part);
}

inline int stream_height(const Args& a) { return a.expected <= 8 ? 8 : a.expected <= 16 ? 16 : 32; }

// Whether all of one matrix's columns by all rows are on the chip at once: then it is ahead of tiles.h.
inline bool streams_at_once(const Args& a, const Chip& chip) {
    const int height = stream_height(a);
    return streams(a) && streams_aligned(a) && !a.offsets && a.m <= height &&
           ceil_div(a.n, kStreamColumns) <=
               int64_t(chip.multiprocessors) * stream_ctas(a.format_a, is_fp8(a.format_b), height);
}

template <DType rows, bool fp8, class Vendor>
Status launch_stream_as(const Args& a, const Vendor& vendor) {
    const auto start = [&]<int height, bool aligned>() {
        constexpr auto kernel = mx_gemm_stream<rows, fp8, height, aligned>;
        constexpr int kBytes = int(sizeof(StreamMemory<fp8, height>));
        static AllowedDevices allowed;
        if (const Status s = allow_shared_bytes(kernel, kBytes, vendor.chip, &allowed); !s.ok()) return s;
        const int64_t tiles = most_row_tiles(a, height) * ceil_div(a.n, kStreamColumns);
        const int64_t most = int64_t(vendor.units) * stream_ctas(rows, fp8, height), ctas = tiles < most ? tiles : most;
        return launch_kernel(kernel, vendor.chip, {ctas, kThreads, 1, kBytes}, vendor.on, a);
    };
    if (!streams_aligned(a)) return start.template operator()<32, false>();
    const int height = stream_height(a);
    if (height == 8) return start.template operator()<8, true>();
    return height == 16 ? start.template operator()<16, true>() : start.template operator()<32, true>();
}

template <class Vendor>
Status launch_stream(const Args& a, const Vendor& vendor) {
    const auto of = [&]<DType rows>() {
        return a.format_b == DType::e2m1 ? launch_stream_as<rows, false>(a, vendor)
                                         : launch_stream_as<rows, true>(a, vendor);
    };
    return a.format_a == DType::bf16   ? of.template operator()<DType::bf16>()
           : a.format_a == DType::f16  ? of.template operator()<DType::f16>()
           : a.format_a == DType::e2m1 ? of.template operator()<DType::e2m1>()
                                       : of.template operator()<DType::e4m3fn>();
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
