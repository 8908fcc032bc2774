// What the CPU's FP8 GEMMs share, over any of simd_*.h: decoding of operands, sums in lanes, a row of results.
//
// A GEMM's inner loop multiplies operands along k. An accumulator has kLanes partial sums: a step of R::step codes adds
// to each lane the products of the same elements, in the same order, in every tile. Then the lanes are added in a tree.
//
// The instruction set defines an operand: float32, or bfloat16 in pairs. Its numbers may be too small by a power of two
// (R::operand_scale). The rows of A are stored without that, and with B's: products are what they should be. Where
// decoding turns NaN codes into numbers, a mask records them, and the epilogue puts NaN into the result.
#pragma once

#include <xmmintrin.h>

#include <algorithm>

#include "../../cpu/lanes.h"

namespace rocm_fp8 {
namespace {

template <class R, DType format>
struct GemmLanes {
    using L = Lanes<R>;
    using Sum = typename R::Sum;
    using Operand = typename R::Operand;
    using NanMask = typename R::NanMask;
    static constexpr int kStep = R::step, kParts = R::parts, kLanes = sizeof(Sum) / sizeof(float);
    static constexpr int kStepBytes = kParts * sizeof(Operand);

    // Decoded bytes of `codes` codes: whole steps.
    static constexpr int64_t bytes_of(int64_t codes) { return (codes + kStep - 1) / kStep * kStepBytes; }

    // `length` codes of a row of A or B, decoded in steps; zeros fill the last step.
    template <bool of_a>
    static void decode(const uint8_t* row, int64_t length, char* out, NanMask& nan) {
        auto step = [&](const uint8_t* bytes) {
            Operand w[kParts];
            R::template decode<format>(bytes, w);
            R::template note_nan<format>(nan, bytes);
            for (const Operand& part : w) {
                R::store_operand(out, of_a ? whole(part) : part);
                out += sizeof(Operand);
            }
        };
        int64_t k = 0;
        for (; k + kStep <= length; k += kStep) step(row + k);
        if (k < length) {
            uint8_t tail[kStep] = {};
            std::memcpy(tail, row + k, length - k);
            step(tail);
        }
    }

    static bool holds_nan(const uint8_t* codes, int64_t count) {
        for (int64_t k = 0; k < count; ++k) {
            const float value = fp8_decode<format>(codes[k]);
            if (value != value) return true;
        }
        return false;
    }

    // out[i]: the total of the kLanes partial sums at lanes + i * kLanes, halves added to halves. count: a multiple of 4.
    static void totals(const float* lanes, int count, float* out) {
        for (int i = 0; i < count; i += 4, lanes += 4 * kLanes) {
            const __m128 a = four(lanes), b = four(lanes + kLanes), c = four(lanes + 2 * kLanes),
                         d = four(lanes + 3 * kLanes);
            const __m128 ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
            const __m128 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
            _mm_storeu_ps(out + i, _mm_add_ps(_mm_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)),
                                              _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1))));
        }
    }

    // Rounds and stores `count` neighbours, at most L::block; `values` has L::block.
    template <DType out_type>
    static void store_results(void* p, const float* values, int count) {
        using Whole = std::integral_constant<int, L::block>;
        auto v = L::tame_nan(L::template load<DType::f32, out_type>(values, Whole()));
        if constexpr (out_type != DType::f32) v = L::template round_to<out_type>(v);
        if (count == L::block) L::template store<out_type, out_type>(p, v, Whole());
        else L::template store<out_type, out_type>(p, v, count);
    }

  private:
    // Of kLanes partial sums four. SSE: every x86-64 has it.
    static __m128 four(const float* lanes) {
        static_assert(kLanes == 8 || kLanes == 16);
        auto pair = [=](int i) { return _mm_add_ps(_mm_loadu_ps(lanes + i), _mm_loadu_ps(lanes + i + kLanes / 2)); };
        if constexpr (kLanes == 8) return pair(0);
        else return _mm_add_ps(pair(0), pair(4));
    }
    // A's operand with the powers of two that A's and B's lack.
    static Operand whole(Operand x) {
        constexpr float missing = R::template operand_scale<format> * R::template operand_scale<format>;
        if constexpr (missing != 1) return R::mul(x, R::set1(missing));
        else return x;
    }
};

// Rows of the chunks that m rows are cut into: of equal sizes but for the last, at most `most`, whole tiles. The last cache
// keeps a chunk's decoded rows while all of B goes by.
inline int64_t rows_of_chunks(int64_t m, int64_t row_bytes, int64_t tile, int64_t most) {
    constexpr int64_t kChunkBytes = 4 << 20, kLeast = 32;
    most = std::clamp<int64_t>(kChunkBytes / row_bytes / tile * tile, kLeast, most);
    const int64_t chunks = (m + most - 1) / most;
    return ((m + chunks - 1) / chunks + tile - 1) / tile * tile;
}

}  // namespace
}  // namespace rocm_fp8
