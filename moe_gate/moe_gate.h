// Gates of an expert's hidden values, after its first GEMM: the contract of every backend's launcher.
//
//     g, u = x[i, j], x[i, d + j]; interleaved: x[i, 2 j], x[i, 2 j + 1]
//     with a limit: g = min(g, limit), u = clamp(u, -limit, limit)
//     silu: g sigmoid(g) u
//     oai:  (u + 1) g sigmoid(alpha g)
//     situ: beta tanh(g / beta) sigmoid(g) * (linear_beta tanh(u / linear_beta), or u)
//     out[i, j] = round_out(that)
//
// In float32, with the same bits on all backends but for NaN's: no compiler may fuse. One rounding to out's type. NaN
// stays NaN. Rows from *end on are not written.
#pragma once

#include <type_traits>

#include "../common/exponential.h"

namespace rocm_fp8::moe_gate {

enum class Kind : int32_t { silu, oai, situ };

struct Gate {
    Kind kind;
    bool interleaved;
    float limit;              // infinity: none
    float alpha;              // of oai
    float beta, linear_beta;  // of situ; linear_beta 0: u as it is
};

struct Args {
    const void* x;  // dtype [rows, 2 d], rows x_stride elements apart
    void* out;      // out_dtype [rows, d], rows out_stride apart
    int64_t rows, d, x_stride, out_stride;
    DType dtype, out_dtype;  // f32, f16 or bf16; f16 or bf16
    const int32_t* end;      // on the device; nullptr: all rows
    Gate gate;
};

Status launch(const Args& args, const Executor& on);

namespace {

// part / whole, rounded once, of part 0 or from 2^-126 to 1 and whole from 1 to 2: on NVIDIA GPUs without the branch of a
// division. (Held to it at every e of both calls below: docs/journal/mx_gemm.md.)
ROCM_FP8_HD inline float share_of(float part, float whole) {
#if defined(__CUDA_ARCH__)
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(whole));
    inverse = fmaf(inverse, fmaf(-whole, inverse, 1.0f), inverse);
    const float share = part * inverse;
    return fmaf(fmaf(-whole, share, part), inverse, share);
#else
    return part / whole;
#endif
}

// By the exponential of a number that is not positive: nothing overflows.
ROCM_FP8_HD inline float sigmoid(float v) {
    const float e = exp_of_negative(v < 0 ? v : -v);
    return share_of(v < 0 ? e : 1.0f, 1.0f + e);
}
// Within 4 ulp: small numbers by their series, where 1 - e would cancel.
ROCM_FP8_HD inline float tanh_of(float v) {
    const float square = v * v;
    if (square < 0.0625f) {
        float p = 62.0f / 2835;
        p = p * square - 17.0f / 315;
        p = p * square + 2.0f / 15;
        p = p * square - 1.0f / 3;
        return v + v * (square * p);
    }
    const float e = exp_of_negative(v < 0 ? 2 * v : -2 * v), t = share_of(1.0f - e, 1.0f + e);
    return v < 0 ? -t : t;
}

template <Kind kind>
ROCM_FP8_HD inline float gated(const Gate& gate, float g, float u) {
    g = g > gate.limit ? gate.limit : g;
    u = u > gate.limit ? gate.limit : u < -gate.limit ? -gate.limit : u;
    if (kind == Kind::oai) return (u + 1.0f) * (g * sigmoid(gate.alpha * g));
    if (kind == Kind::silu) return g * sigmoid(g) * u;
    const float up = gate.linear_beta > 0 ? gate.linear_beta * tanh_of(u / gate.linear_beta) : u;
    return gate.beta * tanh_of(g / gate.beta) * sigmoid(g) * up;
}

template <Kind kind>
using Of = std::integral_constant<Kind, kind>;

// Calls act with the gate's kind, a constant.
template <class Act>
ROCM_FP8_HD inline auto by_kind(const Gate& gate, const Act& act) {
    return gate.kind == Kind::oai    ? act(Of<Kind::oai>())
           : gate.kind == Kind::silu ? act(Of<Kind::silu>())
                                     : act(Of<Kind::situ>());
}

ROCM_FP8_HD inline float gated(const Gate& gate, float g, float u) {
    return by_kind(gate, [&](auto kind) { return gated<kind.value>(gate, g, u); });
}

}  // namespace
}  // namespace rocm_fp8::moe_gate
