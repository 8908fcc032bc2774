// What surrounds the GEMMs of a mixture of experts: which experts a token takes (route), its slots sorted by expert
// (sort), and the weighted sum of its experts' results (combine). The contracts of every backend's launchers.
//
// T tokens, E experts, k of them chosen a token: R = T k slots, slot t k + j is token t's j-th choice. No launcher reads
// a count on the host, so that one captured graph serves every routing.
#pragma once

#include "../common/exponential.h"

namespace rocm_fp8::moe_routing {

constexpr int kMostExperts = 1024, kMostChosen = 32;

enum class Scoring : int32_t { softmax, sigmoid, sqrt_softplus };

// In float32, one rounding an operation:
//
//     s       = exp(l - max l) / sum of exp(l - max l), 1 / (1 + exp(-l)), or sqrt(log(1 + exp(l)))
//     choice  = s + bias
//     groups  > 1: experts / groups neighbours each. A group's score is the sum of its two largest choices, or the
//               largest. The top_groups best stay, ties to the lower group
//     experts = the k largest choices left, largest first, ties to the lower index
//     weights = s[experts], with renormalize / (their sum + 1e-20), * factor
//
// A choice, or a group's score, that is NaN counts as -infinity. So experts are distinct and lie in [0, E), whatever the
// logits hold. The exponential is exponential.h's; sums over E have an order of their own on each backend. Where experts
// are given, none are chosen: weights are their scores, 0 outside of [0, E).
struct RouteArgs {
    const void* logits;  // dtype [tokens, experts], rows `stride` elements apart
    int64_t stride;
    DType dtype;           // f32, f16 or bf16
    const float* bias;     // [experts] or nullptr
    float* weights;        // [tokens, chosen], dense
    int32_t* ids;          // the same
    const int32_t* given;  // the same, read; or nullptr
    int64_t tokens;
    int32_t experts, chosen, groups, top_groups;  // chosen <= top_groups * (experts / groups)
    Scoring scoring;
    bool group_max, renormalize;
    float factor;
};

namespace {

// Of a logit alone: not softmax.
ROCM_FP8_HD inline float score_of(Scoring scoring, float logit) {
    const float e = exp_of_negative(logit < 0 ? logit : -logit);
    if (scoring == Scoring::sigmoid) return (logit < 0 ? e : 1.0f) / (1.0f + e);
    // log(1 + e) by its series in e / (2 + e), at most 1 / 3: within 2 ulp.
    const float z = e / (2.0f + e), square = z * z;
    float p = 1.0f / 17;
    for (int n = 15; n > 0; n -= 2) p = p * square + 1.0f / float(n);
    return __builtin_sqrtf((logit < 0 ? 0.0f : logit) + 2.0f * z * p);
}

}  // namespace

// A stable counting sort of slots by expert. A slot whose expert lies outside of [0, experts), after the map, is dropped.
//
//     offsets[e]    where expert e's slots begin in `rows`; offsets[experts] is how many were not dropped
//     rows[i]       the slot at place i, -1 from offsets[experts] on
//     positions[s]  the place of slot s, -1: dropped
struct SortArgs {
    const void* ids;     // int32 or, with `wide`, int64 [slots], dense
    const int32_t* map;  // [mapped]: a global expert's number here, or -1; nullptr: ids are this rank's
    int32_t *rows, *offsets, *positions;
    int64_t slots;
    int32_t experts, mapped;
    bool wide;
};

// out[t] = round(sum over j = 0, 1, ... of weights[t, j] * float(y[positions[t, j]]), + float(shared[t])) in float32, in
// that order, from 0; each product and each sum is rounded. Positions outside of [0, y_rows) are left out.
struct CombineArgs {
    const void* y;  // dtype [y_rows, d], rows y_stride elements apart
    const float* weights;
    const int32_t* positions;  // both [rows, chosen], dense
    const void* shared;        // shared_dtype [rows, d] or nullptr
    void* out;                 // out_dtype [rows, d]
    int64_t rows, d, y_rows;   // rows: tokens
    int64_t y_stride, shared_stride, out_stride;
    int32_t chosen;
    DType dtype, shared_dtype, out_dtype;  // f32, f16 or bf16
};

Status launch_route(const RouteArgs& args, const Executor& on);
Status launch_sort(const SortArgs& args, const Executor& on);
Status launch_combine(const CombineArgs& args, const Executor& on);

}  // namespace rocm_fp8::moe_routing
