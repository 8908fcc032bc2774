// Split-K of tiles: their sums meet in memory, and the workgroup that comes last finishes the tile.
#pragma once

#include <type_traits>

#include "../../hip/lds.h"
#include "work.h"

namespace rocm_fp8::gemm::hip {
namespace {

// Parts of a tile in memory: [parts][fours of a lane][threads] of 16 bytes, in the order in which lanes have them.
// Returns whether this workgroup has the tile's sums now, and is to finish it. float32: added in the order of the parts,
// from -0. int32: sums wrap around, so their order is of no account. lds: 4 bytes, which are free again afterwards.
template <class S, class Sums>
__device__ inline bool add_parts(Sums& sums, const WorkItem& item, const SplitK& split, void* lds) {
    constexpr bool kExact = std::is_integral_v<std::remove_cvref_t<decltype(sums[0][0][0])>>;
    using Four = std::conditional_t<kExact, i32x4, f32x4>;
    constexpr uint32_t kPartBytes = uint32_t(S::rows) * S::columns * S::waves_k * 4;
    char* const parts = reinterpret_cast<char*>(split.partial) + int64_t(item.tile) * split.parts * kPartBytes;
    const uint32_t mine_at = uint32_t(fresh_thread()) * 16;
    const auto at = [&](int four) { return uint32_t(four * S::threads) * 16 + mine_at; };
    const Buffer mine(parts + int64_t(item.part) * kPartBytes, kPartBytes);
    each_four<S>([&](int i, int j, int q, int four) {
        mine.template store<kAllChiplets>(at(four), __builtin_bit_cast(u32x4, four_of<Four>(sums[i][j], q)));
    });
    if (!arrives_last(split.arrived + item.tile, split.parts, *static_cast<uint32_t*>(lds))) return false;
    // Barrier: all waves have read the word of lds that told them; the epilogue writes there.
    lds_barrier();
    if constexpr (!kExact) each_four<S>([&](int i, int j, int q, int) { set_four(sums[i][j], q, f32x4(-0.0f)); });
    for (int part = 0; part < split.parts; ++part) {
        if (kExact && part == item.part) continue;
        const Buffer other(parts + int64_t(part) * kPartBytes, kPartBytes);
        each_four<S>([&](int i, int j, int q, int four) {
            const u32x4 bits = other.template load<kAllChiplets>(at(four));
            if constexpr (kExact) {
                const u32x4 sum = __builtin_bit_cast(u32x4, four_of<Four>(sums[i][j], q)) + bits;
                set_four(sums[i][j], q, __builtin_bit_cast(Four, sum));
            } else {
                set_four(sums[i][j], q, four_of<Four>(sums[i][j], q) + __builtin_bit_cast(Four, bits));
            }
        });
    }
    reset(split.arrived + item.tile);
    return true;
}

}  // namespace
}  // namespace rocm_fp8::gemm::hip
