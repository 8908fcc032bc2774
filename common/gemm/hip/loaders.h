// The way of an operand from global memory to registers to LDS: `count` rows of a tile, a stage after the other.
//
//     aligned      rows start at multiples of 16 bytes, k is one: 128-bit buffer loads, their bounds checked in hardware
//     unaligned    k is contiguous: 128-bit loads from any address; the chunk that k ends in, byte by byte
//     strided      any layout, byte by byte. Neighbouring threads have neighbouring rows
//     transposed   rows are contiguous (column-major), dwords of them aligned: see TransposedLoader
//
// Rows and k beyond the end are zeros. A thread has the same kLoads pieces of every stage, of a chunk or as much:
//
//     start(matrix, row, row_end, first_k, end_k)   rows [row, row_end) of its first group, `count` at most in the tile
//     chunk_at(at)                                  where the thread's chunks of the stage are that begins at k = `at`,
//                                                   counted from first_k; the same for both operands of one layout
//     request(into, i, at, chunk_at(at))            load i
//     store(operand, from, i)                       to the operand's place in a stage of LDS
#pragma once

#include "../args.h"
#include "tile.h"

namespace rocm_fp8::gemm::hip {

enum class Layout { aligned, unaligned, strided, transposed };

namespace {

// Chunks of a stage by threads. Waves without a last chunk have that one from nowhere.
template <class S, int count>
struct Chunks {
    static constexpr int kChunks = S::stage / kChunk, kPieces = count * kChunks;
    static constexpr int kLoads = (kPieces + S::threads - 1) / S::threads;
    static constexpr int kLastWaves = (kPieces - (kLoads - 1) * S::threads) / kWave;  // that have one of the last load
    static_assert(kPieces % kWave == 0 && S::threads % kChunks == 0);

    static __device__ bool has(int i) {
        return i + 1 < kLoads || kLastWaves * kWave == S::threads || uniform(threadIdx.x / kWave) < kLastWaves;
    }
};

template <class S, int count>
struct StageLoader : Chunks<S, count> {
    static constexpr Layout layout = Layout::aligned;
    using Chunks<S, count>::kChunks, Chunks<S, count>::kLoads, Chunks<S, count>::has;

    Buffer buffer{nullptr, 0};
    uint32_t offset[kLoads];
    uint32_t k, end;

    static __device__ int row_of(int i) { return (int(threadIdx.x) + i * S::threads) / kChunks; }
    static __device__ int chunk() { return int(threadIdx.x) % kChunks; }

    // The tile's rows lie within 2^30 bytes.
    __device__ void start(const Operand& matrix, int64_t row, int64_t row_end, uint32_t first_k, uint32_t end_k) {
        const int rows = rows_before(row_end, row, count);
        const uint8_t* first = matrix.data + row * matrix.row_stride;
        end = end_k;
        k = first_k + uint32_t(chunk()) * kChunk;
        buffer = Buffer(first, uint32_t((rows - 1) * matrix.row_stride + end_k));
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            offset[i] = row_of(i) < rows && has(i) ? uint32_t(row_of(i) * int(matrix.row_stride)) : kNowhere;
        }
    }

    __device__ uint32_t chunk_at(uint32_t at) const { return at + k < end ? at + k : kNowhere; }

    // Waves without a piece load zeros from nowhere, so that the number of loads in flight is known.
    __device__ void request(u32x4 (&into)[kLoads], int i, uint32_t, uint32_t mine) const {
        into[i] = buffer.load(mine + offset[i]);
    }

    static __device__ void store(char* operand, const u32x4 (&from)[kLoads], int i) {
        if (has(i)) {
            *reinterpret_cast<u32x4*>(operand + place<S::stage, S::by_columns>(row_of(i), chunk())) = from[i];
        } else {
            asm volatile("" ::"v"(from[i]));  // waits for it, as the others do
        }
    }
};

// The 16 bytes of a row from `first` on, byte by byte; zeros behind the next `left`.
__device__ inline u32x4 chunk_of_bytes(const uint8_t* first, int64_t k_stride, uint32_t left) {
    const auto* bytes = global<uint8_t>(first);
    u32x4 chunk(0);
    // A loop, not sixteen conditions that are held in scalar registers.
#pragma unroll 1
    for (uint32_t word = 0; word < kChunk; word += 4) {
        uint32_t value = 0;
#pragma unroll
        for (uint32_t byte = 0; byte < 4; ++byte) {
            if (word + byte < left) value |= uint32_t(bytes[(word + byte) * k_stride]) << (byte * 8);
        }
        chunk = u32x4{chunk.y, chunk.z, chunk.w, value};
    }
    return chunk;
}

// The 16 bytes from k on of a row that begins anywhere and whose k are contiguous; zeros from `end` on, and of no row.
__device__ inline u32x4 chunk_of_row(const uint8_t* row, uint32_t k, uint32_t end) {
    if (!row || k >= end) return u32x4(0);
    return end - k >= uint32_t(kChunk) ? load_unaligned(row + k) : chunk_of_bytes(row + k, 1, end - k);
}

template <class S, int count, bool strided>
struct AnyLoader : Chunks<S, count> {
    static constexpr Layout layout = strided ? Layout::strided : Layout::unaligned;
    using Chunks<S, count>::kChunks, Chunks<S, count>::kLoads, Chunks<S, count>::has;

    const uint8_t* first = nullptr;
    int64_t row_stride = 0, k_stride = 0;
    int rows = 0;
    uint32_t begin, end;

    static __device__ int piece(int i) { return int(threadIdx.x) + i * S::threads; }
    static __device__ int row_of(int i) { return strided ? piece(i) % count : piece(i) / kChunks; }
    static __device__ int chunk_of(int i) { return strided ? piece(i) / count : int(threadIdx.x) % kChunks; }

    __device__ void start(const Operand& matrix, int64_t row, int64_t row_end, uint32_t first_k, uint32_t end_k) {
        rows = rows_before(row_end, row, count);
        first = matrix.data + row * matrix.row_stride;
        row_stride = matrix.row_stride;
        k_stride = strided ? matrix.k_stride : 1;
        begin = first_k;
        end = end_k;
    }

    __device__ uint32_t chunk_at(uint32_t) const { return 0; }

    __device__ void request(u32x4 (&into)[kLoads], int i, uint32_t at, uint32_t) const {
        const uint32_t mine = begin + at + uint32_t(chunk_of(i)) * kChunk;
        into[i] = u32x4(0);
        if (row_of(i) >= rows || !has(i) || mine >= end) return;
        const uint8_t* const row = first + row_of(i) * row_stride;
        if constexpr (!strided) {
            if (mine + kChunk <= end) {
                into[i] = load_unaligned(row + mine);
                return;
            }
        }
        into[i] = chunk_of_bytes(row + mine * k_stride, k_stride, end - mine);
    }

    static __device__ void store(char* operand, const u32x4 (&from)[kLoads], int i) {
        if (has(i))
            *reinterpret_cast<u32x4*>(operand + place<S::stage, S::by_columns>(row_of(i), chunk_of(i))) = from[i];
    }
};

// dword e: the four k of row e, from dwords k of four rows.
__device__ inline u32x4 transposed(u32x4 d) {
    constexpr uint32_t kLowPairs = 0x05010400u, kHighPairs = 0x07030602u;  // bytes 0 and 1, 2 and 3, alternating
    constexpr uint32_t kLowHalves = 0x05040100u, kHighHalves = 0x07060302u;
    const uint32_t low01 = __builtin_amdgcn_perm(d.y, d.x, kLowPairs),
                   low23 = __builtin_amdgcn_perm(d.w, d.z, kLowPairs);
    const uint32_t high01 = __builtin_amdgcn_perm(d.y, d.x, kHighPairs),
                   high23 = __builtin_amdgcn_perm(d.w, d.z, kHighPairs);
    return {__builtin_amdgcn_perm(low23, low01, kLowHalves), __builtin_amdgcn_perm(low23, low01, kHighHalves),
            __builtin_amdgcn_perm(high23, high01, kLowHalves), __builtin_amdgcn_perm(high23, high01, kHighHalves)};
}

// A thread loads 4 x 4 bytes: four k of four neighbouring rows, a dword of each k. 16 lanes cover 64 contiguous bytes
// of a k, the other lanes the next k. It transposes them in registers by eight v_perm_b32 and stores a dword (four k)
// of each of its rows. Each 16 lanes have one of the four dwords of a chunk of 16 k, and place() spreads neighbouring
// fours of rows over the chunks (S::by_columns). So the lanes of a store lie in 16 different banks of 32: rows of one
// parity have no more.
//
// Rows are a multiple of 4 and k one of a stage. Offsets are below 2^30.
template <class S, int count>
struct TransposedLoader {
    static constexpr Layout layout = Layout::transposed;
    static constexpr int kLoads = count * S::stage / (16 * S::threads), kFours = 4;
    static_assert(count % 64 == 0 && S::stage % kChunk == 0 && count * S::stage % (16 * S::threads) == 0);

    Buffer buffer{nullptr, 0};
    uint32_t offset[kLoads];
    uint32_t k_stride, end;

    // Of 64 pieces: 16 fours of rows by the four dwords of a chunk.
    static __device__ int pieces(int i) { return int(threadIdx.x / kWave) + i * (S::threads / kWave); }
    static __device__ int row_of(int i) { return (pieces(i) % (count / 64) * 16 + int(threadIdx.x % 16)) * kFours; }
    static __device__ int chunk_of(int i) { return pieces(i) / (count / 64); }
    static __device__ int dword() { return threadIdx.x % kWave / 16; }

    __device__ void start(const Operand& matrix, int64_t row, int64_t row_end, uint32_t first_k, uint32_t end_k) {
        static_assert(S::by_columns);
        const int rows = rows_before(row_end, row, count);
        buffer = Buffer(matrix.data + row + first_k * matrix.k_stride, kNowhere);
        k_stride = uint32_t(matrix.k_stride);
        end = end_k - first_k;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int k = chunk_of(i) * kChunk + dword() * kFours;
            offset[i] = row_of(i) < rows ? uint32_t(k) * k_stride + row_of(i) : kNowhere;
        }
    }

    // 0, or beyond the end.
    __device__ uint32_t chunk_at(uint32_t at) const { return at < end ? 0 : kNowhere; }

    __device__ void request(u32x4 (&into)[kLoads], int i, uint32_t at, uint32_t beyond) const {
        const uint32_t mine = offset[i] + beyond;
        uint32_t first = at * k_stride;
#pragma unroll
        for (int e = 0; e < kFours; ++e) {
            into[i][e] = buffer.load_element<uint32_t>(mine, first);
            first += k_stride;
            asm("" : "+s"(first));  // multiples of the stride would be held in scalar registers
        }
    }

    static __device__ void store(char* operand, const u32x4 (&from)[kLoads], int i) {
        const u32x4 rows = transposed(from[i]);
#pragma unroll
        for (int e = 0; e < kFours; ++e) {
            const int at = place<S::stage, S::by_columns>(row_of(i) + e, chunk_of(i)) + dword() * 4;
            *reinterpret_cast<uint32_t*>(operand + at) = rows[e];
        }
    }
};

template <class S, int count, Layout layout>
struct LoaderOf_ {
    using type = AnyLoader<S, count, layout == Layout::strided>;
};
template <class S, int count>
struct LoaderOf_<S, count, Layout::aligned> {
    using type = StageLoader<S, count>;
};
template <class S, int count>
struct LoaderOf_<S, count, Layout::transposed> {
    using type = TransposedLoader<S, count>;
};
template <class S, int count, Layout layout>
using LoaderOf = typename LoaderOf_<S, count, layout>::type;

}  // namespace
}  // namespace rocm_fp8::gemm::hip
