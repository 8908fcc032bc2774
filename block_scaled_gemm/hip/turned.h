// Operands whose rows are contiguous (column-major: M- or N-contiguous) on their way to LDS.
//
// A thread loads 4 x 4 bytes: four k of four neighbouring rows, a dword of each k. 16 lanes cover 64 contiguous bytes
// of a k, the other lanes the next k. It transposes them in registers by eight v_perm_b32 and stores a dword (four k)
// of each of its rows. Each 16 lanes have one of the four dwords of a chunk of 16 k, and place() spreads neighbouring
// fours of rows over the chunks. So the lanes of a store lie in 16 different banks of 32: rows of one parity have no
// more.
#pragma once

#include "loader.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

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

// As StageLoader. Dwords of rows are aligned, rows are a multiple of 4 and k one of a stage. Offsets are below 2^30.
template <int count, int stage, int threads>
struct TurnedLoader {
    static constexpr int kLoads = count * stage / (16 * threads), kFours = 4;
    static_assert(count % 64 == 0 && stage % kChunk == 0 && count * stage % (16 * threads) == 0);

    Buffer buffer{nullptr, 0};
    uint32_t offset[kLoads];
    uint32_t k_stride, end;

    // Of 64 pieces: 16 fours of rows by the four dwords of a chunk.
    static __device__ int row_of(int i) {
        const int pieces = int(threadIdx.x / kWave) + i * (threads / kWave);
        return (pieces % (count / 64) * 16 + int(threadIdx.x % 16)) * kFours;
    }
    static __device__ int chunk_of(int i) { return (int(threadIdx.x / kWave) + i * (threads / kWave)) / (count / 64); }
    static __device__ int dword() { return threadIdx.x % kWave / 16; }

    // first_k, end_k: of the unit. `at` below counts from first_k.
    __device__ void start(const Operand& from, int64_t row, int64_t all, int64_t end_k, uint32_t first_k) {
        const int rows = int(all - row < count ? all - row : count);
        buffer = Buffer(from.data + row + first_k * from.k_stride, kNowhere);
        k_stride = uint32_t(from.k_stride);
        end = uint32_t(end_k) - first_k;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int k = chunk_of(i) * kChunk + dword() * kFours;
            offset[i] = row_of(i) < rows ? uint32_t(k) * k_stride + row_of(i) : kNowhere;
        }
    }

    // 0, or beyond the end; the same for both operands if both are turned.
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
            *reinterpret_cast<uint32_t*>(operand + place<stage, kByColumns>(row_of(i) + e, chunk_of(i)) + dword() * 4) =
                rows[e];
        }
    }
};

template <int count, int stage, int threads, bool careful, bool turned>
using LoaderOf =
    std::conditional_t<turned, TurnedLoader<count, stage, threads>, StageLoader<count, stage, threads, careful>>;

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
