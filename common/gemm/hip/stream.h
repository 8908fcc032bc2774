// The GEMM kernel for up to 32 rows: weights (B) stream from memory into registers, as fragments of matrix
// instructions. skinny_gemm and block_scaled_gemm share it.
//
// A workgroup makes all rows of 16 or 32 columns, over all of K or a part of it. Its waves share the blocks of 128 k;
// each multiplies what it loads. No barrier, no flag and no LDS lies between a load and its multiplication:
//
//     each wave   B: HBM, A: L2 --> registers, S::depth blocks in flight --> matrix instructions --> Sums
//     workgroup   sums --> LDS --> added in the order of the waves --> split-K --> scales, bias, rounding
//
// Bound: bytes from memory. All workgroups of a launch are resident at once where they can be: none waits for a second
// round. Each has 32 KiB or more of weights in flight.
//
// A lane's load is 16 bytes from k = 16 g of column j (lane 16 g + j): an instruction covers 64 bytes of each of 16
// columns, the block's two instructions whole lines of 128 bytes. Two tiles of columns share what is loaded of A.
//
// A block's loads are asked for as soon as its registers are free, so waits are partial: the other blocks stay in
// flight. Rows, columns and k beyond the end are zeros from an offset beyond the buffer, which touches no memory.
//
// Sums says what is made of products: begin() when the first block has been asked for; multiply(a, b, slot) of a block's
// fragments; fold() when the next block has been asked for; store(region), float [S::sums].
#pragma once

#include "../../divider.h"
#include "../../hip/half_matrix.h"
#include "../work.h"
#include "fp8_matrix.h"
#include "loaders.h"
#include "stream_shape.h"

namespace rocm_fp8::gemm::hip {
namespace {

constexpr int kHalves = 2;  // loads of a row of a block

// An entry of a table as compile-time constants of the kernel.
template <const StreamShape& shape, int most_depth = shape.depth>
struct Stream {
    static constexpr int rows = shape.rows, columns = shape.columns, waves = shape.waves, threads = waves * kWave,
                         sub_m = rows == 8 ? 1 : rows / 16, sub_n = columns / 16,
                         depth = shape.depth < most_depth ? shape.depth : most_depth;
    // Waves per SIMD: the four SIMDs of a compute unit share its workgroups' waves.
    static constexpr int waves_per_simd = (waves * shape.per_unit + 3) / 4;
    // A wave's sums in LDS: rows of fours, whose place depends on the row: of eight rows the same four, and eight
    // neighbouring fours, lie in different banks.
    static constexpr int sums = rows * columns;
    static __device__ int place(int row, int column) {
        constexpr int across = columns / 4;
        return (row * across + (column / 4 ^ row / (8 / across) % across)) * 4 + column % 4;
    }
};

// What a workgroup needs before its first load. A kernel names these as arguments one by one, which puts them into
// registers when a wave begins: as many as there are. Divisions are the host's.
struct StreamWork {
    const uint8_t *a, *b;
    uint32_t a_stride, b_stride;  // bytes
    int m, n;
    uint32_t k;
    int blocks, longer;  // of a share of K; the first `longer` shares have one more
    Divider parts;

    // The first block of share i. Beyond the last: the end.
    __device__ int begin(int i) const { return i * blocks + (i < longer ? i : longer); }
};

// Of what a lane loads of 16 rows: its row, and its k of a load's 64. Of 8 rows: the dense row of the lane's sparse one.
template <int rows>
__device__ inline int own_row() {
    const int j = threadIdx.x % 16;
    return rows == 8 ? j / 2 : j;
}
__device__ inline int own_k() { return threadIdx.x % kWave / 16 * kChunk; }

// Fragments of `rows` rows that start at multiples of 16 bytes, within 2^30 bytes; k is contiguous, and a multiple of 16.
template <int rows, int policy>
struct AlignedFragments {
    static constexpr bool any = false;
    static constexpr uint32_t kBeyond = kNowhere;  // k beyond the end
    static constexpr int kCount = rows == 8 ? 1 : rows / 16;
    Buffer buffer{nullptr, 0};
    uint32_t at[kCount];

    // Of the rows from `row` on, of `all`.
    __device__ void start(const uint8_t* data, uint32_t stride, int row, int all) {
        buffer = Buffer(data + uint64_t(uint32_t(row)) * stride, kNowhere);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int mine = 16 * i + own_row<rows>();
            at[i] = row + mine < all ? mine * stride + own_k() : kNowhere;
        }
    }
    // k: of the wave's load.
    __device__ u32x4 load(int i, uint32_t k, uint32_t) const { return buffer.template load<policy>(at[i] + k); }
};

// Of any layout and alignment.
template <int rows>
struct AnyFragments {
    static constexpr bool any = true;
    static constexpr uint32_t kBeyond = ~uint32_t(kBlock - 1);
    const uint8_t* first;
    int64_t row_stride, k_stride, left;

    __device__ void start(const Operand& from, int64_t row, int64_t all) {
        first = from.data + row * from.row_stride;
        row_stride = from.row_stride, k_stride = from.k_stride, left = all - row;
    }
    __device__ u32x4 load(int i, uint32_t k, uint32_t end) const {
        const int mine = 16 * i + own_row<rows>();
        k += own_k();
        if (mine >= left || k >= end) return u32x4(0);
        const uint8_t* chunk = first + mine * row_stride + k * k_stride;
        if (k_stride == 1 && end - k >= uint32_t(kChunk)) return load_unaligned(chunk);
        return chunk_of_bytes(chunk, k_stride, end - k);
    }
};

// What a wave does of a workgroup's share of K: blocks kStep k apart.
template <class S, int kStep, class A, class B, class Sums>
class StreamSlice {
    u32x4 a[S::depth][S::sub_m][kHalves], b[S::depth][S::sub_n][kHalves];
    uint32_t k, last_k, end;  // of the wave's next block to ask for, and its last one; of K
    int blocks;               // left to ask for
    bool tail;                // the last block is not whole: it is asked for when a slot is free for good

  public:
    A load_a;
    B load_b;
    Sums sums;

    // Starts to load `count` blocks, the first at `first_k`.
    __device__ void start(uint32_t first_k, int count, uint32_t end_k) {
        k = first_k, end = end_k, last_k = first_k + uint32_t(count - 1) * kStep;
        tail = !A::any && count > 0 && end - last_k < kBlock;
        blocks = count - tail;
#pragma unroll
        for (int slot = 0; slot < S::depth; ++slot) {
            request(slot);
            if (slot == 0) sums.begin();
        }
    }

    __device__ void multiply() {
        // `blocks` counts those that are not asked for yet: up to S::depth less than none.
        while (blocks > 0) {
#pragma unroll
            for (int slot = 0; slot < S::depth; ++slot) {
                sums.multiply(a[slot], b[slot], slot);
                request(slot);
                sums.fold();
            }
        }
        drain<0>();
        if (tail) {
            sums.multiply(a[0], b[0], 0);
            sums.fold();
        }
    }

  private:
    // at(half): k of a load.
    template <class At>
    __device__ void request(int slot, const At& at) {
        static_assert(A::kBeyond == B::kBeyond);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            const uint32_t mine = at(half);
#pragma unroll
            for (int i = 0; i < S::sub_n; ++i) b[slot][i][half] = load_b.load(i, mine, end);
#pragma unroll
            for (int i = 0; i < S::sub_m; ++i) a[slot][i][half] = load_a.load(i, mine, end);
        }
        // Loads stay in this order, before the loop and in it: waits count them.
        __builtin_amdgcn_sched_barrier(0);
    }
    // Asks for the next block; beyond the last for zeros.
    __device__ void request(int slot) {
        const uint32_t first = blocks > 0 ? k : A::kBeyond;
        request(slot, [&](int half) { return first + half * 64; });
        k += kStep;
        --blocks;
    }
    __device__ void request_tail() {
        request(0, [&](int half) { return own_k() + half * 64 < int(end - last_k) ? last_k + half * 64 : A::kBeyond; });
    }

    // The blocks that are in flight when the last one has been asked for.
    template <int slot>
    __device__ void drain() {
        if constexpr (slot < S::depth) {
            const bool none = blocks + S::depth <= slot;
            if (!none) sums.multiply(a[slot], b[slot], slot);
            if (slot == 0 && tail) request_tail();
            if (none) return;
            sums.fold();
            drain<slot + 1>();
        }
    }
};

// A wave's sums to LDS. A lane has four columns of a row of each 16 x 16.
template <class S>
__device__ inline void store_sums(float* region, const f32x4 (&sums)[S::sub_m][S::sub_n]) {
    const int g = threadIdx.x % kWave / 16, j = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
        for (int t = 0; t < S::sub_n; ++t)
            *reinterpret_cast<f32x4*>(region + S::place(16 * i + j, 16 * t + 4 * g)) = sums[i][t];
    }
}

// Sums over all of K, without scales between. type: of the operands; e4m3fnuz stands for the chip's own FP8.
template <class S, DType type = DType::e4m3fnuz>
class RunningSums {
    static constexpr bool sparse = S::rows == 8, fp8 = is_fp8(type);
    static constexpr int kInstructions = fp8 ? instructions_on(kHalves) : kHalves * kHalfInstructions;
    f32x4 d[S::sub_m][S::sub_n];

    // The n-th instruction on a block.
    static __device__ f32x4 multiply(const u32x4* b, const u32x4* a, f32x4 c, int n) {
        if constexpr (fp8) return hip::multiply<16>(b, a, c, n);
        else
            return multiply_half<16, type>(b[n / kHalfInstructions], a[n / kHalfInstructions], c,
                                           n % kHalfInstructions);
    }

  public:
    static constexpr int kRegion = S::sums;

    __device__ RunningSums() { clear_sums(d); }

    // Up to 8 rows: v_smfmac_f32_16x16x64_fp8_fp8. Its A is sparse: it holds two of four neighbouring k, and an index
    // says which. Sparse row 2r holds k = 0, 1 (mod 4) of row r, sparse row 2r + 1 the other two. So eight dense rows
    // fill sixteen sparse ones, and D[2r] + D[2r + 1] is row r's sum.
    __device__ void begin() {}
    __device__ void multiply(const u32x4 (&a)[S::sub_m][kHalves], const u32x4 (&b)[S::sub_n][kHalves], int) {
        if constexpr (sparse) {
            using Pairs = int __attribute__((ext_vector_type(2)));
            using Words = int __attribute__((ext_vector_type(4)));
            // Positions 0 and 1 for even sparse rows, 2 and 3 for odd ones, in every group: 2 bits each.
            const int odd = threadIdx.x & 1, index = odd ? 0xEEEEEEEE : 0x44444444;
            const uint32_t halves = odd ? 0x07060302u : 0x05040100u;
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
                const u32x4 k = a[0][half];
                const Pairs own{int(__builtin_amdgcn_perm(k.y, k.x, halves)),
                                int(__builtin_amdgcn_perm(k.w, k.z, halves))};
#pragma unroll
                for (int j = 0; j < S::sub_n; ++j) {
                    d[0][j] = __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(own, __builtin_bit_cast(Words, b[j][half]),
                                                                           d[0][j], index, 0, 0);
                }
            }
        } else {
#pragma unroll
            for (int n = 0; n < kInstructions; ++n) {
#pragma unroll
                for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
                    for (int j = 0; j < S::sub_n; ++j) d[i][j] = multiply(b[j], a[i], d[i][j], n);
                }
            }
        }
    }
    __device__ void fold() {}

    __device__ void store(float* region) const {
        const int g = threadIdx.x % kWave / 16, j = threadIdx.x % 16;
        if constexpr (sparse) {
#pragma unroll
            for (int t = 0; t < S::sub_n; ++t) {
                region[S::place(2 * g, 16 * t + j)] = d[0][t].x + d[0][t].y;
                region[S::place(2 * g + 1, 16 * t + j)] = d[0][t].z + d[0][t].w;
            }
        } else {
            store_sums<S>(region, d);
        }
    }
};

}  // namespace
}  // namespace rocm_fp8::gemm::hip
