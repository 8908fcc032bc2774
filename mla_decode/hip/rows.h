// A workgroup's item, and a wave of 16 rows of it, by matrix instructions of 16 x 16.
//
// Its queries and the sums of all 512 columns stay in registers; scores, exponentials and their 16-bit form never leave
// them either: what an instruction gives for keys x queries, a lane's four tokens of a row, is what the next one takes
// for values x exponentials.
//
// Rows and columns of the sums: lane 16 g + j has row j, and of 64 columns b * 64 the 16 g ... + 15: column 4 r + n of
// those is sums[b][n][r].
#pragma once

#include "../../common/attention/hip/online_softmax.h"
#include "../../common/hip/half_matrix.h"
#include "../../common/gpu/lanes.h"
#include "../../common/hip/lds.h"
#include "../gpu/splits.h"
#include "tile.h"

namespace rocm_fp8::mla_decode::hip {

// A kernel of kDirectForms, which takes a Launch: direct.hip.
const void* direct_kernel(int form, DType type);

namespace {

struct Launch {
    Args args;
    Partial partial;
    Divider page_size, heads, row_tiles, splits;
    uint32_t items, per_chiplet;
};

// What a workgroup makes.
struct Item {
    int32_t b, split, first_row;
};

// Workgroup i runs on chiplet i % 8. Row tiles of a split follow one another on a chiplet, whose L2 they share.
__device__ inline bool item_of(const Launch& launch, int rows, Item* item) {
    constexpr uint32_t kChiplets = 8;
    const uint32_t place = blockIdx.x / kChiplets, at = blockIdx.x % kChiplets * launch.per_chiplet + place;
    if (place >= launch.per_chiplet || at >= launch.items) return false;
    const uint32_t of_rows = divide(at, launch.row_tiles), b = divide(of_rows, launch.splits);
    *item = {int32_t(b), int32_t(of_rows - b * launch.splits.divisor),
             int32_t(at - of_rows * launch.row_tiles.divisor) * rows};
    return true;
}

// A wave's row of a launch: its query, and how many tokens it sees before `end`.
struct OwnRow {
    const uint8_t* q;
    int32_t seen;
};
__device__ inline OwnRow own_row(const Launch& launch, const Item& item, int row, int32_t length, int32_t end) {
    const Args& a = launch.args;
    const int last = a.rows() - 1;
    row = row < last ? row : last;
    const int query = int(divide(uint32_t(row), launch.heads)), head = row - query * a.heads;
    const int64_t seen = a.seen_by(query, length);
    const int64_t at = item.b * a.q_batch_stride + query * a.q_query_stride + head * a.q_head_stride;
    return {static_cast<const uint8_t*>(a.q) + at * 2, seen < end ? int32_t(seen) : end};
}

// These sums are made before later reads of LDS: more of those in flight would take registers that there are not.
__device__ inline void made_first(f32x4& sums) { asm volatile("" : "+v"(sums)::"memory"); }

// Low halves, or high ones, of two words.
template <int which>
__device__ inline uint32_t halves_of(uint32_t first, uint32_t second) {
    constexpr uint32_t kLow = 0x05040100u, kHigh = 0x07060302u;
    return __builtin_amdgcn_perm(second, first, which ? kHigh : kLow);
}

// keys, values: reads of LDS that are ahead of the multiplications.
template <DType type, int keys_ahead, int values_ahead>
class Rows {
  protected:
    static constexpr int kSteps = kWidth / 32, kBlocks = kLatent / 64;
    static constexpr int kKeysAhead = keys_ahead, kValuesAhead = values_ahead;
    using Softmax = attention::OnlineSoftmax<type>;
    u32x4 q[kSteps];
    f32x4 sums[kBlocks][4];
    int32_t seen;  // the tokens before it count
    float scale;   // of scores, to logarithms to base 2

  public:
    static constexpr int kRows = 16,
                         kRegion = kRows * 64 * 4;  // bytes of LDS in which a wave turns 64 columns, or hands them over
    static constexpr int kColumnBlocks = kBlocks;
    Softmax softmax;

    __device__ void start(const Launch& launch, const Item& item, int first, int32_t length, int32_t end, float by) {
        const uint32_t lane = fresh_lane();
        const OwnRow own = own_row(launch, item, first + int(lane % 16), length, end);
        seen = own.seen, scale = by;
        const uint8_t* const from = own.q + lane / 16 * kNumbers * 2;
#pragma unroll
        for (int c = 0; c < kSteps; ++c) q[c] = load_unaligned(from + c * 64);
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x4& four : block) four = f32x4(0);
        }
    }

    // The queries are there: a wait in the main loop would wait for the tile in flight as well.
    __device__ void ready() {
#pragma unroll
        for (u32x4& eight : q) have_computed(eight);
    }

    // Of a tile, between its two products.
    struct Attended {
        u32x2 exponentials;
        u32x2 values[kValuesAhead][4];  // the first ones
    };
    __device__ Attended attend(const char* lds, int32_t tile) {
        const uint32_t lane = fresh_lane(), j = lane % 16, g = lane / 16;
        f32x4 scores = keys_by_queries(lds, j, g);
        Attended attended;
        const uint32_t first = first_value(lds, j, g);
        // Read while exponentials are computed.
#pragma unroll
        for (int b = 0; b < kValuesAhead; ++b) read_values(attended.values[b], first, b);
        float by = scale;
        have_computed(by);  // else it would be in pairs of registers from the loop's start on
        scores *= by;
        const int32_t left = seen - tile * kTile - int32_t(4 * g);  // of this lane's tokens
        if (any_lane(left < 4)) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[i] = i < left ? scores[i] : -__builtin_inff();
        }
        attended.exponentials = softmax.exponentials(scores, [&](float factor) { rescale(factor); });
        return attended;
    }
    __device__ void gather(const char* lds, Attended& attended) {
        const uint32_t lane = fresh_lane(), j = lane % 16, g = lane / 16;
        const long exponentials = __builtin_bit_cast(long, attended.exponentials);
        const uint32_t first = first_value(lds, j, g);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
            u32x2(&token)[4] = attended.values[b % kValuesAhead];
            u32x2 turned[4];
#pragma unroll
            for (int n = 0; n < 4; n += 2) {
                const int of = n / 2;
                turned[n] = u32x2{halves_of<0>(token[0][of], token[1][of]), halves_of<0>(token[2][of], token[3][of])};
                turned[n + 1] =
                    u32x2{halves_of<1>(token[0][of], token[1][of]), halves_of<1>(token[2][of], token[3][of])};
            }
            if (b + kValuesAhead < kBlocks) read_values(token, first, b + kValuesAhead);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                sums[b][n] =
                    multiply_eight_bytes<16, type>(__builtin_bit_cast(long, turned[n]), exponentials, sums[b][n]);
            }
#pragma unroll
            for (f32x4& four : sums[b]) made_first(four);
            __builtin_amdgcn_sched_barrier(0);
        }
    }

    __device__ void rescale(float factor) {
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x4& four : block) four *= factor;
        }
    }

  private:
    __device__ f32x4 keys_by_queries(const char* lds, uint32_t j, uint32_t g) const {
        // A chunk four further is in bit 6 of the place: rows of LDS are multiples of 128 bytes.
        const uint32_t even = lds_address(lds) + place(j, g), odd = even ^ 4 * kChunk;
        const auto read = [&](int c) { return of_lds<u32x4>((c % 2 ? odd : even) + c / 2 * 128); };
        u32x4 keys[kKeysAhead];
#pragma unroll
        for (int c = 0; c < kKeysAhead; ++c) keys[c] = read(c);
        f32x4 scores(0);
#pragma unroll
        for (int c = 0; c < kSteps; ++c) {
            u32x4& now = keys[c % kKeysAhead];
            scores = multiply_chunks<16, type>(now, q[c], scores);
            if (c + kKeysAhead < kSteps) now = read(c + kKeysAhead);
            made_first(scores);
            __builtin_amdgcn_sched_barrier(0);
        }
        return scores;
    }
    // Of columns b * 64 + 4 j ... + 3 the lane's four tokens. first: the place of the first one; the others' chunks
    // differ from its own in the two bits of r.
    __device__ static void read_values(u32x2 (&token)[4], uint32_t first, int b) {
#pragma unroll
        for (int r = 0; r < 4; ++r) token[r] = of_lds<u32x2>((first ^ r * kChunk) + r * kTokenBytes + b * 128);
    }
    __device__ static uint32_t first_value(const char* lds, uint32_t j, uint32_t g) {
        return lds_address(lds) + place(4 * g, j / 2) + j % 2 * 8;
    }

  public:
    // Columns of block b, times `factor`, to a region of LDS: [16 rows][16 chunks of four], a row's chunks permuted. In
    // every phase of an access all banks are different.
    __device__ void put(char* region, int b, float factor) const {
        const uint32_t lane = fresh_lane(), j = lane % 16, g = lane / 16;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const f32x4 four{sums[b][0][r], sums[b][1][r], sums[b][2][r], sums[b][3][r]};
            *reinterpret_cast<f32x4*>(region + j * 256 + ((4 * g + r) ^ j) * 16) = four * factor;
        }
    }
    __device__ void finished() {}
    // Of rows that have seen nothing: zeros, whatever tokens that they do not see hold.
    __device__ void clear(bool row) {
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x4& four : block) four = row ? f32x4(0) : four;
        }
    }
};

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
