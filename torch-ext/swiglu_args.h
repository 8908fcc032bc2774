// The limit of SwiGLU's operands, which every operator with SwiGLU has.
#pragma once

#include <cmath>
#include <optional>

#include "tensor_args.h"

namespace rocm_fp8::binding {
namespace {

// To nearest even, as a float32: what clamping in the type compares with.
inline float rounded(double value, DType type) {
    if (std::isinf(value)) return INFINITY;
    const double ulp =
        std::ldexp(1.0, std::max(std::ilogb(value), type == DType::f16 ? -14 : -126) - (type == DType::f16 ? 10 : 7));
    const double nearest = std::nearbyint(value / ulp) * ulp;
    const double largest = type == DType::f16 ? 65504.0 : 0x1.FEp127;
    return nearest > largest ? INFINITY : float(nearest);
}

// A number of `type`; infinity without one.
inline float swiglu_limit(const char* op, std::optional<double> limit, DType type) {
    if (!limit) return INFINITY;
    const float number = rounded(*limit, type);
    if (!(number > 0)) refuse(op, "limit: ", *limit, "; needs a positive number");
    return number;
}

}  // namespace
}  // namespace rocm_fp8::binding
