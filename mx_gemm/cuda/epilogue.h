// Which columns a lane has of a tile (tiles.h), and how its sums become the result.
#pragma once

#include "../../common/gemm/epilogue.h"
#include "../../grouped_gemm/cuda/row_tiles.h"
#include "order.h"

namespace rocm_fp8::mx_gemm {
namespace {

namespace grouped = grouped_gemm::cuda;

constexpr int kSixtyFour = 64;  // columns of a warpgroup

// Of B, a box's first column.
template <class F>
__device__ inline int first_column(const Args& a, int piece, int box) {
    return of_halves(a) ? piece * F::kBox + box * int(a.n / 2) : (2 * piece + box) * F::kBox;
}

// A lane's two columns: neighbours, or a gate and its up where these are halves: the same place in both boxes. Lanes are
// permuted, so that eight lanes that read at once find their chunks in different banks (TMA's swizzle). FP8's neighbours
// do not: two passes are 1 % slower.
template <class F>
struct Columns {
    const bool beside;
    const int first;  // where the first one lies in the boxes

    __device__ explicit Columns(const Args& a, int warpgroup)
        : beside(!of_halves(a)), first(first_of(beside, warpgroup)) {}
    __device__ int place(int i) const { return first + i * (beside ? 1 : F::kBox); }
    // Of B.
    __device__ int64_t column(const Args& a, int piece, int i) const {
        return first_column<F>(a, piece, beside ? 0 : i) + first + (beside ? i : 0);
    }
    // Of hidden values.
    __device__ int64_t hidden(int piece) const { return piece * F::kBox + (beside ? first / 2 : first); }

  private:
    static __device__ int first_of(bool beside, int warpgroup) {
        const int g = int(threadIdx.x) % kWarp / 4, low = g % 2, other = beside ? 2 : 4;
        const bool stays = F::kFp8 || low == (g / other) % 2;
        const int turned = stays ? g : g ^ 1 ^ other;  // bit 0 and that bit change places
        return (warpgroup * kSixtyFour / 2 + int(threadIdx.x) / kWarp % 4 * 8 + turned) * (beside ? 2 : 1);
    }
};

// From registers. Groups of eight rows: those from `from` to `to`. Nobody multiplies meanwhile: what is the same for all
// rows is asked once, and addresses go on from row to row. Of float16 a group is four rows of the result: a lane adds two.
template <class F>
__device__ inline void store(const Args& a, const grouped::Tile& tile, const Columns<F>& own, int from, int to,
                             float (&sums)[F::kGroups][4]) {
    const int twice = a.format_a == DType::f16, eight = 8 >> twice;
    const int first = (tile.row + int(threadIdx.x) % 4 * 2) >> twice, rows = (tile.end >> twice) - first;
    const bool wide = a.out.dtype == DType::f32;
    const float lifted = F::kLifted * (of_blocks(a.scale_a) ? kLiftOfFp8 : 1.0f);
    const int64_t columns[2] = {own.column(a, tile.piece, 0), own.column(a, tile.piece, 1)},
                  row_bytes = a.out.row_stride * (wide ? 4 : 2);
#pragma unroll
    for (int i = 0; i < F::kGroups * 4; ++i) {
        if (i % 2 == 0 && twice) sums[i / 4][i % 4] += sums[i / 4][i % 4 + 1];
        sums[i / 4][i % 4] *= lifted;
    }
    if (a.scale_a.data && !of_blocks(a.scale_a)) {
#pragma unroll
        for (int i = 0; i < 2 * F::kGroups; ++i) {
            const int row = i / 2 * 8 + i % 2;
            const float scale = gemm::scale_at(a.scale_a, source_of(a, row < rows ? first + row : tile.row));
            sums[i / 2][i % 2] *= scale, sums[i / 2][i % 2 + 2] *= scale;
        }
    }
    if (a.bias.data) {  // without one, -0 stays -0
        gemm::Bias bias = a.bias;
        bias.data = offset(bias.data, tile.expert * a.bias_group_stride * (bias.dtype == DType::f32 ? 4 : 2));
        const float added[2] = {columns[0] < a.n ? gemm::bias_at(bias, columns[0]) : 0.0f,
                                columns[1] < a.n ? gemm::bias_at(bias, columns[1]) : 0.0f};
#pragma unroll
        for (int i = 0; i < F::kGroups * 4; ++i) sums[i / 4][i % 4] += added[i % 4 / 2];
    }
    // act(at, mine, v, w) of each row: `at` is its number of the lane's first column.
    const auto each = [&](int64_t column, const auto& act) __attribute__((always_inline)) {
        char* at[2];
        at[0] = static_cast<char*>(a.out.data) + first * row_bytes + column * (wide ? 4 : 2);
        at[1] = at[0] + row_bytes;
#pragma unroll
        for (int i = 0; i < 2 * F::kGroups; ++i) {
            const int group = i / 2, r = i % 2;
            if (r == 0 && tile.row + group * 8 >= tile.end) break;
            if (r == 1 && twice) continue;
            const bool mine = group * eight + r < rows && (!F::kShares || (group >= from && group < to));
            act(at[r], mine, sums[group][r], sums[group][2 + r]);
            at[r] += eight * row_bytes;
            asm volatile("" : "+l"(at[r]));  // else each is a product
        }
    };
    if (a.gated) {
        const int64_t hidden = own.hidden(tile.piece);
        if (hidden >= a.n / 2) return;
        moe_gate::by_kind(a.gate, [&](auto kind) {
            each(hidden, [&](char* at, bool mine, float v, float w) {
                const float gated = moe_gate::gated<kind.value>(a.gate, v, w);
                if (mine) gemm::put({0, at, 0, a.out.dtype}, 0, gated);
            });
        });
        return;
    }
    if (columns[0] >= a.n) return;
    const bool aligned = (int64_t(a.out.data) | row_bytes | 2 * a.n) % 4 == 0;
    if (own.beside && !wide && aligned) {
        const auto pairs = [&]<DType type>() {
            each(columns[0], [&](char* at, bool mine, float v, float w) {
                const uint32_t pair = Pairs<type>::round_any_nan({v, w});
                if (mine) *global<uint32_t>(at) = pair;
            });
        };
        if (a.out.dtype == DType::f16) pairs.template operator()<DType::f16>();
        else pairs.template operator()<DType::bf16>();
        return;
    }
    const bool both = columns[1] < a.n;
    each(columns[0], [&](char* at, bool mine, float v, float w) {
        if (!mine) return;
        const gemm::Output out{0, at, 0, a.out.dtype};
        gemm::put(out, 0, v);
        if (both) gemm::put(out, columns[1] - columns[0], w);
    });
}

}  // namespace
}  // namespace rocm_fp8::mx_gemm
