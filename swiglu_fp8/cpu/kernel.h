// SwiGLU + FP8 on the CPU, over any of common/cpu/simd_*.h.
//
// Bytes: 4 (gate, up) + 1 (out) = 5 an output element, each moved once. Floor: those bytes at the copy rate. A row
// goes through in parts that stay in the nearest cache:
//
//     gate -> g        by table: silu of a 16-bit number, rounded to 16 bits, is a function of 65536 arguments
//     g, up -> y       one multiplication and a rounding
//     y -> FP8         the encoding, the longest of the three
//
// The table is 128 KiB, of which real gates (2^-10 to 2^4 in magnitude) touch 8: two loads an element, faster than the
// exponential and the division. It is evaluated in double once a process, and right to the last bit for every
// argument.
//
// Files: kernel.h (this kernel), avx2.cpp, avx512.cpp, swiglu_fp8.cpp (the launcher, the table).
//
// Limit today: 0.33 to 0.54 of the copy rate with AVX-512 on two cores of a Zen 4; the encoding takes longest.
//
// Steps and figures: docs/journal/swiglu_fp8-cpu.md.
#pragma once

#include <emmintrin.h>

#include "../../common/rows/cpu/quantize.h"
#include "../swiglu_fp8.h"

namespace rocm_fp8::swiglu {

using Job = DynamicJob<Args>;

// silu of every number of `type` (f16 or bf16), rounded to the type: bits -> bits. Made at the first call.
const uint16_t* silu_table(DType type);

namespace {

// out[i] = table[in[i]], eight elements a store: one store each would take longer than the loads. It uses SSE2, which
// every x86-64 processor has. A gather instruction is slower.
inline void look_up(const uint16_t* table, const uint16_t* in, uint16_t* out, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i v = _mm_cvtsi32_si128(table[in[i]]);
        v = _mm_insert_epi16(v, table[in[i + 1]], 1);
        v = _mm_insert_epi16(v, table[in[i + 2]], 2);
        v = _mm_insert_epi16(v, table[in[i + 3]], 3);
        v = _mm_insert_epi16(v, table[in[i + 4]], 4);
        v = _mm_insert_epi16(v, table[in[i + 5]], 5);
        v = _mm_insert_epi16(v, table[in[i + 6]], 6);
        v = _mm_insert_epi16(v, table[in[i + 7]], 7);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), v);
    }
    for (; i < n; ++i) out[i] = table[in[i]];
}

// y of n gates and as many of up, to `to` (see L::store_for_fp8).
template <class L, DType in>
void gated(const Args& args, const uint16_t* table, const uint16_t* gate, const uint16_t* up, int64_t n,
           const typename L::Scale& scale, uint16_t* to) {
    using F = typename L::F;
    const bool limited = args.limit < __builtin_inff();
    if (limited) {
        for_blocks<L>(n, [&](int64_t i, auto count, int) {
            const F g = L::template load<in, in>(gate + i, count);
            L::template store<in, in>(to + i, L::clamp(g, -__builtin_inff(), args.limit), count);
        });
    }
    look_up(table, limited ? to : gate, to, n);
    const float limit = args.limit;
    const auto multiply = [=](auto limited) {
        for_blocks<L>(n, [=](int64_t i, auto count, int) {
            prefetch(gate + i + kStage);
            prefetch(up + i + kStage);
            const F g = L::template load<in, in>(to + i, count);
            F u = L::template load<in, in>(up + i, count);
            if constexpr (decltype(limited)::value) u = L::clamp(u, -limit, limit);
            L::template store_for_fp8<in>(to + i, L::mul(g, u), scale, count);
        });
    };
    if (limited) multiply(std::true_type());
    else multiply(std::false_type());
}

template <class L, DType in, DType out_type>
void swiglu_rows(const Job& args, int64_t begin, int64_t end) {
    const bool computed = !args.scale;
    // Computed scales are usual ones: numbers that a flushing instruction makes 0 are 0 in FP8, and change no maximum.
    const typename L::Scale scale(computed ? 1.0f : *args.scale, Fp8Format<out_type>::max);
    RowQuantizer<L, in, out_type> quantizer(args);
    const uint16_t* table = silu_table(in);
    for (int64_t row = begin; row < end; ++row) {
        const uint16_t* gate = static_cast<const uint16_t*>(args.x) + row * args.x_stride;
        const uint16_t* up = gate + args.d;
        void* out = at<out_type>(args.out, row * args.out_stride);
        const auto make = [&](int64_t first, int64_t length, void* to) {
            gated<L, in>(args, table, gate + first, up + first, length, scale, static_cast<uint16_t*>(to));
        };
        quantizer.make(row, args.d, nullptr, out, make);
    }
}

// Every instantiation, chosen by the arguments' types.
template <class L, DType in>
RowsKernel<Job> swiglu_by_out(const Job& a) {
    return a.out_dtype == DType::e4m3fn ? swiglu_rows<L, in, DType::e4m3fn> : swiglu_rows<L, in, DType::e4m3fnuz>;
}

template <class L>
RowsKernel<Job> pick(const Job& a) {
    return a.dtype == DType::f16 ? swiglu_by_out<L, DType::f16>(a) : swiglu_by_out<L, DType::bf16>(a);
}

}  // namespace

RowsKernel<Job> kernel_avx2(const Job& job);
RowsKernel<Job> kernel_avx512(const Job& job);

}  // namespace rocm_fp8::swiglu
