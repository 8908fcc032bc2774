// Shapes at compile time, matrix instructions, and the way of an operand from global memory to LDS.
#pragma once

#include "../../common/gemm/hip/tile.h"
#include "config.h"

namespace rocm_fp8::int8_gemm::hip {
namespace {

using namespace gemm_tile;

constexpr bool kByColumns = false;

template <int index>
struct Shape : TileSizes<kTileShapes[index]> {
    using Sizes = TileSizes<kTileShapes[index]>;
    static constexpr bool by_columns = kByColumns;
    // Stages in a round of the main loop: stages in flight, buffers and sets of fragments are constants in it.
    static constexpr int unrolled = Sizes::ahead % 2 ? 2 * Sizes::ahead : Sizes::ahead;
    static_assert(kBlock % Sizes::stage == 0);
};

template <int matrix>
using Sums = int __attribute__((ext_vector_type(matrix == 32 ? 16 : 4)));
using i32x4 = int __attribute__((ext_vector_type(4)));

template <class S>
using TileSums = Sums<S::matrix>[S::sub_m][S::sub_n];

// The n-th instruction on a fragment: gfx950's take all of it, gfx942's one of its halves.
#if defined(__gfx950__)
constexpr int kInstructionsAFragment = 1;

template <int matrix>
__device__ inline Sums<matrix> multiply(const u32x4* b, const u32x4* a, Sums<matrix> c, int) {
    const auto whole = [](const u32x4* fragment) { return __builtin_bit_cast(i32x4, *fragment); };
    if constexpr (matrix == 32) {
        return __builtin_amdgcn_mfma_i32_32x32x32_i8(whole(b), whole(a), c, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_i32_16x16x64_i8(whole(b), whole(a), c, 0, 0, 0);
    }
}
#else
constexpr int kInstructionsAFragment = 2;

template <int matrix>
__device__ inline Sums<matrix> multiply(const u32x4* b, const u32x4* a, Sums<matrix> c, int n) {
    if constexpr (matrix == 32) {
        return __builtin_amdgcn_mfma_i32_32x32x16_i8(half_of(*b, n), half_of(*a, n), c, 0, 0, 0);
    } else {
        return __builtin_amdgcn_mfma_i32_16x16x32_i8(half_of(*b, n), half_of(*a, n), c, 0, 0, 0);
    }
}
#endif

// One operand's part in a tile: `count` rows, a stage after the other. A thread has the same chunks of every stage;
// neighbouring threads have the chunks of a row. Rows and k beyond the end are zeros.
//
// careful = false: rows start at multiples of 16 bytes, k is a multiple of 16, and `count` rows lie within 2^30 bytes:
// loads are checked by a buffer's bounds.
// careful = true: any rows. Chunks are loaded from any address; the one that k ends in, byte by byte.
template <int count, int stage, int threads, bool careful>
struct StageLoader {
    static constexpr int kChunks = stage / kChunk, kPieces = count * kChunks;
    static constexpr int kLoads = (kPieces + threads - 1) / threads;
    static constexpr int kLastWaves = (kPieces - (kLoads - 1) * threads) / kWave;  // that have a piece of the last load
    static_assert(kPieces % kWave == 0 && threads % kChunks == 0);

    Buffer buffer{nullptr, 0};
    uint32_t offset[kLoads];
    const int8_t* first = nullptr;
    int64_t row_stride = 0;
    int rows = 0;
    uint32_t k, end;

    static __device__ int row_of(int i) { return (int(threadIdx.x) + i * threads) / kChunks; }
    static __device__ int chunk() { return int(threadIdx.x) % kChunks; }
    static __device__ bool has(int i) {
        return i + 1 < kLoads || kLastWaves * kWave == threads || uniform(threadIdx.x / kWave) < kLastWaves;
    }

    // Of the tile that begins at `row` of `all` rows of a matrix. end_k: of its rows.
    __device__ void start(const int8_t* matrix, int64_t stride, int64_t row, int64_t all, int64_t end_k) {
        rows = int(all - row < count ? all - row : count);
        first = matrix + row * stride;
        row_stride = stride;
        end = uint32_t(end_k);
        k = uint32_t(chunk()) * kChunk;
        if constexpr (!careful) {
            buffer = Buffer(first, uint32_t((rows - 1) * stride + end_k));
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
                offset[i] = row_of(i) < rows && has(i) ? uint32_t(row_of(i) * int(stride)) : kNowhere;
            }
        }
    }

    // Where a thread's chunk of the stage is that begins at k = `at`; the same for both operands.
    __device__ uint32_t chunk_at(uint32_t at) const { return at + k < end ? at + k : kNowhere; }

    // Load i of a stage. mine: chunk_at(at).
    __device__ void request(u32x4 (&into)[kLoads], int i, uint32_t mine) const {
        if constexpr (!careful) {
            // Waves without a piece load zeros from nowhere, so that the number of loads in flight is known.
            into[i] = buffer.load(mine + offset[i]);
        } else {
            into[i] = u32x4(0);
            if (mine == kNowhere || row_of(i) >= rows || !has(i)) return;
            const int8_t* const from = first + row_of(i) * row_stride + mine;
            if (mine + kChunk <= end) {
                struct __attribute__((packed)) AnyAddress {
                    u32x4 v;
                };
                into[i] = global<AnyAddress>(from)->v;
                return;
            }
            // A loop, not sixteen conditions that are held in scalar registers.
#pragma unroll 1
            for (uint32_t word = 0; word < kChunk; word += 4) {
                uint32_t value = 0;
#pragma unroll
                for (uint32_t byte = 0; byte < 4; ++byte) {
                    if (mine + word + byte < end) {
                        value |= uint32_t(global<uint8_t>(from)[word + byte]) << (byte * 8);
                    }
                }
                into[i] = u32x4{into[i].y, into[i].z, into[i].w, value};
            }
        }
    }

    static __device__ void store(char* operand, const u32x4 (&from)[kLoads], int i) {
        if (has(i)) {
            *reinterpret_cast<u32x4*>(operand + place<stage, kByColumns>(row_of(i), chunk())) = from[i];
        } else {
            asm volatile("" ::"v"(from[i]));  // waits for it, as the others do
        }
    }
};

}  // namespace
}  // namespace rocm_fp8::int8_gemm::hip
