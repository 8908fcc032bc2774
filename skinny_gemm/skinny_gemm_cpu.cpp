#include <vector>

#include "../common/cpu/features.h"
#include "../common/fp8.h"
#include "skinny_gemm_cpu.h"

namespace rocm_fp8 {
namespace {

template <DType format>
void decode_rows(const SkinnyGemmArgs& args, int64_t k_padded, float* values, bool* has_nan) {
    float table[256];
    for (int code = 0; code < 256; ++code) table[code] = fp8_decode<format>(uint8_t(code));
    for (int64_t m = 0; m < args.m; ++m) {
        const uint8_t* row = args.a + m * args.a_stride;
        float* out = values + m * k_padded;
        float nan_if_any = 0;
        for (int64_t k = 0; k < args.k; ++k) {
            out[k] = table[row[k]];
            nan_if_any += out[k] * 0.0f;
        }
        has_nan[m] = nan_if_any != nan_if_any;
        for (int64_t k = args.k; k < k_padded; ++k) out[k] = 0;
    }
}

}  // namespace

Status launch_skinny_gemm(const SkinnyGemmArgs& args, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    if (args.m > kSkinnyGemmMaxRows) return {"a has more rows than one launch takes"};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    ColumnsKernel kernel = choice.isa == Isa::avx512 ? skinny_gemm_avx512(args)
                           : choice.isa == Isa::avx2 ? skinny_gemm_avx2(args)
                                                     : skinny_gemm_portable(args);

    // At most 32 rows of A: kept between calls, because fresh pages would cost more than the decoding.
    static thread_local std::vector<float> values;
    const int64_t k_padded = (args.k + kStep - 1) / kStep * kStep;
    if (int64_t(values.size()) < args.m * k_padded) values.resize(args.m * k_padded);
    bool has_nan[kSkinnyGemmMaxRows];
    args.format == DType::e4m3fn ? decode_rows<DType::e4m3fn>(args, k_padded, values.data(), has_nan)
                                 : decode_rows<DType::e4m3fnuz>(args, k_padded, values.data(), has_nan);
    const DecodedRows decoded{values.data(), k_padded, has_nan};

    struct Context {
        const SkinnyGemmArgs* args;
        const DecodedRows* a;
        ColumnsKernel kernel;
    } context{&args, &decoded, kernel};
    // Parts of about 256 KiB of weights, in whole tiles.
    const int64_t columns = 262144 / args.k;
    const int64_t grain = columns < 12 ? 12 : columns / 12 * 12;
    on.parallel_for(0, args.n, grain, [](void* c, int64_t begin, int64_t end) {
        auto* context = static_cast<Context*>(c);
        context->kernel(*context->args, *context->a, begin, end);
    }, &context);
    return {};
}

}  // namespace rocm_fp8
