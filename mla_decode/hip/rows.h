// A wave's rows: 16 or 32, by matrix instructions of as many. What all of them have, whatever their width, and however
// tiles come to LDS.
//
// Their queries and the sums of all 512 columns stay in registers: of 16 rows in 72 and 128, of 32 in 144 and all 256
// accumulation registers, one wave a SIMD. Scores, exponentials and their 16-bit form never leave registers either. What
// keys x queries gives a lane is what values x exponentials takes: with kLanes = 64 / rows, lane rows * g + j has row j,
// and of each 4 * kLanes tokens the 4 g ... + 3.
//
// A tile's type says how it is read, and which columns a sum has: Tile (tile.h) or DirectTile (direct_tile.h).
#pragma once

#include "../../common/attention/hip/online_softmax.h"
#include "../../common/gpu/lanes.h"
#include "../../common/hip/lds.h"
#include "products.h"
#include "tile.h"
#include "work.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

template <const Form& form, DType type, class Tile>
class Rows {
    static constexpr int kRows = form.matrix, kLanes = kWave / kRows, kSteps = Tile::kKeySteps;
    using Sum = SumOf<kRows>;
    static constexpr int kSize = sizeof(Sum) / 4;
    u32x4 q[kSteps];
    int32_t seen;  // the tokens before it count
    float scale;   // of scores, to logarithms to base 2

  public:
    Sum sums[kLatent / kRows];
    attention::OnlineSoftmax<type, kRows> softmax;
    // A lane's of a tile: each four is of the next 4 * kLanes tokens.
    struct Scores {
        Sum sums[Tile::kTokens / kRows];
        static constexpr int kCount = Tile::kTokens / kLanes;
        __device__ float operator[](int i) const { return sums[i / kSize][i % kSize]; }
    };

    __device__ void start(const Launch& launch, const Work& work, float by) {
        const uint32_t lane = fresh_lane();
        const OwnRow own = own_row(launch, work, work.first_row + int(lane % kRows));
        seen = own.seen, scale = by;
        const uint8_t* const from = own.q + lane / kRows * kChunk;
#pragma unroll
        for (int c = 0; c < kSteps; ++c) q[c] = load_unaligned(from + c * kLanes * kChunk);
#pragma unroll
        for (Sum& each : sums) hip::clear(each);
        // The queries are there: a wait in the main loop would wait for the tile in flight as well.
#pragma unroll
        for (u32x4& eight : q) have_computed(eight);
    }

    // Keys x queries. during.keys(step, n), n = 0, 1, is done behind a step's first instruction, and behind its last one.
    template <class Keys, class During>
    __device__ void score(Scores& scores, const Keys& read, const During& during) const {
        constexpr int kParts = Tile::kTokens / kRows, kProducts = kParts * kInstructionsOnChunks;
        u32x4 keys[form.keys_ahead][kParts];
#pragma unroll
        for (int step = 0; step < form.keys_ahead; ++step) {
#pragma unroll
            for (int part = 0; part < kParts; ++part) keys[step][part] = read(step, part);
        }
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int i = 0; i < kProducts; ++i) {
                const int part = i / kInstructionsOnChunks, n = i % kInstructionsOnChunks;
                u32x4& now = keys[step % form.keys_ahead][part];
                multiply_keys<type>(scores.sums[part], now, q[Keys::chunk_of(step)], n, step + n == 0);
                keep_order();
                if (n + 1 == kInstructionsOnChunks && step + form.keys_ahead < kSteps)
                    now = read(step + form.keys_ahead, part);
                if (i == 0) during.keys(step, 0);
                if (i + 1 == kProducts) during.keys(step, 1);
                keep_order();
            }
        }
    }

    // Makes scores logarithms to base 2, by which the reference may be taken anew.
    __device__ void refer(Scores& scores, int32_t tile) {
        constexpr int kApart = 4 * kLanes, kLast = (Scores::kCount / 4 - 1) * kApart + 3;
        float by = scale;
        have_computed(by);  // else it would be in pairs of registers from the loop's start on
#pragma unroll
        for (Sum& each : scores.sums) each *= by;
        const int32_t left = seen - tile * Tile::kTokens - int32_t(fresh_lane() / kRows * 4);  // of this lane's tokens
        if (any_lane(left <= kLast)) [[unlikely]] {
            keep_branch();
#pragma unroll
            for (int i = 0; i < Scores::kCount; ++i) {
                const float score = i / 4 * kApart + i % 4 < left ? scores[i] : -__builtin_inff();
                scores.sums[i / kSize][i % kSize] = score;
            }
        }
        float largest = scores[0];
#pragma unroll
        for (int i = 1; i < Scores::kCount; ++i) largest = __builtin_fmaxf(largest, scores[i]);
        softmax.refer_to(largest, [&](float factor) { change([&](Sum& each) { each *= factor; }); });
    }
    // Of four scores, rounded.
    __device__ u32x2 exponentials(const Scores& scores, int four) {
        f32x4 p;
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = softmax.exponential(scores[4 * four + i]);
        return softmax.rounded(p);
    }

    // Of rows that have seen nothing: zeros, whatever tokens that they do not see hold.
    __device__ void clear(bool row) {
        change([&](Sum& each) { each = row ? Sum(0) : each; });
    }
    // The sums may be read.
    __device__ void finished() {
        if constexpr (kRows == 16) return;
        settle();
#pragma unroll
        for (Sum& each : sums) made_first(each);
    }
    // 64 columns, times `factor`, to a region of LDS: [rows][16 chunks of four], a row's chunks permuted. In every
    // phase of an access all banks are different.
    __device__ void put(char* region, int block, float factor) const {
        const uint32_t lane = fresh_lane(), j = lane % kRows, g = lane / kRows;
#pragma unroll
        for (int i = 0; i < kRows / 4; ++i) {
            const int four = block * (kRows / 4) + i;
            f32x4 v;
            if constexpr (Tile::kFours) {
#pragma unroll
                for (int n = 0; n < 4; ++n) v[n] = sums[four / kSize * 4 + n][four % kSize];
            } else {
#pragma unroll
                for (int n = 0; n < 4; ++n) v[n] = sums[4 * four / kSize][4 * four % kSize + n];
            }
            const uint32_t chunk = Tile::kFours ? uint32_t(i / 4 * 8 + i % 4) + 4 * g : uint32_t(i * kLanes) + g;
            *reinterpret_cast<f32x4*>(region + j * 256 + (chunk ^ j % 16) * 16) = v * factor;
        }
    }

  private:
    // Where branches meet only assembly may use sums in accumulation registers: else the compiler has them in the other
    // registers there, of which there are not enough.
    template <class Change>
    __device__ void change(const Change& how) {
        if constexpr (kRows == 32) settle();
#pragma unroll
        for (Sum& each : sums) {
            if constexpr (kRows == 32) made_first(each);
            how(each);
            if constexpr (kRows == 32) made_first(each), keep_order();
        }
    }
};

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
