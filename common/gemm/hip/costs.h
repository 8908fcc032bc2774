// What the models of choose.h reckon with: data of `python -m benchmarks tune costs MODEL --write`. Each section says the
// command, the commit and the date that its values are of.
#pragma once

#include "choose.h"

namespace rocm_fp8::gemm::costs {

// streams: `python -m benchmarks tune costs streams --arch gfx942 --write`, 503012f, 2026-11-25:
// 606 estimates, 4.9 % off; picks at 40 sizes: 0.4 % slower than the best in the mean, 4.5 % at most.
constexpr StreamCosts kStreams{
    .fixed_us = 1.961,
    .in_the_way = 0.04652,
    .latency_cycles = 891.2,
    .block_cycles = 101.5,
    .power = 0.486,
    .kib_us = 0.02592,
    .round_us = 2.669,
    .split_us = 1.171,
    .part_us = 0.03736,
};

// block_scaled_gemm: not fitted by a command yet; values of 3dc4fb1, d256x256 of ec2a6fc, 2026-11-25. By fit_costs'
// estimates at 503012f they are 27.6 % off at 162 points; picks at 14 sizes: 1.3 % slower than the best in the mean.
namespace block_scaled_gemm {
constexpr TileCosts kTiles{
    .fixed_cycles = 5500,
    .result_cycles = 0,
    .added_cycles = 0,
    .stores = 0.5,
    .split_stores = 0.5,
    .beside = 1.45,
    .left = 0,
    .copies = 1,
    .memory_us = 2,
    .power = 0,
    .split_us = 1.5,
};
constexpr BlockCycles t256x128{{3200, 2050}};
constexpr BlockCycles t128x128{{1900, 1350}};
constexpr BlockCycles t128x64{{1550, 1420}};
constexpr BlockCycles t64x64{{1000, 1000}};
constexpr BlockCycles fallback{{1800, 1510}};
constexpr BlockCycles d256x256{{0, 3020}};
}  // namespace block_scaled_gemm

// int8_gemm: not fitted by a command yet; values of 3dc4fb1, 2026-11-25.
namespace int8_gemm {
constexpr TileCosts kTiles{
    .fixed_cycles = 5500,
    .result_cycles = 0.25,
    .added_cycles = 0.42,
    .stores = 0,
    .split_stores = 1,
    .beside = 1.45,
    .left = 1,
    .copies = 0,
    .memory_us = 2,
    .power = 0.665,
    .split_us = 1.5,
};
constexpr BlockCycles t256x128{{2740, 1950}};
constexpr BlockCycles t128x128{{1660, 1310}};
constexpr BlockCycles t128x64{{1200, 1090}};
constexpr BlockCycles t64x64{{730, 717}};
constexpr BlockCycles t32x64{{690, 683}};
constexpr BlockCycles t16x64{{660, 643}};
constexpr BlockCycles t224x128{{2365, 1840}};
constexpr BlockCycles t160x128{{1770, 1530}};
}  // namespace int8_gemm

// grouped_gemm: not fitted; block_scaled_gemm's, t64x128 between its neighbours.
namespace grouped_gemm {
constexpr TileCosts kTiles = block_scaled_gemm::kTiles;
constexpr BlockCycles t256x128 = block_scaled_gemm::t256x128;
constexpr BlockCycles t128x128 = block_scaled_gemm::t128x128;
constexpr BlockCycles t64x128 = block_scaled_gemm::t128x64;
constexpr BlockCycles t64x64 = block_scaled_gemm::t64x64;
constexpr BlockCycles fallback = block_scaled_gemm::fallback;
}  // namespace grouped_gemm

}  // namespace rocm_fp8::gemm::costs
