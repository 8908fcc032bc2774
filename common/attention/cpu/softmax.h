// Online softmax of a row of attention on the CPU: the largest score so far, and the sum of exponentials relative to
// it.
//
// Scores of -infinity count for nothing. A score of NaN, or +infinity, makes the sum NaN.
#pragma once

#include "../../exponential.h"

namespace rocm_fp8 {

constexpr float kNoScore = -__builtin_inff();

struct Softmax {
    float largest = kNoScore, sum = 0;
};

namespace {

// What scores are taken relative to: where all are -infinity, a number from which they still are.
inline float base_of(const Softmax& s) { return s.largest == kNoScore ? 0.0f : s.largest; }

// Takes `count` scores in, which become their exponentials. Returns what sums of values made before count by.
inline float take_scores(Softmax& s, float* scores, int count) {
    const float before = base_of(s);
    float largest = s.largest;
    for (int i = 0; i < count; ++i) largest = scores[i] > largest ? scores[i] : largest;
    const bool grows = largest > s.largest;
    s.largest = largest;
    const float base = base_of(s), kept = grows && s.sum != 0 ? exp_of_negative(before - base) : 1.0f;
    for (int i = 0; i < count; ++i) scores[i] = exp_of_negative(scores[i] - base);
    float sum = 0;
    for (int i = 0; i < count; ++i) sum += scores[i];
    s.sum = s.sum * kept + sum;
    return kept;
}

// What sums made with `part` count by in a softmax whose largest score is `largest`.
inline float share_of(const Softmax& part, float largest) {
    const Softmax all{largest, 0};
    return exp_of_negative(base_of(part) - base_of(all));
}

}  // namespace
}  // namespace rocm_fp8
