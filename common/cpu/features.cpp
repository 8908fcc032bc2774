#include "features.h"

#include <initializer_list>

#include "../environment.h"

namespace rocm_fp8 {
namespace {

bool supports(Isa isa) {
    // __builtin_cpu_supports also asks XGETBV whether the operating system saves the wide registers.
    switch (isa) {
        case Isa::avx512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16") &&
                   __builtin_cpu_supports("avx512vnni") && supports(Isa::avx2);
        case Isa::avx2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        case Isa::portable: return true;
    }
    return false;
}

IsaChoice choose() {
    const std::string& asked = environment().cpu;
    for (Isa isa : {Isa::avx512, Isa::avx2, Isa::portable}) {
        if (asked.empty()) {
            if (supports(isa)) return {isa, nullptr};
        } else if (asked == isa_name(isa)) {
            if (supports(isa)) return {isa, nullptr};
            return {Isa::portable, "ROCM_FP8_KERNELS_CPU asks for an instruction set that this processor lacks"};
        }
    }
    return {Isa::portable, "ROCM_FP8_KERNELS_CPU must be portable, avx2 or avx512"};
}

}  // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::avx512: return "avx512";
        case Isa::avx2: return "avx2";
        case Isa::portable: return "portable";
    }
    return "?";
}

IsaChoice cpu_isa() {
    static const IsaChoice choice = choose();
    return choice;
}

}  // namespace rocm_fp8
