// Gates on the CPU, number by number: the GEMMs around it take a hundred times as long.
#include <algorithm>

#include "../../common/cpu/half.h"
#include "../../common/gemm/scales.h"
#include "../moe_gate.h"

namespace rocm_fp8::moe_gate {
namespace {

float number(const void* x, DType type, int64_t i) {
    return type == DType::f32 ? static_cast<const float*>(x)[i]
                              : gemm::widened(type, static_cast<const uint16_t*>(x)[i]);
}

}  // namespace

Status launch(const Args& args, const Executor& on) {
    const int64_t live = args.end ? std::clamp<int64_t>(*args.end, 0, args.rows) : args.rows;
    if (live == 0 || args.d == 0) return {};
    on.parallel_for(
        0, live * args.d, 8192,
        [](void* context, int64_t begin, int64_t end) {
            const Args& a = *static_cast<const Args*>(context);
            for (int64_t n = begin; n < end; ++n) {
                const int64_t row = n / a.d, j = n % a.d, x = row * a.x_stride;
                const float g = number(a.x, a.dtype, x + (a.gate.interleaved ? 2 * j : j)),
                            u = number(a.x, a.dtype, x + (a.gate.interleaved ? 2 * j + 1 : a.d + j));
                const float v = gated(a.gate, g, u);
                static_cast<uint16_t*>(a.out)[row * a.out_stride + j] =
                    a.out_dtype == DType::f16 ? float_to_half(v) : float_to_bfloat16(v);
            }
        },
        const_cast<Args*>(&args));
    return {};
}

}  // namespace rocm_fp8::moe_gate
