// Scales of a period of blocks on their way to LDS: global memory to registers to LDS.
#pragma once

#include "../scales.h"
#include "tile.h"

namespace rocm_fp8::gemm::hip {
namespace {

constexpr int kPeriod = 8;  // blocks whose scales are loaded together

// The scales of kPeriod blocks for `count` rows, from global memory to registers, by a workgroup or (threads == kWave)
// by a wave. Eight neighbouring threads have eight blocks of a row, so that a wave's load touches eight lines of scales
// [rows, blocks] of either order.
//
// strided = false: the scales of a tile lie within 2^30 bytes. Beyond the last row or block they are zeros.
template <int count, int threads, bool strided>
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
        if constexpr (strided) {
            first_row = row, last_row = all - 1, first_block = begin, last_block = end - 1;
        } else {
            const int64_t size = s.dtype == DType::e8m0 ? 1 : 4;
            shift = s.rows == 1 ? 0 : 7;
            row_bytes = uint32_t(s.row_stride * size), block_bytes = uint32_t(s.block_stride * size);
            rows = uint32_t(rows_before(all, row, count)), blocks = uint32_t(end - begin);
            const int64_t first = int64_t(uint64_t(row) >> shift) * s.row_stride + begin * s.block_stride;
            const int64_t last = int64_t((rows - 1) >> shift) * s.row_stride + (blocks - 1) * s.block_stride;
            buffer = Buffer(offset(s.data, first * size), uint32_t((last + 1) * size));
        }
    }

    // The period that begins at `block` of those of start.
    __device__ void request(const Scales& s, uint32_t block) {
        const uint32_t thread = fresh_thread() % threads;
        if constexpr (strided) {
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
}  // namespace rocm_fp8::gemm::hip
