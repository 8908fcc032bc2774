// mx_gemm's tiles for Hopper, emulated: its launcher as it is, with the rows that it orders, on a chip of so many
// multiprocessors as the caller names.
#include <algorithm>
#include <bit>

#include "common/cuda/device.h"
// The emulation comes first: it defines CUDA's words.
#include "emulated_lanes.h"

namespace rocm_fp8 {

using std::max;
using std::min;

inline bool __any_sync(uint32_t, bool v) { return __ballot_sync(kWholeWarp, v) != 0; }
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t v, int other) {
    const int lane = lane_of_fiber() ^ other;
    return with_lanes(v, [&](const auto& of) { return of(lane); });
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t places) {
    const uint64_t both = low | uint64_t(high) << 32;
    uint32_t bytes = 0;
    for (int i = 0; i < 4; ++i) bytes |= uint32_t(both >> (places >> 4 * i & 7) * 8 & 255) << 8 * i;
    return bytes;
}

constexpr DType kNativeFp8 = DType::e4m3fn;

// common/cuda/mma.h's.
inline Four widen(uint32_t codes) {
    const auto pair = [&](int i) {
        return Pairs<DType::f16>::round_any_nan({decoded(codes >> i & 255), decoded(codes >> (i + 8) & 255)});
    };
    return {pair(0), pair(16)};
}

// common/cuda/wgmma.h's, of bfloat16, k 16, with A in registers: lane 4 g + t has k 2 t and 2 t + 1 of rows g and g + 8, then
// both of k 2 t + 8.
template <int kGroups>
void multiply_bf16_async(float (&d)[kGroups][4], const uint32_t (&a)[4], uint32_t b, bool add) {
    const int lane = lane_of_fiber(), g = lane / 4, t = lane % 4;
    auto& lanes = current->cta->exchanged[current->thread / kWarp];
    lanes.resize(kWarp);
    lanes[lane] = {a[0], a[1], a[2], a[3]};
    __syncwarp();
    for (int i = 0; i < kGroups; ++i) {
        for (int e = 0; e < 4; ++e) {
            float sum = add ? d[i][e] : 0;
            for (int k = 0; k < 16; k += 2) {
                const uint32_t at = b + i * 1024 + (2 * t + e % 2) * 128 + k * 2;
                const auto of_a = Pairs<DType::bf16>::widen(lanes[4 * g + k % 8 / 2][k / 8 * 2 + e / 2]);
                const auto of_b = Pairs<DType::bf16>::widen(*global<uint32_t>(current->cta->shared + swizzled(at)));
                sum += of_a.x * of_b.x;
                sum += of_a.y * of_b.y;
            }
            d[i][e] = sum;
        }
    }
    __syncwarp();
}
inline void warpgroups_meet(int id, int threads) { meet(current->cta->named[id], threads); }
inline void warpgroup_arrives(int id, int threads) { arrive_at(current->cta->named[id], threads); }

namespace mx_gemm {
template <DType>
struct Products;  // of the plain kernel
}

}  // namespace rocm_fp8

#include "mx_gemm/cuda/tiles.h"

using namespace rocm_fp8;

bool rocm_fp8::describe(CUtensorMap* map, const ByteMatrix& m) {
    *map = {static_cast<const uint8_t*>(m.data), m.rows, m.k, m.stride, m.height, m.group_stride};
    return tma_takes(m) && m.width == 128 && m.height <= 256;
}

// given: without slots.
extern "C" const char* run(const mx_gemm::Args* given, int slots, int multiprocessors) {
    mx_gemm::Args a = *given;
    a.slots = divider_by(uint32_t(slots));
    const Chip chip{90, multiprocessors, 0, 0};
    // Poison: nothing may be read before it is written.
    std::vector<uint4> memory;
    Executor on;
    on.context = &memory;
    on.scratch = [](void* context, int64_t bytes) -> void* {
        auto& kept = *static_cast<std::vector<uint4>*>(context);
        kept.assign(size_t(bytes + 15) / 16, uint4{~0u, ~0u, ~0u, ~0u});
        return kept.data();
    };
    if (!mx_gemm::tiles_fit(a, chip)) return "the tiles do not take the operands";
    return mx_gemm::launch_tiles(a, chip, on).error;
}
