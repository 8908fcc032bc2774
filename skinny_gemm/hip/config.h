// How a launch of skinny_gemm.hip is cut into workgroups: a function of the sizes alone, with no HIP in it, so that it
// can be tested anywhere.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "../../common/hip/chips.h"
#include "tuned.h"

namespace rocm_fp8::skinny_gemm::hip {

// One compiled form of the warp-specialised kernel. See ring.h.
struct RingShape {
    int rows;              // of A at most: 8 (sparse instruction), 16 or 32
    int tiles;             // of 16 columns, per workgroup
    int weight_producers;  // waves
    int row_producers;
    int consumers;
    int depth, row_depth;  // units that a producer has in flight
    int row_slots;         // of the ring
    int per_unit;  // workgroups that a compute unit holds at once (LDS, registers); the machine-code gates check it

    constexpr int waves() const { return weight_producers + row_producers + consumers; }
};

// All compiled shapes. A workgroup has weight_producers * depth * 4 KiB of weights in flight, 48 to 72 KiB. Shapes with
// one workgroup a compute unit have more waves of each role, and as many slots as steps that the consumers work on at
// once. With two slots and four consumers, two of these would wait.
constexpr RingShape kRingShapes[] = {
    {8, 1, 8, 2, 4, 2, 2, 4, 1},  {8, 2, 4, 1, 2, 3, 2, 2, 2},  {8, 4, 4, 1, 4, 3, 2, 2, 2},
    {8, 4, 8, 2, 4, 2, 2, 4, 1},  {16, 1, 8, 2, 4, 2, 2, 4, 1}, {16, 2, 4, 1, 2, 3, 2, 2, 2},
    {16, 4, 4, 1, 4, 3, 2, 2, 2}, {16, 4, 8, 2, 4, 2, 2, 4, 1}, {32, 1, 6, 2, 4, 3, 2, 4, 1},
    {32, 2, 4, 1, 2, 3, 1, 1, 2}, {32, 4, 4, 1, 4, 3, 1, 1, 2}, {32, 4, 8, 2, 4, 2, 2, 2, 1},
};
constexpr int kRingShapeCount = sizeof(kRingShapes) / sizeof(kRingShapes[0]);

struct Config {
    int shape;   // index into kRingShapes, or kDirect
    int splits;  // of K
};
constexpr int kDirect = -1;

constexpr int kGemmTileColumns = 16;
constexpr int kMaxSplits = 16;
constexpr int64_t kMaxSplitTiles = 1024;  // counters for workgroups that share columns

struct ChipModel {
    int compute_units;
    double bytes_per_us;       // reads from HBM
    double l2_bytes_per_us;    // reads from L2, all chiplets together
    double unit_bytes_per_us;  // one compute unit, from any cache
    double hbm_latency_us, l2_latency_us;
    double hand_over_us;  // a consumer's step in sequence: two words, two fragments, the multiplications
    double split_us;      // parts to memory, one atomic operation, parts back
};
// MI300X: 4.2 of 5.3 TB/s, 15.4 TB/s, 64 bytes a clock at 2.1 GHz. MI350X: 6.9 of 8 TB/s, 2.4 GHz; the rest scaled.
constexpr ChipModel kChipModels[] = {{compute_units(Arch::gfx942), 4.2e6, 15.4e6, 0.134e6, 0.45, 0.25, 0.33, 1.6},
                                     {compute_units(Arch::gfx950), 6.9e6, 17.0e6, 0.154e6, 0.45, 0.22, 0.29, 1.6}};

constexpr int64_t kEnoughForARing = 1024;  // smaller k: filling the ring takes longer than the loop

constexpr int row_class(int64_t m) { return m <= 8 ? 8 : m <= 16 ? 16 : 32; }

// The model's estimate in microseconds after the launch. It takes the slowest part: weights from HBM, rows of A from
// L2, both into one compute unit, or the steps of a row producer, of a consumer and of a slot. Then it adds the rounds
// of workgroups and split-K. It ranks configurations and is no measurement.
constexpr double estimated_us(const ChipModel& chip, const RingShape& shape, int splits, int64_t m, int64_t n,
                              int64_t k) {
    const int64_t columns = int64_t(shape.tiles) * kGemmTileColumns, tiles = (n + columns - 1) / columns,
                  groups = tiles * splits;
    const int64_t room = int64_t(chip.compute_units) * shape.per_unit;
    const int64_t rounds = (groups + room - 1) / room, together = rounds > 1 ? room : groups;
    const double depth_of_group = double(k) / splits;  // bytes of a column, and of a row
    // Workgroups of a round share the bandwidth and end together. A last round that is not full wastes the rest.
    const double used = double(groups) / double(rounds * together);
    // Little's law: too few workgroups do not have enough in flight. Latency under load is twice the idle one.
    const double flying = double(together) * shape.weight_producers * shape.depth * 4096;
    const double needed = chip.bytes_per_us * 2 * chip.hbm_latency_us;
    const double hbm = double(n) * double(k) / chip.bytes_per_us / used * (flying < needed ? needed / flying : 1.0);
    const double l2 = double(groups) * shape.rows * depth_of_group / chip.l2_bytes_per_us;
    const int64_t on_unit = (groups + chip.compute_units - 1) / chip.compute_units;
    const double unit = double(on_unit) * (shape.rows + double(columns)) * depth_of_group / chip.unit_bytes_per_us;
    const double steps = depth_of_group / 256 * double(rounds);
    const double rows = steps / shape.row_producers *
                        (chip.l2_latency_us / shape.row_depth + 2 * shape.rows * 256 / chip.unit_bytes_per_us);
    const double multiply = steps * shape.tiles / shape.consumers * chip.hand_over_us;
    // A slot is filled, read by a consumer of each tile, and freed, before it takes another step.
    const double slots = steps / shape.row_slots * (chip.hand_over_us + chip.l2_latency_us / 2);
    // The slowest part hides the others, but they still delay it a little.
    constexpr double kInTheWay = 0.03;
    double us = 0, all = 0;
    for (double part : {hbm, l2, unit, rows, multiply, slots}) {
        us = part > us ? part : us;
        all += part;
    }
    us += kInTheWay * (all - us);
    // A workgroup begins with nothing in flight; after the first round others on the same unit fill the gap.
    us += chip.hbm_latency_us * (1 + double(rounds - 1) / shape.per_unit);
    if (splits > 1) us += chip.split_us + 2.0 * double(m) * double(n) * splits * 4 / chip.bytes_per_us;
    return us;
}

// arch: 0 for gfx942, 1 for gfx950. aligned: all rows of a and b start at multiples of 16 bytes, k is a multiple of 16,
// and 64 rows of b (32 of a) lie within 2^30 bytes.
constexpr Config pick_config(int64_t m, int64_t n, int64_t k, int arch, bool aligned = true) {
    const ChipModel& chip = kChipModels[arch];
    if (!aligned || k < kEnoughForARing) {
        // Enough workgroups for half the chip, each with a few steps for each of its waves.
        const int64_t tiles = (n + kGemmTileColumns - 1) / kGemmTileColumns;
        int splits = 1;
        while (tiles <= kMaxSplitTiles && tiles * splits * 2 <= chip.compute_units && k / (splits * 2) >= 2048 &&
               splits * 2 <= kMaxSplits) {
            splits *= 2;
        }
        return {kDirect, splits};
    }
    for (const TunedConfig& t : kTunedConfigs) {
        if (t.arch == arch && t.rows == row_class(m) && t.n == n && t.k == k) return {t.shape, t.splits};
    }
    // All m of a row class take the same configuration (m is the class's), so that a row's bits do not depend on the
    // batch.
    Config best{kDirect, 1};
    double best_us = 0;
    for (int i = 0; i < kRingShapeCount; ++i) {
        const RingShape& shape = kRingShapes[i];
        if (shape.rows != row_class(m)) continue;
        const int64_t tiles = (n + shape.tiles * kGemmTileColumns - 1) / (shape.tiles * kGemmTileColumns);
        for (int splits = 1; splits <= kMaxSplits; splits *= 2) {
            if (splits > 1 && (tiles > kMaxSplitTiles || k / splits < kEnoughForARing)) break;
            const double us = estimated_us(chip, shape, splits, shape.rows, n, k);
            if (best.shape == kDirect || us < best_us) {
                best = {i, splits};
                best_us = us;
            }
        }
    }
    return best;
}

}  // namespace rocm_fp8::skinny_gemm::hip
