// Loads that go to LDS directly, with no registers between: 4 bytes a lane on both chips, 16 on gfx950.
//
// The compiler knows nothing of them. wait_for_loads counts them with all others: they come back in their order.
#pragma once

#include "vector.h"

namespace rocm_fp8 {
namespace {

// Where the next load puts what its first lane loads; the other lanes' follow, lane after lane. Between the two a vector
// instruction has to be computed anew: the hardware wants another one there. M0 has the place in its bits 17 to 2
// (CDNA4's manual, 10.3), so all of LDS is in reach.
__device__ inline void to_lds(uint32_t to) { asm volatile("s_mov_b32 m0, %0" ::"s"(to) : "memory"); }

// Wait states between a vector instruction that writes scalar registers, a carry too, and a load that has its address
// there. The compiler does not see loads in assembly.
__device__ inline void settle_scalars() { asm volatile("s_nop 4" ::: "memory"); }

// Where nothing else stands between to_lds and a load.
__device__ inline void settle_m0() { asm volatile("s_nop 0" ::: "memory"); }

// 4 or 16 bytes of each lane, from first + offset on.
template <int bytes>
__device__ inline void load_to_lds(const uint8_t* first, uint32_t offset) {
    if constexpr (bytes == 16) {
        asm volatile("global_load_lds_dwordx4 %0, %1" ::"v"(offset), "s"(first) : "memory");
    } else {
        asm volatile("global_load_lds_dword %0, %1" ::"v"(offset), "s"(first) : "memory");
    }
}
// 16 bytes from an address of each lane's own.
__device__ inline void load_to_lds(const uint8_t* from) {
    asm volatile("global_load_lds_dwordx4 %0, off" ::"v"(from) : "memory");
}
// The same as both, from first + (offset ^ other) on. More than `to` and `first` is known at compile time.
__device__ inline void load_to_lds(uint32_t to, int more, const uint8_t* first, uint32_t offset, int other) {
    uint32_t at;
    asm volatile("s_add_u32 m0, %1, %2\n\tv_xor_b32 %0, %4, %3\n\tglobal_load_lds_dwordx4 %0, %5"
                 : "=&v"(at)
                 : "s"(to), "i"(more), "v"(offset), "i"(other), "s"(first)
                 : "memory", "scc");
}

// Waits until at most so many of the wave's loads and stores are on their way.
template <int in_flight>
__device__ inline void wait_for_loads() {
    asm volatile("s_waitcnt vmcnt(%0)" ::"n"(in_flight) : "memory");
}

}  // namespace
}  // namespace rocm_fp8
