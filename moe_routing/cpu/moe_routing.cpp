#include <algorithm>
#include <vector>

#include "../../common/cpu/simd_portable.h"
#include "../../common/cpu/half.h"
#include "../../common/exponential.h"
#include "combine.h"

namespace rocm_fp8::moe_routing {
namespace {

constexpr float kLeast = -__builtin_inff();

float logit(const RouteArgs& a, int64_t at) {
    if (a.dtype == DType::f32) return static_cast<const float*>(a.logits)[at];
    const uint16_t bits = static_cast<const uint16_t*>(a.logits)[at];
    return a.dtype == DType::f16 ? half_to_float(bits) : bits_float(uint32_t(bits) << 16);
}

float no_nan(float v) { return v == v ? v : kLeast; }

// One token: scores s, then choices, of `experts`.
void scores(const RouteArgs& a, int64_t token, float* s) {
    const int n = a.experts;
    for (int e = 0; e < n; ++e) s[e] = logit(a, token * a.stride + e);
    if (a.scoring != Scoring::softmax) {
        for (int e = 0; e < n; ++e) s[e] = score_of(a.scoring, s[e]);
        return;
    }
    float largest = kLeast, sum = 0;
    for (int e = 0; e < n; ++e) largest = s[e] > largest ? s[e] : largest;
    for (int e = 0; e < n; ++e) sum += s[e] = exp_of_negative(s[e] - largest);
    for (int e = 0; e < n; ++e) s[e] /= sum;
}

// Drops the experts of all groups but the best.
void keep_groups(const RouteArgs& a, const float* choice, bool* taken) {
    const int size = a.experts / a.groups;
    std::vector<float> of_group(a.groups);
    std::vector<bool> kept(a.groups);
    for (int g = 0; g < a.groups; ++g) {
        float first = kLeast, second = kLeast;
        for (int i = 0; i < size; ++i) {
            const float v = choice[g * size + i];
            if (v > first) second = first, first = v;
            else if (v > second) second = v;
        }
        of_group[g] = a.group_max || size == 1 ? first : no_nan(first + second);
    }
    for (int n = 0; n < a.top_groups; ++n) {
        int best = -1;
        for (int g = 0; g < a.groups; ++g)
            if (!kept[g] && (best < 0 || of_group[g] > of_group[best])) best = g;
        kept[best] = true;
    }
    for (int e = 0; e < a.experts; ++e) taken[e] = !kept[e / size];
}

void finish(const RouteArgs& a, float sum, float* weights) {
    for (int j = 0; j < a.chosen; ++j) {
        if (a.renormalize) weights[j] /= sum + 1e-20f;
        weights[j] *= a.factor;
    }
}

void weigh_given(const RouteArgs& a, int64_t token, const float* s) {
    float *weights = a.weights + token * a.chosen, sum = 0;
    for (int j = 0; j < a.chosen; ++j) {
        const int32_t e = a.ids[token * a.chosen + j] = a.given[token * a.chosen + j];
        sum += weights[j] = e >= 0 && e < a.experts ? s[e] : 0;
    }
    finish(a, sum, weights);
}

void route_rows(const RouteArgs& a, int64_t begin, int64_t end) {
    float s[kMostExperts], choice[kMostExperts];
    for (int64_t token = begin; token < end; ++token) {
        bool taken[kMostExperts] = {};
        scores(a, token, s);
        if (a.given) {
            weigh_given(a, token, s);
            continue;
        }
        for (int e = 0; e < a.experts; ++e) choice[e] = no_nan(a.bias ? s[e] + a.bias[e] : s[e]);
        if (a.groups > 1) keep_groups(a, choice, taken);
        float* weights = a.weights + token * a.chosen;
        int32_t* ids = a.ids + token * a.chosen;
        float sum = 0;
        for (int j = 0; j < a.chosen; ++j) {
            int best = -1;
            for (int e = 0; e < a.experts; ++e)
                if (!taken[e] && (best < 0 || choice[e] > choice[best])) best = e;
            taken[best] = true;
            ids[j] = best;
            sum += weights[j] = s[best];
        }
        finish(a, sum, weights);
    }
}

}  // namespace

Status launch_route(const RouteArgs& args, const Executor& on) {
    on.parallel_for(
        0, args.tokens, std::max<int64_t>(1, 8192 / args.experts),
        [](void* a, int64_t begin, int64_t end) { route_rows(*static_cast<const RouteArgs*>(a), begin, end); },
        const_cast<RouteArgs*>(&args));
    return {};
}

Status launch_sort(const SortArgs& a, const Executor&) {
    const auto expert_of = [&](int64_t slot) -> int64_t {
        int64_t id = a.wide ? static_cast<const int64_t*>(a.ids)[slot] : static_cast<const int32_t*>(a.ids)[slot];
        if (a.map) id = id >= 0 && id < a.mapped ? a.map[id] : -1;
        return id >= 0 && id < a.experts ? id : -1;
    };
    std::vector<int32_t> next(a.experts + 1);
    for (int64_t slot = 0; slot < a.slots; ++slot) {
        const int64_t e = expert_of(slot);
        if (e >= 0) ++next[e + 1];
    }
    for (int e = 0; e < a.experts; ++e) next[e + 1] += next[e];
    std::copy(next.begin(), next.end(), a.offsets);
    for (int64_t slot = 0; slot < a.slots; ++slot) {
        const int64_t e = expert_of(slot);
        a.positions[slot] = e < 0 ? -1 : next[e]++;
        if (e >= 0) a.rows[a.positions[slot]] = int32_t(slot);
    }
    std::fill(a.rows + a.offsets[a.experts], a.rows + a.slots, -1);
    return {};
}

Status launch_combine(const CombineArgs& args, const Executor& on) {
    return launch_rows(args, RowsKernels<CombineArgs>{pick<Lanes<Portable>>, combine_avx2, combine_avx512}, on);
}

}  // namespace rocm_fp8::moe_routing
