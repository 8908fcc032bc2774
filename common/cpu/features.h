// Which of the compiled instruction sets this process uses.
#pragma once

namespace rocm_fp8 {

// Each has what those before it have.
enum class Isa { portable, avx2, avx512, amx };

// The best set that the processor (and the operating system) supports, found once a process. The
// environment variable ROCM_FP8_KERNELS_CPU = portable | avx2 | avx512 | amx asks for another one: a set that
// the machine lacks, or a name that is none of these, is an error rather than a silent substitute.
//
// FP8 and INT8 GEMMs by AMX have to be asked for: a row's bits must not depend on the number of rows, and one row alone
// is slower by AMX. What gains for every size takes it where it is allowed: `tiles`. So does what has its bits without.
struct IsaChoice {
    Isa isa;
    bool tiles;
    const char* error;  // nullptr, or one line
};
IsaChoice cpu_isa();
const char* isa_name(Isa isa);

// What an instruction set takes of these; AMX without any of its own AVX-512's.
template <class T>
T of_isa(Isa isa, T portable, T avx2, T avx512, T amx) {
    return isa == Isa::amx ? amx : isa == Isa::avx512 ? avx512 : isa == Isa::avx2 ? avx2 : portable;
}
template <class T>
T of_isa(Isa isa, T portable, T avx2, T avx512) {
    return of_isa(isa, portable, avx2, avx512, avx512);
}

}  // namespace rocm_fp8
