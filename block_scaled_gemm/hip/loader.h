// Global memory to registers to LDS: the stages of an operand, and the scales of a period of blocks.
#pragma once

#include <type_traits>

#include "../../common/gemm/scales.h"
#include "tile.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

// The 16 bytes of a row from k = `from` on, byte by byte; zeros from `end` on.
__device__ inline u32x4 chunk_of_bytes(const uint8_t* row, int64_t k_stride, int64_t from, int64_t end) {
    const auto* bytes = global<uint8_t>(row + from * k_stride);
    const int64_t left = end - from;
    u32x4 chunk(0);
    // A loop, not sixteen conditions that are held in scalar registers.
#pragma unroll 1
    for (int word = 0; word < kChunk; word += 4) {
        uint32_t value = 0;
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) {
            if (word + byte < left) value |= uint32_t(bytes[(word + byte) * k_stride]) << (byte * 8);
        }
        chunk = u32x4{chunk.y, chunk.z, chunk.w, value};
    }
    return chunk;
}

// One operand's part in a tile: `count` rows, a stage after the other. A thread has the same chunks of every stage.
//
// careful = false: rows start at multiples of 16 bytes, k is a multiple of 16, and `count` rows lie within 2^30 bytes.
// Neighbouring threads load the chunks of a row. Rows and k beyond the end are zeros by the bounds check.
// careful = true: any strides, also column-major. Neighbouring threads load the same chunk of neighbouring rows, byte
// by byte.
template <int count, int stage, int threads, bool careful>
struct StageLoader {
    static constexpr int kChunks = stage / kChunk, kPieces = count * kChunks;
    static constexpr int kLoads = (kPieces + threads - 1) / threads;
    static constexpr bool kPartly = kPieces % threads != 0;  // the last threads load nothing
    static_assert(!kPartly || kLoads == 1);

    Buffer buffer{nullptr, 0};
    uint32_t offset[kLoads];
    const uint8_t* first = nullptr;
    int64_t row_stride = 0, k_stride = 0;
    int rows = 0;
    uint32_t k, end;

    static __device__ int piece(int i) { return int(threadIdx.x) + i * threads; }
    static __device__ int row_of(int i) { return careful ? piece(i) % count : piece(i) / kChunks; }
    static __device__ int chunk_of(int i) { return careful ? piece(i) / count : piece(i) % kChunks; }
    static __device__ bool has(int i) { return !kPartly || piece(i) < kPieces; }

    // Of the tile that begins at `row` of `all` rows. end_k: of the operand's rows.
    __device__ void start(const Operand& from, int64_t row, int64_t all, int64_t end_k, uint32_t) {
        rows = int(all - row < count ? all - row : count);
        first = from.data + row * from.row_stride;
        row_stride = from.row_stride;
        k_stride = from.k_stride;
        end = uint32_t(end_k);
        k = uint32_t(chunk_of(0)) * kChunk;
        if constexpr (!careful) {
            buffer = Buffer(first, uint32_t((rows - 1) * row_stride + end_k));
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
                offset[i] = row_of(i) < rows && has(i) ? uint32_t(row_of(i) * int(row_stride)) : kNowhere;
            }
        }
    }

    // Where a thread's chunk of the stage is that begins at k = `at`; the same for both operands.
    __device__ uint32_t chunk_at(uint32_t at) const { return at + k < end ? at + k : kNowhere; }

    // Load i of a stage. mine: chunk_at(at), unless careful.
    __device__ void request(u32x4 (&into)[kLoads], int i, uint32_t at, uint32_t mine) const {
        if constexpr (!careful) {
            // Waves without a piece load nothing: what they loaded would not be waited for.
            if (!kPartly || has(0)) into[i] = buffer.load(mine + offset[i]);
        } else {
            const int64_t from = int64_t(at) + chunk_of(i) * kChunk;
            into[i] = u32x4(0);
            if (row_of(i) < rows && has(i)) {
                into[i] = chunk_of_bytes(first + row_of(i) * row_stride, k_stride, from, end);
            }
        }
    }

    static __device__ void store(char* operand, const u32x4 (&from)[kLoads], int i) {
        if (has(i)) *reinterpret_cast<u32x4*>(operand + place<stage, kByColumns>(row_of(i), chunk_of(i))) = from[i];
    }
};

// The number that an element's bits are: float32's, or e8m0's byte.
__device__ inline float scale_of_bits(bool e8m0, uint32_t bits) {
    if (!e8m0) return bits_float(bits);
    constexpr uint32_t kNan = 0x7FC00000u, kHalfOfMinNormal = 0x00400000u;  // 255; 2^-127
    return bits_float(bits == 0 ? kHalfOfMinNormal : bits == 255 ? kNan : bits << 23);
}
// Any scale, one by one.
__device__ inline uint32_t scale_bits(const Scales& s, int64_t row, int64_t block) {
    const int64_t at = (s.rows == 1 ? row : int64_t(uint64_t(row) / kBlock)) * s.row_stride + block * s.block_stride;
    if (s.dtype == DType::e8m0) return global<uint8_t>(s.data)[at];
    return global<uint32_t>(s.data)[at];
}

constexpr int kPeriod = 8;  // blocks whose scales are loaded together

// The scales of kPeriod blocks for `count` rows, from global memory to registers, by a workgroup or (threads == kWave)
// by a wave. Eight neighbouring threads have eight blocks of a row, so that a wave's load touches eight lines of scales
// [rows, blocks] of either order.
//
// careful = false: the scales of a tile lie within 2^30 bytes. Beyond the last row or block they are zeros.
template <int count, int threads, bool careful>
struct ScaleLoader {
    static constexpr int kPieces = count * kPeriod, kLoads = (kPieces + threads - 1) / threads;
    uint32_t bits[kLoads] = {};
    Buffer buffer{nullptr, 0};
    uint32_t row_bytes, block_bytes, shift, rows, blocks;  // shift: 2^shift rows share a scale
    int64_t first_row, last_row, first_block, last_block;

    // Of a load: for one row all threads have that one.
    static __device__ uint32_t row_of(uint32_t thread, int i) {
        return count == 1 ? 0 : (thread + i * threads) / kPeriod;
    }

    // Of the tile that begins at `row` of `all` rows, for blocks [begin, end).
    __device__ void start(const Scales& s, int64_t row, int64_t all, int64_t begin, int64_t end) {
        if constexpr (careful) {
            first_row = row, last_row = all - 1, first_block = begin, last_block = end - 1;
        } else {
            const int64_t size = s.dtype == DType::e8m0 ? 1 : 4;
            shift = s.rows == 1 ? 0 : 7;
            row_bytes = uint32_t(s.row_stride * size), block_bytes = uint32_t(s.block_stride * size);
            rows = uint32_t(all - row < count ? all - row : count), blocks = uint32_t(end - begin);
            const int64_t first = int64_t(uint64_t(row) >> shift) * s.row_stride + begin * s.block_stride;
            const int64_t last = int64_t((rows - 1) >> shift) * s.row_stride + (blocks - 1) * s.block_stride;
            buffer = Buffer(offset(s.data, first * size), uint32_t((last + 1) * size));
        }
    }

    // The period that begins at `block` of those of start.
    __device__ void request(const Scales& s, uint32_t block) {
        const uint32_t thread = fresh_thread() % threads;
        if constexpr (careful) {
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
                const int64_t row = first_row + row_of(thread, i);
                const int64_t mine = first_block + block + thread % kPeriod;
                bits[i] = scale_bits(s, row < last_row ? row : last_row, mine < last_block ? mine : last_block);
            }
        } else {
            const uint32_t also = block * block_bytes, in_period = thread % kPeriod;
            const uint32_t mine = block + in_period < blocks ? in_period * block_bytes : kNowhere;
            const auto load = [&]<class T>(T) {
#pragma unroll
                for (int i = 0; i < kLoads; ++i) {
                    const uint32_t row = row_of(thread, i);
                    const uint32_t of_row = count == 1 ? 0 : row < rows ? (row >> shift) * row_bytes : kNowhere;
                    bits[i] = buffer.load_element<T>(of_row + mine, also);
                }
            };
            if (s.dtype == DType::e8m0) {
                load(uint8_t());
            } else {
                load(uint32_t());
            }
        }
    }
};

// In LDS: [kPeriod][kScalePitch] float32.
template <int count>
constexpr int kScalePitch = count + 8;  // the eight blocks of a row are in different banks

// Stores a period of scales, each times the other operand's, which is the same for all rows.
template <int count, int threads, class Loader, class Times>
__device__ inline void store_scales(float* lds, const Scales& s, const Loader& loader, Times times) {
    const uint32_t thread = fresh_thread() % threads;
    float* const mine = lds + thread % kPeriod * kScalePitch<count>;
#pragma unroll
    for (int i = 0; i < Loader::kLoads; ++i) {
        const uint32_t row = Loader::row_of(thread, i);
        const float v = times(scale_of_bits(s.dtype == DType::e8m0, loader.bits[i]));
        if (Loader::kPieces % threads == 0 || row < count) mine[row] = v;
    }
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
