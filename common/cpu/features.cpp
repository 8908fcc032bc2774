#include "features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

#include "../environment.h"

namespace rocm_fp8 {
namespace {

// The operating system saves a process's tiles once it has been asked to.
bool tiles_are_allowed() {
    constexpr long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, of XCR0's bits
    return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
}

bool has_tiles() {
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAll) == kAll;
}

bool supports(Isa isa) {
    // __builtin_cpu_supports also asks XGETBV whether the operating system saves the wide registers.
    switch (isa) {
        case Isa::amx: return supports(Isa::avx512) && has_tiles() && tiles_are_allowed();
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
    for (Isa isa : {Isa::amx, Isa::avx512, Isa::avx2, Isa::portable}) {
        if (asked.empty()) {
            if (isa != Isa::amx && supports(isa)) return {isa, supports(Isa::amx), nullptr};
        } else if (asked == isa_name(isa)) {
            if (supports(isa)) return {isa, isa == Isa::amx, nullptr};
            return {Isa::portable, false, "ROCM_FP8_KERNELS_CPU asks for an instruction set that this processor lacks"};
        }
    }
    return {Isa::portable, false, "ROCM_FP8_KERNELS_CPU must be portable, avx2, avx512 or amx"};
}

}  // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::amx: return "amx";
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
