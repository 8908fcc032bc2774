// moe_route: a wave (warp) a token. Lane l holds experts l, l + lanes, ... as keys: numbers with the order of choices,
// 0 where there is no expert, or none any more.
//
//     logits -> scores -> keys -> [shared memory: scores of groups -> keys of dropped groups: 0]
//            -> chosen times: the largest key, then the lowest expert that has it -> lane j has choice j
//            -> its score, from shared memory -> its weight
#pragma once

#include "../../common/divider.h"
#include "../../common/exponential.h"
#include "../../common/gpu/lanes.h"
#include "../../common/gpu/ordered.h"
#include "../../common/gpu/overlap.h"
#include "../../common/rows/gpu/eight.h"
#include "../moe_routing.h"

namespace rocm_fp8::moe_routing {
namespace {

constexpr int kRouteWaves = 4, kRouteThreads = kRouteWaves * kLanes;  // of a workgroup, at most

__device__ inline uint32_t key_of(float choice) { return ordered(choice == choice ? choice : -__builtin_inff()); }

struct Scorer {
    Scoring scoring;
    float largest = 0, sum = 1;  // of the token's logits, for softmax

    __device__ float operator()(float logit) const {
        return scoring == Scoring::softmax ? exp_of_negative(logit - largest) / sum : score_of(scoring, logit);
    }
};

template <int kHeld>
__device__ inline Scorer scorer_of(const RouteArgs& a, const float (&logits)[kHeld], int lane) {
    Scorer scoring{a.scoring};
    if (a.scoring != Scoring::softmax) return scoring;
    float largest = -__builtin_inff();
#pragma unroll
    for (int v = 0; v < kHeld; ++v) largest = logits[v] > largest ? logits[v] : largest;
    scoring.largest = of_ordered(max_over_lanes<kLanes>(ordered(largest)));
    float part = 0;
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        const float e = exp_of_negative(logits[v] - scoring.largest);
        part += v * kLanes + lane < a.experts ? e : 0.0f;
    }
    scoring.sum = of_lane_of_sum(sum_over_lanes(part));
    return scoring;
}

// keys: all experts'. Afterwards keys[g] says whether group g stays.
__device__ inline void choose_groups(const RouteArgs& a, int size, uint32_t* keys, uint32_t* scores, int lane) {
    const int begin = lane < size ? lane : 0;  // not all lanes' first key in one bank
    for (int group = lane; group < a.groups; group += kLanes) {
        uint32_t first = 0, second = 0;
        for (int i = 0, at = begin; i < size; ++i) {
            const uint32_t key = keys[group * size + at];
            const uint32_t lower = first < key ? first : key;
            second = larger(second, lower), first = larger(first, key);
            at = at + 1 == size ? 0 : at + 1;
        }
        float score = of_ordered(first);
        if (!a.group_max && size > 1) score += of_ordered(second);
        scores[group] = key_of(score);
    }
    // Barrier: scores are read by lanes that did not write them, and keys are overwritten that lanes have read.
    meet_lanes();
    for (int group = lane; group < a.groups; group += kLanes) {
        const uint32_t score = scores[group];
        int better = 0;
        for (int other = 0; other < a.groups; ++other) {
            const uint32_t of_other = scores[other];
            better += of_other > score || (of_other == score && other < group);
        }
        keys[group] = better < a.top_groups;
    }
    // Barrier: what stays is read by lanes that did not write it.
    meet_lanes();
}

template <DType in, int kHeld>
__global__ __launch_bounds__(kRouteThreads) void moe_route(RouteArgs a, Divider by_group) {
    let_next_kernel_start();
    const int lane = threadIdx.x % kLanes, wave = uniform(threadIdx.x / kLanes);
    const int64_t token = int64_t(blockIdx.x) * (blockDim.x / kLanes) + wave;
    if (token >= a.tokens) return;
    wait_for_previous_kernel();
    const void* row = offset(a.logits, token * a.stride * kElementBytes<in>);
    const auto expert = [&](int v) { return v * kLanes + lane; };
    // Lanes without an expert load the last one: a branch around loads would keep them from being in flight together.
    const auto loaded = [&](int v) { return expert(v) < a.experts ? expert(v) : a.experts - 1; };
    // Logits; then scores.
    float scores[kHeld], bias[kHeld] = {};
#pragma unroll
    for (int v = 0; v < kHeld; ++v) scores[v] = element_at<in>(row, loaded(v));
    if (a.bias) {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) bias[v] = global<float>(a.bias)[loaded(v)];
    }
    keep_order();  // the loads first
    const Scorer scoring = scorer_of(a, scores, lane);
    uint32_t keys[kHeld];
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
        scores[v] = scoring(scores[v]);
        // No score is -0, which is all that + 0 would change.
        keys[v] = expert(v) < a.experts ? key_of(scores[v] + bias[v]) : 0;
    }
    __shared__ uint32_t of_experts[kRouteWaves][kHeld * kLanes], of_groups[kRouteWaves][kHeld * kLanes];
    if (a.groups > 1) {
#pragma unroll
        for (int v = 0; v < kHeld; ++v) of_experts[wave][expert(v)] = keys[v];
        // Barrier: keys are read by lanes that did not write them.
        meet_lanes();
        choose_groups(a, int(by_group.divisor), of_experts[wave], of_groups[wave], lane);
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
            if (!of_experts[wave][divide(uint32_t(loaded(v)), by_group)]) keys[v] = 0;
        }
    }
    // In the place of the groups' scores, which all lanes have read.
#pragma unroll
    for (int v = 0; v < kHeld; ++v) of_groups[wave][expert(v)] = float_bits(scores[v]);
    int mine = 0;
    if (a.given && lane < a.chosen) mine = global<int32_t>(a.given)[token * a.chosen + lane];
    for (int j = 0; !a.given && j < a.chosen; ++j) {
        uint32_t most = 0, last = 0;
#pragma unroll
        for (int v = 0; v < kHeld; ++v) most = larger(most, keys[v]);
        most = max_over_lanes<kLanes>(most);
#pragma unroll
        for (int v = 0; v < kHeld; ++v) last = larger(last, keys[v] == most ? ~uint32_t(expert(v)) : 0u);
        const int best = int(~max_over_lanes<kLanes>(last));
        mine = lane == j ? best : mine;
#pragma unroll
        for (int v = 0; v < kHeld; ++v) keys[v] = expert(v) == best ? 0 : keys[v];
    }
    // Barrier: scores are read by lanes that did not write them.
    meet_lanes();
    const bool known = mine >= 0 && mine < a.experts;
    float weight = known ? bits_float(of_groups[wave][known ? mine : 0]) : 0.0f;
    if (a.renormalize) {
        float sum = 0;
        for (int j = 0; j < a.chosen; ++j) sum += of_lane(weight, j);
        weight /= sum + 1e-20f;
    }
    if (lane >= a.chosen) return;
    global<float>(a.weights)[token * a.chosen + lane] = weight * a.factor;
    global<int32_t>(a.ids)[token * a.chosen + lane] = mine;
}

template <DType in, class Vendor>
Status launch_route_as(const RouteArgs& a, const Vendor& vendor) {
    const auto launch = [&]<int kExperts>() {
        // As long as each has a compute unit of its own, or nearly, tokens do not share one's LDS and issue slots.
        const int waves = a.tokens <= 4 * int64_t(vendor.units) ? 1 : kRouteWaves;
        return vendor.launch(moe_route<in, kExperts / kLanes>, ceil_div(a.tokens, waves), waves * kLanes, 1, a,
                             divider_by(uint32_t(a.experts / a.groups)));
    };
    if (a.experts <= 64) return launch.template operator()<64>();
    return a.experts <= 256 ? launch.template operator()<256>() : launch.template operator()<kMostExperts>();
}

}  // namespace
}  // namespace rocm_fp8::moe_routing
