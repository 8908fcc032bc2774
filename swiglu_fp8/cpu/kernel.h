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
// Files: kernel.h (this kernel), one .cpp an instruction set, swiglu_fp8.cpp (the launcher, the table).
//
// Limit today: 0.33 to 0.54 of the copy rate with AVX-512 on two cores of a Zen 4; the encoding takes longest.
//
// Steps and figures: docs/journal/swiglu_fp8-cpu.md.
#pragma once

#include <emmintrin.h>

#include "../../common/cpu/lanes.h"
#include "../../common/cpu/rows.h"
#include "../swiglu_fp8.h"

namespace rocm_fp8::swiglu {

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

template <class L, DType in, DType out_type>
void swiglu_rows(const Args& args, int64_t begin, int64_t end) {
    using F = typename L::F;
    const typename L::Scale scale(*args.scale, Fp8Format<out_type>::max);
    const uint16_t* table = silu_table(in);
    alignas(64) uint16_t part[kStage];
    for (int64_t row = begin; row < end; ++row) {
        const uint16_t* gate = static_cast<const uint16_t*>(args.x) + row * args.x_stride;
        const uint16_t* up = gate + args.d;
        void* out = at<out_type>(args.out, row * args.out_stride);
        for (int64_t first = 0; first < args.d; first += kStage, gate += kStage, up += kStage) {
            const int64_t length = args.d - first < kStage ? args.d - first : kStage;
            look_up(table, gate, part, length);
            for_blocks<L>(length, [&](int64_t i, auto n, int) {
                prefetch(gate + i + kStage);
                prefetch(up + i + kStage);
                const F g = L::template load<in, in>(part + i, n);
                L::template store_for_fp8<in>(part + i, L::mul(g, L::template load<in, in>(up + i, n)), scale, n);
            });
            L::template quantize<out_type, in>(part, at<out_type>(out, first), length, scale);
        }
    }
}

// Every instantiation, chosen by the arguments' types.
template <class L, DType in>
RowsKernel<Args> swiglu_by_out(const Args& a) {
    return a.out_dtype == DType::e4m3fn ? swiglu_rows<L, in, DType::e4m3fn> : swiglu_rows<L, in, DType::e4m3fnuz>;
}

template <class L>
RowsKernel<Args> pick(const Args& a) {
    return a.dtype == DType::f16 ? swiglu_by_out<L, DType::f16>(a) : swiglu_by_out<L, DType::bf16>(a);
}

}  // namespace

RowsKernel<Args> kernel_portable(const Args& args);
RowsKernel<Args> kernel_avx2(const Args& args);
RowsKernel<Args> kernel_avx512(const Args& args);

}  // namespace rocm_fp8::swiglu
