// Exponents of blocks on their way to lanes: a window of a row's at once from memory to registers, then to LDS.
//
// A step needs four bytes of each row, which lie far apart: loads of these alone would fetch a line for each. Rows may begin
// at any byte. A load does not reach beyond the last row, or beyond its own where others do not follow at once: it is moved
// back there, and its bytes are shifted into place.
#pragma once

#include "../../common/gpu/lanes.h"
#include "config.h"

namespace rocm_fp8::mx_gemm::hip {
namespace {

constexpr int kChunk = 16;                                         // bytes of a load
constexpr int kWindow = 64, kWindowSteps = kWindow / kStepBlocks;  // blocks of a window

// Whether a load of 16 bytes finds what it asks for.
inline bool has_chunks(const gemm::Scales& s, int64_t count, int64_t blocks) {
    return (s.block_stride == 1 || blocks == 1) && s.row_stride >= 0 &&
           (s.row_stride == blocks ? count * blocks : blocks) >= kChunk;
}

// Right by `count` bytes, up to 15.
__device__ inline u32x4 shifted(u32x4 v, uint32_t count) {
    using Halves = uint64_t __attribute__((ext_vector_type(2)));
    const auto of = __builtin_bit_cast(Halves, v);
    const uint32_t bits = count % 8 * 8;
    const uint64_t joined = bits ? of.x >> bits | of.y << (64 - bits) : of.x, upper = of.y >> bits;
    return __builtin_bit_cast(u32x4, count < 8 ? Halves{joined, upper} : Halves{upper, 0});
}

// Of `rows` rows, for `threads` threads.
template <int rows, int threads>
class Exponents {
    // 16 bytes behind each row: their banks differ.
    static constexpr int kStride = kWindow + kChunk, kPerRow = kWindow / kChunk, kAll = rows * kPerRow,
                         kPieces = (kAll + threads - 1) / threads;

    u32x4 pieces[kPieces];
    uint32_t at[kPieces], last[kPieces];
    const uint8_t* data;
    uint8_t* lds;

    // Threads beyond the last piece have it, too.
    static __device__ int piece(int i) {
        const int own = i * threads + int(threadIdx.x);
        return (i + 1) * threads <= kAll || own < kAll ? own : kAll - 1;
    }
    __device__ uint32_t wanted(int i, int number) const { return at[i] + uint32_t(number * kWindow); }

  public:
    static constexpr int kLdsBytes = rows * kStride;

    // s: of `count` rows of `blocks` each (has_chunks). row_of(i): the i-th one's row.
    template <class RowOf>
    __device__ void start(const void* from, const gemm::Scales& s, int64_t count, int blocks, uint8_t* in_lds,
                          const RowOf& row_of) {
        data = static_cast<const uint8_t*>(from), lds = in_lds;
        const uint32_t end = uint32_t((count - 1) * s.row_stride + blocks);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const uint32_t row = row_of(piece(i) / kPerRow) * uint32_t(s.row_stride);
            at[i] = row + piece(i) % kPerRow * kChunk;
            last[i] = (s.row_stride == blocks ? end : row + blocks) - kChunk;
        }
    }
    __device__ void request(int number) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            pieces[i] = load_unaligned(data + (wanted(i, number) < last[i] ? wanted(i, number) : last[i]));
    }
    // For the other threads to read behind a barrier.
    __device__ void put(int number) const {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const uint32_t beyond = wanted(i, number) > last[i] ? wanted(i, number) - last[i] : 0;
            *reinterpret_cast<u32x4*>(lds + piece(i) / kPerRow * kStride + piece(i) % kPerRow * kChunk) =
                shifted(pieces[i], beyond < kChunk ? beyond : kChunk - 1);
        }
    }
    // block: of K; of those of the window that LDS has.
    __device__ uint32_t of(int row, int block) const { return lds[row * kStride + block % kWindow]; }
};

}  // namespace
}  // namespace rocm_fp8::mx_gemm::hip
