// The largest error of swiglu_fp8/silu.h over all 16-bit gates, in ulps of float32, when v_exp_f32 and v_rcp_f32 give
// either neighbour of the exact value (AMD states an error below one ulp). Prints it for each type; see
// test_silu_bound.py.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "swiglu_fp8/silu.h"

namespace {

// The neighbours of an exact value: one rounded towards zero, one away from it.
float neighbour(double exact, bool up) {
    const float nearest = float(exact);
    if (double(nearest) == exact || (double(nearest) > exact) == up) return nearest;
    return std::nextafterf(nearest, up ? std::numeric_limits<float>::infinity() : 0.0f);
}

struct Machine {
    bool exp_up, rcp_up;
    float fma(float a, float b, float c) const { return std::fmaf(a, b, c); }
    float exp2(float v) const {
        const double exact = std::exp2(double(v));
        // The instruction has no subnormal results.
        return exact < double(std::numeric_limits<float>::min()) ? 0.0f : neighbour(exact, exp_up);
    }
    float rcp(float v) const { return neighbour(1.0 / double(v), rcp_up); }
};

float widen_bf16(unsigned bits) {
    const unsigned u = bits << 16;
    float v;
    std::memcpy(&v, &u, 4);
    return v;
}

float widen_f16(unsigned bits) {
    _Float16 h;
    std::memcpy(&h, &bits, 2);
    return float(h);
}

double ulps_off(float got, double exact) {
    const float nearest = float(exact);
    const double ulp = double(std::nextafterf(std::fabs(nearest), INFINITY)) - double(std::fabs(nearest));
    return std::fabs(double(got) - exact) / ulp;
}

template <class Widen>
void check(const char* name, Widen widen) {
    double worst = 0;
    float at = 0;
    for (unsigned bits = 0; bits < 65536; ++bits) {
        const float v = widen(bits);
        if (!std::isfinite(v)) continue;
        const double exact = double(v) / (1.0 + std::exp(-double(v)));
        for (bool e : {false, true}) {
            for (bool r : {false, true}) {
                const float got = rocm_fp8::swiglu::silu_any(v, Machine{e, r});
                if (std::signbit(got) != std::signbit(v)) {
                    std::printf("%s: wrong sign at %a: %a\n", name, v, got);
                    return;
                }
                const double off = ulps_off(got, exact);
                if (!(off <= worst)) worst = off, at = v;
            }
        }
    }
    std::printf("%s %.4f at %a\n", name, worst, double(at));
}

}  // namespace

int main() {
    check("float16", widen_f16);
    check("bfloat16", widen_bf16);
    const float inf = INFINITY;
    const Machine exact{false, false};
    std::printf("special %d\n", rocm_fp8::swiglu::silu_any(inf, exact) == inf &&
                                    std::isnan(rocm_fp8::swiglu::silu_any(-inf, exact)) &&
                                    std::isnan(rocm_fp8::swiglu::silu_any(float(NAN), exact)));
}
