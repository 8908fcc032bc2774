// What a CTA of the kernel for FP8 caches has in shared memory, and what it is launched with.
#pragma once

#include <numeric>

#include "shape.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

// 64 tokens of 128 codes, with TMA's 128-byte swizzle. The last panel has the 64 rotated numbers: as codes, with
// nothing behind them, or (mixed) as 16-bit ones.
constexpr int kCodePanels = 5, kRopeCodes = kCodePanels - 1, kCodePanelColumns = kPanelRow;
constexpr int kScaleGroups = kLatent / kScaleGroup;
using CodeTile = uint8_t[kCodePanels][kPanelBytes];
static_assert(kScaleGroup == kCodePanelColumns);  // a panel has one scale a token

// What is multiplied. FP8 numbers are float16 after one instruction a pair; queries of bfloat16 become float16 as well
// then, each row times a power of two that brings its largest number below 2^15. Scaled numbers may need more range.
template <Format format, DType type>
constexpr DType kMath = format == Format::fp8 ? DType::f16 : type;

// A team has tokens of its own, and all 512 columns of their sums: its warpgroups, one or two, have a part each.
template <Format format, int kRows>
struct Fp8Roles {
    static constexpr int kTeam = kRows > 32 ? 2 : 1;
    static constexpr int kTeams = kRows == 16 ? 3 : kRows == 32 ? 2 : 1;
    static constexpr int kWarpgroups = kTeam * kTeams, kMultiplying = kWarpgroups * kWarpgroup;
    static constexpr int kThreads = kMultiplying + kWarpgroup;  // a warp of the last warpgroup loads
    // Registers of a thread: at the start, of the loading warpgroup, of the others.
    static constexpr int kFirstRegisters = 65536 / kThreads / 8 * 8, kFewRegisters = 24;
    static constexpr int kManyRegisters = kTeams == 3 ? 160 : 240;
    static_assert(kFewRegisters + kWarpgroups * kManyRegisters <= (kWarpgroups + 1) * kFirstRegisters);
    static constexpr int kStages = kRows == 64 ? 3 : kRows == 32 || format == Format::mixed ? 4 : 5;
    // Mbarriers of tiles that are there: of the tiles of one of them all belong to the same team. A stage's tiles do
    // not. A team that has seen none of a stage's last phase could take the phase before it for the one it waits for.
    static constexpr int kArrivals = std::lcm(kStages, kTeams);
};

template <Format format, int kRows>
struct Fp8Memory {
    using Roles = Fp8Roles<format, kRows>;
    alignas(1024) uint8_t q[kPanels][kRows * kPanelRow];
    alignas(1024) CodeTile codes[Roles::kStages];
    float scales[format == Format::mixed ? Roles::kStages : 1][kTileTokens][kScaleGroups];
    alignas(1024) uint8_t p[Roles::kWarpgroups][kRows * kPanelRow];
    float met[Roles::kWarpgroups][kWarpsOfWarpgroup][kRows];  // largest scores; at the end the sums of p
    float team_largest[Roles::kTeams][kRows];
    float lifted[kRows];  // what undoes the queries' lift
    Barrier full[Roles::kArrivals], empty[Roles::kStages];
};

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda
