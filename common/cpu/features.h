// Which of the compiled instruction sets this process uses.
#pragma once

namespace rocm_fp8 {

enum class Isa { portable, avx2, avx512 };

// The best set that the processor (and the operating system) supports, found once a process. The
// environment variable ROCM_FP8_KERNELS_CPU = portable | avx2 | avx512 asks for another one: a set that
// the machine lacks, or a name that is none of these, is an error rather than a silent substitute.
struct IsaChoice {
    Isa isa;
    const char* error;  // nullptr, or one line
};
IsaChoice cpu_isa();
const char* isa_name(Isa isa);

}  // namespace rocm_fp8
