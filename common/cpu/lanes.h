// Vectors of floats for the row kernels, written once over an instruction set's registers (simd_*.h).
//
// Lanes<R>::F holds one block of a row in two registers, a and b. The row's type decides the layout:
//
//     f16, f32   a: the first half of the block; b: the second
//     bf16       a: the even elements; b: the odd. Of a 32-bit word with two bf16, a shift widens the even one and a
//                mask the odd one
//
// Only loads and stores depend on the layout. All instruction sets do the same operations in the same order. They add
// the same 32 partial sums (element index modulo 32) in the same tree. So all give the same bytes.
//
// The namespace is unnamed for the reason that ../fp8.h gives.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../mx.h"

namespace rocm_fp8 {
namespace {

constexpr int kPartialSums = 32;

constexpr int64_t element_size(DType t) { return t == DType::f32 ? 4 : is_fp8(t) || t == DType::i8 ? 1 : 2; }

template <DType type>
inline const void* at(const void* p, int64_t i) {
    return static_cast<const char*>(p) + i * element_size(type);
}
template <DType type>
inline void* at(void* p, int64_t i) {
    return static_cast<char*>(p) + i * element_size(type);
}

// Calls body(i, n, u) for each block of a row of d elements. i: its first element. n: its elements, a constant unless
// the block is the last and partial. u: its number within its 32 elements.
template <class L, class Body>
inline void for_blocks(int64_t d, Body body) {
    using Whole = std::integral_constant<int, L::block>;
    int64_t i = 0;
    for (; i + kPartialSums <= d; i += kPartialSums) {
        body(i, Whole(), 0);
        if constexpr (L::block < kPartialSums) body(i + L::block, Whole(), 1);
    }
    for (int u = 0; i < d; i += L::block, ++u) {
        if (d - i >= L::block) body(i, Whole(), u);
        else body(i, int(d - i), u);
    }
}

// Elements that stay in the L1 cache between the arithmetic and the quantisation. Two short loops keep more blocks in
// flight than one loop, whose dependency chain of about 150 cycles fills the schedulers.
constexpr int kStage = 1024;

// Prefetches into L2. The address may be outside the process' memory.
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

template <class R>
struct Lanes {
    using V = typename R::V;
    static constexpr int block = 2 * R::width;  // elements of an F: 16 or 32
    struct F {
        V a, b;
    };

    template <class Op, class... Fs>
    static F each(Op op, Fs... f) {
        return {op(f.a...), op(f.b...)};
    }

    static F set1(float x) { return {R::set1(x), R::set1(x)}; }
    static F add(F x, F y) { return each(R::add, x, y); }
    static F mul(F x, F y) { return each(R::mul, x, y); }
    static F fma(F x, F y, F z) { return each(R::fma, x, y, z); }

    // Loads n elements of `type` in the layout of `row`, with zeros after them.
    template <DType type, DType row, class N>
    static F load(const void* p, N n) {
        if constexpr (std::is_same_v<N, int>) {
            alignas(64) char buffer[block * element_size(type)] = {};
            std::memcpy(buffer, p, n * element_size(type));
            return load_block<type, row>(buffer);
        } else {
            return load_block<type, row>(p);
        }
    }
    template <DType type, DType row, class N>
    static void store(void* p, F x, N n) {
        if constexpr (std::is_same_v<N, int>) {
            alignas(64) char buffer[block * element_size(type)];
            store_block<type, row>(buffer, x);
            std::memcpy(p, buffer, n * element_size(type));
        } else {
            store_block<type, row>(p, x);
        }
    }

    // Rounds to the 16-bit type and back, as the unfused modules do. Not for a NaN whose low 15 bits are all ones: the
    // carry would reach its sign. NaNs of 16-bit operands and of instructions have no such payload.
    template <DType row>
    static F round_to(F x) {
        if constexpr (row == DType::f16) return each(R::round_f16, x);
        else return each(R::round_bf16, x);
    }
    // The same to bfloat16, with a faster instruction that flushes numbers below 2^-126 to 0.
    template <DType row>
    static constexpr bool can_flush = row == DType::bf16 && R::flushes;
    static F round_flushing(F x) {
        R::round_bf16_pair(x.a, x.b);
        return x;
    }
    // A flushed number is 0 in FP8 in any case: multiplied by less than this bound and divided by a usual scale.
    static constexpr float kFlushedFactor = 0x1p48f;

    // Whether the magnitudes of all n numbers are below `bound`. NaN is not.
    template <DType type>
    static bool all_below(const void* p, int64_t n, float bound) {
        bool any = false;
        for_blocks<Lanes>(n, [&](int64_t i, auto count, int) {
            const F x = load<type, type>(at<type>(p, i), count);
            any |= any_not_below(x, bound);
        });
        return !any;
    }
    static bool any_not_below(F x, float bound) {
        return R::any_not_below(R::magnitude(x.a), R::magnitude(x.b), bound);
    }

    // Within [low, high]; NaN stays NaN.
    static F clamp(F x, float low, float high) { return {R::clamp(x.a, low, high), R::clamp(x.b, low, high)}; }
    // Makes every NaN the default one, so that round_to() takes it. Float32 weights can hold any payload.
    static F tame_nan(F x) { return each(R::tame_nan, x); }

    // Quantisation: fp8(y / scale), as by a division rounded to float32.
    //
    // y * (1 / scale) is corrected by the remainder, which fma gives exactly. That is the division's result (Markstein)
    // at a third of its cost. The operands must be far from float32's limits: y is first clamped to the format's
    // largest number times the scale. NaN and scales outside [2^-60, 2^60] take the division.
    struct Scale {
        V scale, reciprocal;
        float value, largest;
        bool usual;
        static bool is_usual(float s) { return s >= 0x1p-60f && s <= 0x1p60f; }
        explicit Scale(float s, float format_max)
            : scale(R::set1(s)), reciprocal(R::set1(1.0f / s)), value(s), usual(is_usual(s)) {
            largest = usual ? format_max * s : 0.0f;  // 0: quantize_block() divides every block
        }
    };
    // Rounds and stores what quantize() reads. With a usual scale a flushing instruction may round.
    template <DType row, class N>
    static void store_for_fp8(void* p, F x, const Scale& s, N n) {
        if constexpr (can_flush<row> && !std::is_same_v<N, int>) {
            if (__builtin_expect(s.usual, 1)) return R::store_rounded_bf16(p, x.a, x.b);
        }
        store<row, row>(p, round_to<row>(x), n);
    }

    // Converts n numbers of the row's type to FP8.
    template <DType out, DType row>
    static void quantize(const void* values, void* p, int64_t n, const Scale& s) {
        // Captured by value: no store of a result changes a copy.
        for_blocks<Lanes>(n, [=](int64_t i, auto count, int) {
            const F y = load<row, row>(at<row>(values, i), count);
            quantize_block<out, row>(at<out>(p, i), y, s, count);
        });
    }

    // The same of finite numbers by a usual scale, whole blocks only. Returns how many numbers those are. It clamps all:
    // of a maximum's own block the question would be a guess. Prefetches as many numbers `ahead`.
    template <DType out, DType row>
    static int64_t quantize_finite(const void* values, void* p, int64_t n, const Scale& s, const void* ahead) {
        int64_t i = 0;
        for (; i + block <= n; i += block) {
            prefetch(at<row>(ahead, i));
            const F y = load_block<row, row>(at<row>(values, i));
            const V a = R::at_most(R::magnitude(y.a), s.largest), b = R::at_most(R::magnitude(y.b), s.largest);
            store_quotients<out, row>(at<out>(p, i), a, b, y, s);
        }
        return i;
    }

    // Adds the 32 partial sums, which lie in `sums` in order: two F of 16, or one of 32.
    template <DType row>
    static float sum(const F (&sums)[kPartialSums / block]) {
        float lane[kPartialSums];
        for (int i = 0; i < kPartialSums / block; ++i) store_block<DType::f32, row>(lane + i * block, sums[i]);
        for (int i = 0; i < 16; ++i) lane[i] += lane[i + 16];
        for (int i = 0; i < 8; ++i) lane[i] += lane[i + 8];
        for (int i = 0; i < 4; ++i) lane[i] += lane[i + 4];
        return (lane[0] + lane[2]) + (lane[1] + lane[3]);
    }

  private:
    template <DType out, DType row, class N>
    static void quantize_block(void* p, F y, const Scale& s, N n) {
        V a = R::magnitude(y.a), b = R::magnitude(y.b);
        if (__builtin_expect(R::any_not_below(a, b, s.largest), 0)) {
            if (R::any_nan(a, b) || !s.usual) return divide_and_encode<out, row>(p, y.a, y.b, s.value, n);
            a = R::at_most(a, s.largest);
            b = R::at_most(b, s.largest);
        }
        if constexpr (std::is_same_v<N, int>) {
            uint8_t buffer[block];
            store_quotients<out, row>(buffer, a, b, y, s);
            std::memcpy(p, buffer, n);
        } else {
            store_quotients<out, row>(p, a, b, y, s);
        }
    }
    // As R::store_fp8.
    template <DType out, DType row>
    static void store_quotients(void* p, V a, V b, F y, const Scale& s) {
        R::template store_fp8<out, row == DType::bf16>(p, a, b, y.a, y.b, s.scale, s.reciprocal);
    }
    template <DType out, DType row>
    __attribute__((noinline)) static void divide_and_encode(void* p, V a, V b, float scale, int n) {
        float values[block];
        store_block<DType::f32, row>(values, {a, b});
        for (int i = 0; i < n; ++i) static_cast<uint8_t*>(p)[i] = fp8_encode<out>(values[i] / scale);
    }
    template <DType type, DType row>
    static F load_block(const void* p) {
        F x;
        if constexpr (type == DType::f16) R::load_f16(p, x.a, x.b);
        else if constexpr (type == DType::bf16) R::load_bf16(p, x.a, x.b);
        else R::template load_f32<row == DType::bf16>(p, x.a, x.b);
        return x;
    }
    template <DType type, DType row>
    static void store_block(void* p, F x) {
        if constexpr (type == DType::f16) R::store_f16(p, x.a, x.b);
        else if constexpr (type == DType::bf16) R::store_bf16(p, x.a, x.b);
        else R::template store_f32<row == DType::bf16>(p, x.a, x.b);
    }
};

// Of each 2 width numbers the even ones, then the odd ones, as codes of 4 bits lie in bytes.
template <int width>
constexpr int even_odd_place(int i) {
    return i / (2 * width) * (2 * width) + i % 2 * width + i % (2 * width) / 2;
}

// n values of `in` as float32.
template <class L, DType in>
inline void widen(const void* p, int64_t n, float* out) {
    for_blocks<L>(n, [&](int64_t i, auto count, int) {
        L::template store<DType::f32, in>(out + i, L::template load<in, in>(at<in>(p, i), count), count);
    });
}

}  // namespace
}  // namespace rocm_fp8
