// The plain kernel of MX weights for AMD and NVIDIA GPUs: any strides, alignment, sizes and formats.
//
//     A, codes of B --> registers, a step ahead --> 16-bit numbers in shared memory, which hold both exactly
//                   --> matrix instructions over a block of 32 k --> sums += scale_a * scale_b * products, in float32
//
// A workgroup makes kRows rows of a group by kColumns columns; workgroups iterate over the tiles of all groups. Numbers of
// 8 and 4 bits are looked up in tables in shared memory.
// Bound: bytes of weights with few rows; conversions of A and B with many. Both tiles give a row the same bits.
//
// Limit today: loads are one step of 128 k ahead, and codes are looked up one by one.
//
// After the vendor's products.h, which has Products<type>: of 16 rows of A by 16 of B, a lane's part of their sums.
// Steps and figures: docs/journal/mx_gemm.md.
#pragma once

#include <type_traits>

#include "../common/gemm/epilogue.h"
#include "../common/gemm/sources.h"
#include "../common/gpu/overlap.h"
#include "mx_gemm.h"

namespace rocm_fp8::mx_gemm {
namespace {

constexpr int kThreads = 256, kStep = 128, kStepBlocks = kStep / kMxBlock;
constexpr int kRowBytes = kStep * 2 + 16;  // of a row of numbers: no bank conflicts between lanes of neighbouring rows
constexpr int kFewRows = 16, kManyRows = 64;
// Shared memory is 48 KiB at most.
ROCM_FP8_HD constexpr int columns_of(int rows) { return rows == kFewRows ? 128 : 64; }
constexpr int kChunkNumbers = 16;  // what a thread brings at once

template <int kRows>
struct Memory {
    static constexpr int kColumns = columns_of(kRows);
    alignas(16) char a[kRows * kRowBytes];
    alignas(16) char b[kColumns * kRowBytes];
    float scale_a[kStepBlocks][kRows], scale_b[kStepBlocks][kColumns];
    uint32_t of_a[256], of_b[256];  // a byte of codes: one or two numbers
    int32_t sources[kRows];
    int32_t before[kMostGroups + 1];  // tiles of rows of the groups before
    int32_t partial[kThreads];
};

template <DType type>
__device__ inline uint32_t number_bits(DType format, uint32_t byte) {
    f32x2 two = {0, 0};
    if (format == DType::e2m1) two = f32x2{e2m1_value(byte), e2m1_value(byte >> 4)};
    else two.x = fp8_decode<kNativeFp8>(byte);  // the other FP8 is refused
    return Pairs<type>::round_any_nan(two);
}

struct RowTile {
    int group, first, end;  // rows of the result
};

__device__ inline int first_row(const Args& a, int group) {
    if (!a.offsets) return group == 0 ? 0 : int(a.m);
    // Offsets that leave [0, m], or fall, give rows inside of the result, or none.
    const int offset = global<int32_t>(a.offsets)[group];
    return offset < 0 ? 0 : offset < int(a.m) ? offset : int(a.m);
}
__device__ inline int row_tiles(const Args& a, int group, int rows) {
    const int count = first_row(a, group + 1) - first_row(a, group);
    return count > 0 ? (count + rows - 1) / rows : 0;
}

// Into memory.before, by all threads, with memory.partial between. grouped_gemm's row_tiles.h do not serve here: HIP's
// finds one tile for a wave, and workgroups here take many; CUDA's votes are of a warp of 32.
template <int kRows>
__device__ inline void number_tiles(Memory<kRows>& memory, const Args& a) {
    const uint32_t groups = uint32_t(a.groups), each = (groups + kThreads - 1) / kThreads, begin = threadIdx.x * each,
                   end = begin + each < groups ? begin + each : groups;
    int mine = 0;
    for (uint32_t g = begin; g < end; ++g) mine += row_tiles(a, int(g), kRows);
    memory.partial[threadIdx.x] = mine;
    // Barrier: other threads read it.
    __syncthreads();
    for (int distance = 1; distance < kThreads; distance *= 2) {
        const int other = int(threadIdx.x) >= distance ? memory.partial[threadIdx.x - distance] : 0;
        // Barrier: all have read before one is written; then, all are written before they are read.
        __syncthreads();
        memory.partial[threadIdx.x] += other;
        __syncthreads();
    }
    int sum = memory.partial[threadIdx.x] - mine;
    for (uint32_t g = begin; g < end; ++g) {
        memory.before[g] = sum;
        sum += row_tiles(a, int(g), kRows);
    }
    if (threadIdx.x == kThreads - 1) memory.before[groups] = memory.partial[threadIdx.x];
    // Barrier: all threads read the table.
    __syncthreads();
}

// Tile number `number` of all, of `pieces` a tile of rows. Row tiles of a piece follow each other, so that they share its
// weights in L2.
template <int kRows>
__device__ inline RowTile find_tile(const Memory<kRows>& memory, const Args& a, int64_t pieces, int64_t number,
                                    int64_t* piece) {
    const int groups = int(a.groups);
    int group = 0;  // the last one that begins no later
    for (int span = kMostGroups / 2; span > 0; span /= 2) {
        if (group + span < groups && memory.before[group + span] * pieces <= number) group += span;
    }
    const int down = memory.before[group + 1] - memory.before[group];
    const int64_t within = number - memory.before[group] * pieces;
    *piece = within / down;
    return {group, first_row(a, group) + int(within % down) * kRows, first_row(a, group + 1)};
}

using gemm::source_of;

// 16 numbers of a row, as bytes: 8 of codes of 4 bits, 16 of 8, 32 of 16.
struct Chunk {
    uint32_t words[8];
};
__device__ inline int chunk_bytes(DType format) { return format == DType::e2m1 ? 8 : is_fp8(format) ? 16 : 32; }

// aligned: all chunks lie at multiples of 8 bytes.
template <bool aligned>
__device__ inline void load_chunk(Chunk& to, const uint8_t* from, DType format, bool inside) {
    const int words = chunk_bytes(format) / 4;
#pragma unroll
    for (int w = 0; w < 8; w += 2) {
        if (w >= words) break;
        if (!inside) {
            to.words[w] = to.words[w + 1] = 0;
        } else if constexpr (aligned) {
            const auto two = *global<uint64_t>(from + 4 * w);
            to.words[w] = uint32_t(two), to.words[w + 1] = uint32_t(two >> 32);
        } else {
            for (int half = 0; half < 2; ++half) {
                uint32_t word = 0;
                for (int i = 0; i < 4; ++i) word |= uint32_t(*global<uint8_t>(from + 4 * (w + half) + i)) << 8 * i;
                to.words[w + half] = word;
            }
        }
    }
}

// As 16-bit numbers, to a multiple of 16 bytes.
__device__ inline void store_chunk(char* to, const Chunk& chunk, DType format, const uint32_t (&table)[256]) {
    const auto byte = [&](int i) { return chunk.words[i / 4] >> i % 4 * 8 & 255; };
    const auto store = [&](auto&& word) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Vector128 v;
#pragma unroll
            for (int i = 0; i < 4; ++i) set_word(v, i, word(4 * half + i));
            *reinterpret_cast<Vector128*>(to + 16 * half) = v;
        }
    };
    if (format == DType::e2m1) store([&](int i) { return table[byte(i)]; });
    else if (is_fp8(format))
        store([&](int i) { return (table[byte(2 * i)] & 0xFFFFu) | table[byte(2 * i + 1)] << 16; });
    else store([&](int i) { return chunk.words[i]; });
}

// The launch's arguments. On AMD they are loaded anew: kept in scalar registers through a tile, they would be spilled.
__device__ inline const Args& anew([[maybe_unused]] const Args& a) {
#if defined(__HIPCC__)
    return arguments<Args>();
#else
    return a;
#endif
}

// One tile.
template <DType type, int kRows, bool aligned>
class Tile {
    using P = Products<type>;
    static constexpr int kColumns = columns_of(kRows);
    static constexpr int kPerRow = kStep / kChunkNumbers,
                         kOfA = kRows * kPerRow / kThreads < 1 ? 1 : kRows * kPerRow / kThreads,
                         kOfB = kColumns * kPerRow / kThreads, kWaves = kThreads / kLanes, kAcross = kColumns / 16,
                         kSubtiles = kRows / 16 * kAcross / kWaves;
    static_assert(kSubtiles >= 1);

    const Args& args;
    Memory<kRows>& memory;
    const RowTile tile;
    const int64_t column;
    const uint8_t* const b;
    const gemm::Scales scale_b;
    Chunk of_a[kOfA], of_b[kOfB];
    float sums[kSubtiles][P::kSums];

  public:
    __device__ Tile(const Args& a, Memory<kRows>& memory, const RowTile& tile, int64_t column)
        : args(a),
          memory(memory),
          tile(tile),
          column(column),
          b(a.b.data + tile.group * a.b.group_stride),
          scale_b(of_group(a, tile.group)) {}

    __device__ void make() {
        for (auto& of_subtile : sums)
            for (float& v : of_subtile) v = 0;
        for (int i = int(threadIdx.x); i < kRows; i += kThreads) {
            const int last = tile.end - 1, row = tile.first + i;
            memory.sources[i] = source_of(args, row < last ? row : last);
        }
        // Barrier: other threads read the sources.
        __syncthreads();
        request(0);
        for (int64_t k = 0; k < args.k; k += kStep) {
            put(k);
            // Barrier: other threads read the step.
            __syncthreads();
            if (k + kStep < args.k) request(k + kStep);
            multiply(int((args.k - k < kStep ? args.k - k : kStep) / kMxBlock));
            // Barrier: the step has been read.
            __syncthreads();
        }
        store();
    }

  private:
    static __device__ gemm::Scales of_group(const Args& a, int group) {
        gemm::Scales s = a.scale_b;
        s.data = offset(s.data, group * s.group_stride);
        return s;
    }
    template <int kCount, class Body>
    static __device__ void each_chunk(int rows, const Body& body) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int n = i * kThreads + int(threadIdx.x), row = n / kPerRow;
            if (row < rows) body(i, row, n % kPerRow);
        }
    }
    static __device__ int64_t byte_of(DType format, int64_t k) {
        return format == DType::e2m1 ? k / 2 : is_fp8(format) ? k : 2 * k;
    }

    __device__ void request(int64_t k) {
        const Args& args = anew(this->args);
        each_chunk<kOfB>(kColumns, [&](int i, int row, int chunk) {
            const int64_t at = k + chunk * kChunkNumbers, n = column + row;
            load_chunk<aligned>(of_b[i], b + n * args.b.row_stride + byte_of(args.format_b, at), args.format_b,
                                n < args.n && at < args.k);
        });
        each_chunk<kOfA>(kRows, [&](int i, int row, int chunk) {
            const int64_t at = k + chunk * kChunkNumbers;
            load_chunk<aligned>(of_a[i],
                                args.a.data + memory.sources[row] * args.a.row_stride + byte_of(args.format_a, at),
                                args.format_a, tile.first + row < tile.end && at < args.k);
        });
    }
    __device__ void put(int64_t k) {
        const Args& args = anew(this->args);
        each_chunk<kOfB>(kColumns, [&](int i, int row, int chunk) {
            store_chunk(memory.b + row * kRowBytes + chunk * kChunkNumbers * 2, of_b[i], args.format_b, memory.of_b);
        });
        each_chunk<kOfA>(kRows, [&](int i, int row, int chunk) {
            store_chunk(memory.a + row * kRowBytes + chunk * kChunkNumbers * 2, of_a[i], args.format_a, memory.of_a);
        });
        const int64_t blocks = args.k / kMxBlock, first = k / kMxBlock;
        const auto exponent = [&](const gemm::Scales& s, int64_t row, int64_t block) {
            return e8m0_value(*global<uint8_t>(offset(s.data, row * s.row_stride + block * s.block_stride)));
        };
        for (int i = int(threadIdx.x); i < kColumns * kStepBlocks; i += kThreads) {
            const int64_t n = column + i / kStepBlocks, block = first + i % kStepBlocks;
            memory.scale_b[i % kStepBlocks][i / kStepBlocks] =
                n < args.n && block < blocks ? exponent(scale_b, n, block) : 0;
        }
        for (int i = int(threadIdx.x); i < kRows * kStepBlocks; i += kThreads) {
            const int row = i / kStepBlocks;
            const int64_t block = first + i % kStepBlocks;
            float v = 1;
            if (of_blocks(args.scale_a)) v = block < blocks ? exponent(args.scale_a, memory.sources[row], block) : 0;
            memory.scale_a[i % kStepBlocks][row] = v;
        }
    }

    static __device__ int row_of(int subtile) { return number(subtile) / kAcross * 16; }
    static __device__ int column_of(int subtile) { return number(subtile) % kAcross * 16; }
    static __device__ int number(int subtile) { return uniform(int(threadIdx.x) / kLanes) + subtile * kWaves; }

    __device__ void multiply(int blocks) {
        for (int block = 0; block < blocks; ++block) {
#pragma unroll
            for (int s = 0; s < kSubtiles; ++s) {
                float products[P::kSums];
                P::multiply(products, memory.a + row_of(s) * kRowBytes + block * kMxBlock * 2,
                            memory.b + column_of(s) * kRowBytes + block * kMxBlock * 2, kRowBytes);
#pragma unroll
                for (int e = 0; e < P::kSums; ++e) {
                    const float scale = memory.scale_a[block][row_of(s) + P::row(e)] *
                                        memory.scale_b[block][column_of(s) + P::column(e)];
                    sums[s][e] = fma_of(scale, products[e], sums[s][e]);
                }
            }
        }
    }
    static __device__ float fma_of(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

    __device__ void store() {
        const Args& args = anew(this->args);
        gemm::Bias bias = args.bias;
        if (bias.data)
            bias.data = offset(bias.data, tile.group * args.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
        const bool by_row = args.scale_a.data && !of_blocks(args.scale_a);
#pragma unroll
        for (int s = 0; s < kSubtiles; ++s) {
#pragma unroll
            for (int e = 0; e < P::kSums; ++e) {
                const int row = row_of(s) + P::row(e);
                const int64_t n = column + column_of(s) + P::column(e), m = tile.first + row;
                if (m >= tile.end || n >= args.n) continue;
                float v = sums[s][e];
                if (by_row) v *= gemm::scale_at(args.scale_a, memory.sources[row]);
                if (bias.data) v += gemm::bias_at(bias, n);  // without one, -0 stays -0
                gemm::put(args.out, m * args.out.row_stride + n, v);
            }
        }
    }
};

template <DType type, int kRows, bool aligned>
__global__ __launch_bounds__(kThreads) void mx_gemm_plain(Args a) {
    __shared__ Memory<kRows> memory;
    wait_for_previous_kernel();
    let_next_kernel_start();  // not earlier: it may write what this one reads
    for (int byte = int(threadIdx.x); byte < 256; byte += kThreads) {
        memory.of_a[byte] = number_bits<type>(a.format_a, byte);
        memory.of_b[byte] = number_bits<type>(a.format_b, byte);
    }
    number_tiles<kRows>(memory, a);
    constexpr int kColumns = Memory<kRows>::kColumns;
    const int64_t pieces = (a.n + kColumns - 1) / kColumns, tiles = memory.before[a.groups] * pieces;
    for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        int64_t piece;
        const RowTile tile = find_tile<kRows>(memory, a, pieces, number, &piece);
        Tile<type, kRows, aligned>(a, memory, tile, piece * kColumns).make();
        // Barrier: the tile's sources have been read.
        __syncthreads();
    }
}

// Row tiles that there may be, however the rows are spread.
inline int64_t most_row_tiles(const Args& a, int rows) {
    const int64_t some = a.groups < a.m ? a.groups : a.m;  // with a row at least
    return a.offsets ? some + (a.m - some) / rows : ceil_div(a.m, rows);
}

template <DType type, class Vendor>
Status launch_as(const Args& a, const Vendor& vendor) {
    constexpr int kPerUnit = 4;
    const auto fits = [](const gemm::Operand& x) {
        return rows_aligned(x.data, x.row_stride, 8) && x.group_stride % 8 == 0;
    };
    const bool aligned = fits(a.a) && fits(a.b), few = a.expected <= kFewRows;
    const int rows = few ? kFewRows : kManyRows;
    const int64_t tiles = most_row_tiles(a, rows) * ceil_div(a.n, columns_of(rows));
    const int64_t most = int64_t(vendor.units) * kPerUnit, workgroups = tiles < most ? tiles : most;
    const auto start = [&](auto kernel) { return vendor.launch(kernel, workgroups, kThreads, 1, a); };
    if (few) return start(aligned ? mx_gemm_plain<type, kFewRows, true> : mx_gemm_plain<type, kFewRows, false>);
    return start(aligned ? mx_gemm_plain<type, kManyRows, true> : mx_gemm_plain<type, kManyRows, false>);
}

// fits(a): whether launch_fast(a, vendor) takes it. FP8 that the device does not multiply is refused: what it is widened to
// holds either, but a checkpoint that was not converted would pass unseen.
template <class Vendor, class Fits, class Fast>
Status launch_by_type(const Args& a, const Vendor& vendor, const Fits& fits, const Fast& launch_fast) {
    if (a.m == 0 || a.n == 0 || a.a_rows == 0) return {};
    for (const DType format : {a.format_a, a.format_b}) {
        if (is_fp8(format) && format != vendor.fp8)
            return {vendor.fp8 == DType::e4m3fn ? "a, b: dtype float8_e4m3fnuz; this GPU multiplies float8_e4m3fn"
                                                : "a, b: dtype float8_e4m3fn; this GPU multiplies float8_e4m3fnuz"};
    }
    if (fits(a)) return launch_fast(a, vendor);
    return a.format_a == DType::bf16 ? launch_as<DType::bf16>(a, vendor) : launch_as<DType::f16>(a, vendor);
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
