#include <cmath>
#include <vector>

#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::swiglu {
namespace {

// Through float32, as the unfused module rounds. -infinity gives NaN and the largest negative numbers give -0, as
// in torch.
template <DType type>
std::vector<uint16_t> make_silu_table() {
    using L = Lanes<Portable>;
    using Whole = std::integral_constant<int, L::block>;
    std::vector<uint16_t> table(65536);
    for (int first = 0; first < 65536; first += L::block) {
        uint16_t bits[L::block];
        float values[L::block];
        for (int i = 0; i < L::block; ++i) bits[i] = uint16_t(first + i);
        L::store<DType::f32, type>(values, L::load<type, type>(bits, Whole()), Whole());
        for (float& v : values) v = float(double(v) / (1 + std::exp(-double(v))));
        const L::F silu = L::tame_nan(L::load<DType::f32, type>(values, Whole()));
        L::store<type, type>(table.data() + first, L::round_to<type>(silu), Whole());
    }
    return table;
}

}  // namespace

const uint16_t* silu_table(DType type) {
    if (type == DType::f16) {
        static const std::vector<uint16_t> table = make_silu_table<DType::f16>();
        return table.data();
    }
    static const std::vector<uint16_t> table = make_silu_table<DType::bf16>();
    return table.data();
}

Status launch(const Args& args, const Executor& on) {
    return launch_dynamic(args, RowsKernels<Job>{pick<Lanes<Portable>>, kernel_avx2, kernel_avx512}, on, [](Job&) {});
}

}  // namespace rocm_fp8::swiglu
