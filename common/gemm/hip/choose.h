// How the GEMMs of the ROCm backend choose a form and the parts of K, with no HIP in it: models of a launch's time with a
// term for each of its causes, and one search. They rank configurations and are no measurement. An operator has tables
// of forms, rules which of them take a size, and costs (costs.h).
#pragma once

#include <cstdint>

#include "../../hip/chips.h"
#include "../work.h"
#include "counters.h"
#include "stream_shape.h"
#include "tile_shape.h"

namespace rocm_fp8::gemm {

// Of `groups` products of matrices in one launch.
struct Sizes {
    int64_t groups, m, n, k;
};

struct Choice {
    int shape;  // an operator's number of a form
    int parts;  // of K
};

constexpr int kMaxParts = 16;
constexpr int64_t kLeastBlocks = 4;  // of a tile's part

constexpr double least(double a, double b) { return a < b ? a : b; }
constexpr double most(double a, double b) { return a > b ? a : b; }

// The most rows or columns of a table's forms: what offsets have to reach.
template <class Form, int count>
constexpr int tallest(const Form (&forms)[count]) {
    int rows = 0;
    for (const Form& form : forms) rows = rows < form.rows ? form.rows : rows;
    return rows;
}
template <class Form, int count>
constexpr int widest(const Form (&forms)[count]) {
    int columns = 0;
    for (const Form& form : forms) columns = columns < form.columns ? form.columns : columns;
    return columns;
}

template <class Form>
constexpr int64_t tiles_of(const Form& form, const Sizes& s) {
    return s.groups * ceil_div(s.m, form.rows) * ceil_div(s.n, form.columns);
}

// Each tile has a counter, and at most two workgroups wait for each place of the chip.
template <class Form>
constexpr int most_parts(const ChipModel& chip, const Form& form, const Sizes& s, int64_t least_blocks) {
    const int64_t tiles = tiles_of(form, s), places = int64_t(chip.compute_units) * form.per_unit;
    if (tiles > kCounters) return 1;
    const double parts = least(double(2 * places / tiles), double(blocks_of(s.k) / least_blocks));
    return int(most(1, least(kMaxParts, parts)));
}

// Of `shapes` forms the least us(chip, shape, parts, sizes). most(chip, shape, sizes): of its parts, 0 where the form
// does not take these sizes.
template <class Most, class Estimate>
constexpr Choice pick(int shapes, const ChipModel& chip, const Sizes& sizes, Most most, Estimate us) {
    Choice best{-1, 1};
    double best_us = 0;
    for (int shape = 0; shape < shapes; ++shape) {
        for (int parts = 1, end = most(chip, shape, sizes); parts <= end; ++parts) {
            const double own = us(chip, shape, parts, sizes);
            if (best.shape < 0 || own < best_us) best = {shape, parts}, best_us = own;
        }
    }
    return best;
}

// --- tiles (tile_loop.h) ---

struct TileCosts {
    double fixed_cycles;   // of a tile: its first stages, what its epilogue begins with
    double result_cycles;  // of a result in the epilogue
    double added_cycles;   // the same, where waves have to add their sums first
    double stores;         // part of the results' stores that the next tile waits for
    double split_stores;   // the same of the sums of a part
    double beside;         // times as long a block takes where workgroups of one unit are in each other's way
    double left;           // part of their bandwidth that units with one workgroup less leave to the others
    double copies;         // part of the bytes that a second chiplet fetches, too
    double memory_us;      // before the first and behind the last bytes
    double power;          // part by which the clock's period grows where the matrix units are never idle
    double split_us;       // one atomic operation, and what waits for it
};

// Microseconds.
struct TileTime {
    double matrix, l2, stores, chain, memory, power, split;
    constexpr double total() const { return most(most(most(matrix, l2) + stores, chain), memory) + power + split; }
};

// What all units fetch from memory. A part of a group lies on `near` chiplets, band after band of rows: a chiplet of its
// own for each band fetches its rows alone and the columns as the others do, several in a band the reverse.
constexpr double fetched_bytes(const TileShape& shape, const Sizes& s, int parts, double copies) {
    constexpr double kBand = 8;
    const double near = most(1, kChiplets / double(s.groups * parts)),
                 bands = most(1, double(ceil_div(s.m, shape.rows)) / kBand);
    const double row_copies = near > bands ? least(near / bands, double(ceil_div(s.n, shape.columns))) : 1;
    const double rows = double(s.m) * (1 + copies * (row_copies - 1));
    const double columns = double(s.n) * (1 + copies * (least(near, bands) - 1));
    return double(s.groups) * double(s.k) * (rows + columns);
}

// wide: by the instructions of gfx950 for FP8.
constexpr TileTime tile_time(const ChipModel& chip, const TileShape& shape, const TileCosts& costs, bool wide,
                             const Sizes& s, int parts) {
    const int64_t items = tiles_of(shape, s) * parts;
    const double blocks = double(ceil_div(blocks_of(s.k), parts)), size = double(shape.rows) * shape.columns;
    // A workgroup has `rounds` items one after the other, a compute unit `on_unit`.
    const double groups = least(double(items), double(chip.compute_units) * shape.per_unit);
    const int64_t rounds = ceil_div(items, int64_t(groups)), beside = ceil_div(int64_t(groups), chip.compute_units);
    const double on_unit = double(rounds * beside);
    const double busy = least(groups, chip.compute_units),
                 active = busy - costs.left * (busy - groups / double(beside));
    const double cycles = chip.cycles_per_us;
    const double share = chip.memory_bytes_per_us / cycles / active, l2_share = chip.l2_bytes_per_us / cycles / active;
    const double multiplications = on_unit * blocks * size * kBlock;
    const double stores = size * (parts > 1 ? 4 * shape.waves_k : 2) / least(share, chip.unit_bytes);
    const double chain = blocks * shape.block_cycles.of[int(chip.arch)] * (beside > 1 ? costs.beside : 1) +
                         costs.fixed_cycles + size * (shape.waves_k > 1 ? costs.added_cycles : costs.result_cycles) +
                         stores * (parts > 1 ? costs.split_stores : costs.stores);
    TileTime time{};
    time.matrix = multiplications / matrix_operations_per_cycle(chip.arch, shape.matrix, wide) / cycles;
    time.l2 = on_unit * blocks * (shape.rows + shape.columns) * kBlock / least(l2_share, 2 * chip.unit_bytes) / cycles;
    time.stores = on_unit * stores / cycles;
    time.chain = double(rounds) * chain / cycles;
    time.memory = fetched_bytes(shape, s, parts, costs.copies) / chip.memory_bytes_per_us + costs.memory_us;
    time.power = costs.power * multiplications / (chip.arch == Arch::gfx950 ? 4096 : 2048) / cycles;
    if (parts > 1) {
        const double sums = size * 4 * shape.waves_k * parts;
        time.split = costs.split_us + sums / least(share * parts, chip.unit_bytes) / cycles;
    }
    return time;
}

// --- streams (stream.h) ---

struct StreamCosts {
    double fixed_us;        // before the first and behind the last bytes
    double in_the_way;      // part of what is hidden behind the longest that is seen all the same
    double latency_cycles;  // of a wave's loads: as many blocks as are in flight share it
    double block_cycles;    // that a wave takes for a block of 16 rows and 16 columns
    double power;           // part by which the clock's period grows where the matrix units are never idle
    double kib_us;          // of a workgroup's sums: a KiB in each wave
    double round_us;        // of workgroups that wait for a place on a compute unit
    double split_us;        // one atomic operation, and what waits for it
    double part_us;         // of a KiB of a workgroup's sums in each part
};

// Microseconds.
struct StreamTime {
    double fixed, memory, l2, chain, hidden, power, sums, rounds, split;
    constexpr double total() const {
        const double longest = most(most(memory, l2), chain);
        return fixed + longest + hidden * (memory + l2 + chain - longest) + power + sums + rounds + split;
    }
};

constexpr StreamTime stream_time(const ChipModel& chip, const StreamShape& shape, const StreamCosts& costs,
                                 const Sizes& s, int parts) {
    constexpr double kUnitBytes = 28;  // a clock, of one compute unit of either chip: streams draw no more
    const int64_t tiles = tiles_of(shape, s), items = tiles * parts, on_unit = ceil_div(items, chip.compute_units);
    const int64_t rounds = ceil_div(on_unit, shape.per_unit);
    const double rows = shape.rows, columns = shape.columns, kib = rows * columns * 4 / 1024, k = double(s.k);
    const double drawn = least(double(items), chip.compute_units) * kUnitBytes * chip.cycles_per_us;
    const double weights = double(tiles) * columns * k;
    // Workgroup u has part u % parts, on chiplet u % 8: with 8 parts a chiplet fetches one part of A, with 7 all of it.
    const int apart = parts % 8 == 0 ? 8 : parts % 4 == 0 ? 4 : parts % 2 == 0 ? 2 : 1;
    const double copies = least(8, double(items)) / apart * double(s.groups);
    const double blocks = double(rounds * ceil_div(blocks_of(s.k), int64_t(parts) * shape.waves));
    const double block_cycles = costs.latency_cycles / shape.depth + costs.block_cycles * rows * columns / 256;
    // Of the fullest unit: 16 cycles for 8 rows and a KiB of weights, on four SIMDs.
    const double matrix_cycles = weights / 1024 * 16 * (rows / 8) / double(items) * double(on_unit) / 4;
    return {.fixed = costs.fixed_us,
            .memory = (weights + copies * rows * k) / least(chip.memory_bytes_per_us, drawn),
            .l2 = weights * (1 + rows / columns) / least(chip.l2_bytes_per_us, 2 * drawn),
            .chain = blocks * block_cycles / chip.cycles_per_us,
            .hidden = costs.in_the_way,
            .power = costs.power * matrix_cycles / chip.cycles_per_us,
            .sums = costs.kib_us * kib * shape.waves,
            .rounds = costs.round_us * double(rounds - 1),
            .split = parts > 1 ? costs.split_us + costs.part_us * kib * parts : 0};
}

}  // namespace rocm_fp8::gemm
