// What the estimates of choice.h reckon with: data of `python -m benchmarks tune costs SECTION --times FILE --write`. Each
// section says what its values are of.
#pragma once

#include "choice.h"

namespace rocm_fp8::tiles::costs {

// h200: `python -m benchmarks tune costs h200 --times FILE --write`, an H200, 2026-11-30:
// 8038 points, 13.5 % off; picks at 94 sizes: 3.4 % slower than the best in the mean, 47.3 % at most.
constexpr Costs h200{
    .read_rate = 8.021e+06,
    .write_rate = 5.024e+06,
    .l2_rate = 1.248e+07,
    .sm_rate = 1.376e+05,
    .ragged = 0.3196,
    .clock = 1598,
    .least_cycles = 137.1,
    .latency_us = 1.097,
    .store_us = 4.75e-05,
    .tile_us = 0.6115,
    .between = 1.043,
    .start_us = 1.277,
    .cta_us = 0.001767,
    .split_us = 0.4856,
    .sum_us = 0.0002288,
    .overlap = 1.008,
    .add_cycles = 1.03,
    .swapped_cost = 5.941,
};

// h100: those of an H200, with HBM's rates by 3.54 / 4.63, as fits to both chips had them before. No time of an H100 is
// behind the others: such times and the command above give its own.
constexpr Costs h100{
    .read_rate = 6.133e+06,
    .write_rate = 3.841e+06,
    .l2_rate = 1.248e+07,
    .sm_rate = 1.376e+05,
    .ragged = 0.3196,
    .clock = 1598,
    .least_cycles = 137.1,
    .latency_us = 1.097,
    .store_us = 4.75e-05,
    .tile_us = 0.6115,
    .between = 1.043,
    .start_us = 1.277,
    .cta_us = 0.001767,
    .split_us = 0.4856,
    .sum_us = 0.0002288,
    .overlap = 1.008,
    .add_cycles = 1.03,
    .swapped_cost = 5.941,
};

// int8: `python -m benchmarks tune costs int8 --times FILE --write`, an H200, 2026-11-30:
// 5556 points, 15.6 % off; picks at 60 sizes: 3.0 % slower than the best in the mean, 21.0 % at most.
constexpr Costs int8{
    .read_rate = 6.745e+06,
    .write_rate = 1.395e+06,
    .l2_rate = 1.553e+07,
    .sm_rate = 1.562e+05,
    .ragged = 0.2715,
    .clock = 1823,
    .least_cycles = 97.59,
    .latency_us = 0.9924,
    .store_us = 0.0001763,
    .tile_us = 1.081,
    .between = 0.5953,
    .start_us = 0.8569,
    .cta_us = 0.002246,
    .split_us = 0.2937,
    .sum_us = 0.0002843,
    .overlap = 0.8092,
    .add_cycles = 0,
    .swapped_cost = 1,
};

}  // namespace rocm_fp8::tiles::costs
