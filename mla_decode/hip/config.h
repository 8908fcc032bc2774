// How a launch of mla_decode.hip is cut into workgroups: functions of the sizes alone, with no HIP in them, so that
// they can be tested anywhere.
#pragma once

#include "../../common/form_name.h"
#include "../../common/hip/chips.h"
#include "../mla_decode.h"

namespace rocm_fp8::mla_decode::hip {

constexpr int kTile = 16;  // tokens that are loaded as one
constexpr int kTileBytes = kTile * kWidth * 2;

// A workgroup has groups * waves waves. Those of a group share a tile of tokens, and each has rows of its own; groups
// take tiles in turn, and their sums are added at the end.
struct Form {
    FormName name;
    int matrix;  // of its instructions: rows of a wave
    int waves, groups;
    int tokens;                    // of a tile
    int buffers;                   // of kTile tokens of a group in LDS
    int per_unit;                  // workgroups that a compute unit holds at once (LDS, registers)
    double tile_cycles;            // of a group's tile, all waves of the workgroup at work: by the simulator's clock
    double matrix_cycles = 0;      // of these, with the matrix unit busy: they take power, where that is reckoned with
    int keys_ahead, values_ahead;  // reads of LDS ahead of the multiplications: where one wave a SIMD has the registers
    constexpr int rows() const { return waves * matrix; }
    constexpr int tile() const { return tokens; }
    constexpr int threads() const { return waves * groups * 64; }
};

// In the order of their rows. kDirectForms: on gfx950, of 16-bit caches whose tokens begin at multiples of 16 bytes, which
// go to LDS directly.
// clang-format off
constexpr Form kForms[] = {
    {.name = "r16", .matrix = 16, .waves = 1, .groups = 3, .tokens = 16, .buffers = 1, .per_unit = 1, .tile_cycles = 4300,
     .keys_ahead = 6, .values_ahead = 3},
    {.name = "r32", .matrix = 16, .waves = 2, .groups = 2, .tokens = 16, .buffers = 1, .per_unit = 1, .tile_cycles = 4600,
     .keys_ahead = 6, .values_ahead = 3},
    {.name = "r64", .matrix = 16, .waves = 4, .groups = 2, .tokens = 16, .buffers = 1, .per_unit = 1, .tile_cycles = 5500,
     .keys_ahead = 2, .values_ahead = 1},
    {.name = "r128", .matrix = 32, .waves = 4, .groups = 1, .tokens = 32, .buffers = 3, .per_unit = 1, .tile_cycles = 7600,
     .keys_ahead = 3, .values_ahead = 1},
};
constexpr Form kDirectForms[] = {
    {.name = "d16", .matrix = 16, .waves = 1, .groups = 4, .tokens = 32, .buffers = 2, .per_unit = 1,
     .tile_cycles = 3500, .matrix_cycles = 1088, .keys_ahead = 4, .values_ahead = 6},
    {.name = "d32", .matrix = 32, .waves = 1, .groups = 4, .tokens = 32, .buffers = 2, .per_unit = 1,
     .tile_cycles = 4300, .matrix_cycles = 2176, .keys_ahead = 4, .values_ahead = 4},
    {.name = "d64", .matrix = 32, .waves = 2, .groups = 2, .tokens = 32, .buffers = 4, .per_unit = 1,
     .tile_cycles = 3700, .matrix_cycles = 2176, .keys_ahead = 4, .values_ahead = 4},
    {.name = "d128", .matrix = 32, .waves = 4, .groups = 1, .tokens = 32, .buffers = 8, .per_unit = 1,
     .tile_cycles = 3600, .matrix_cycles = 2176, .keys_ahead = 4, .values_ahead = 4},
};
// clang-format on
constexpr int kFormCount = sizeof(kForms) / sizeof(kForms[0]);
constexpr int kDirectCount = sizeof(kDirectForms) / sizeof(kDirectForms[0]);
static_assert(names_differ(kForms) && names_differ(kDirectForms));

// The smallest that has all rows of a sequence, or the largest.
constexpr int pick_form(int64_t rows) {
    int form = 0;
    while (form + 1 < kFormCount && kForms[form].rows() < rows) ++form;
    return form;
}

constexpr int kMostSplits = 1024;

struct Sizes {
    int64_t batch, rows, most;
    int token_bytes;
};

// What a launch takes, in us, to rank numbers of splits by. No measurement.
constexpr double time_of(Arch arch, const Form& form, const Sizes& s, int splits) {
    const ChipModel& chip = kChipModels[int(arch)];
    constexpr double kStartCycles = 8000, kMergeUs[] = {3, 2.2};
    const double row_tiles = double(ceil_div(s.rows, form.rows())), workgroups = double(s.batch) * row_tiles * splits;
    const double tiles = double(ceil_div(ceil_div(s.most, form.tile()), splits));
    const int64_t room = int64_t(chip.compute_units) * form.per_unit;
    const double rounds = double(ceil_div(int64_t(workgroups), room));
    const double of_a_workgroup = kStartCycles + double(ceil_div(int64_t(tiles), form.groups)) * form.tile_cycles;
    // By what the simulator's clock is slower where matrix units are busy.
    constexpr double kPower = 0.665;
    const double of_matrix = double(ceil_div(int64_t(tiles), form.groups)) * form.matrix_cycles;
    const double power = kPower * rounds * of_matrix / chip.cycles_per_us;
    const double busy = rounds * of_a_workgroup / chip.cycles_per_us;
    const double bytes = double(s.batch) * double(s.most) * s.token_bytes / chip.memory_bytes_per_us;
    // Partial sums are written, and read again.
    const double partial = splits == 1 ? 0
                                       : kMergeUs[int(arch)] + 2.0 * double(s.batch) * double(s.rows) * splits *
                                                                   kLatent * 4 / chip.memory_bytes_per_us;
    return (busy > bytes ? busy : bytes) + power + partial;
}

constexpr int pick_splits(Arch arch, const Form& form, const Sizes& s) {
    const int64_t tiles = ceil_div(s.most, form.tile());
    int best = 1;
    double least = time_of(arch, form, s, 1);
    for (int splits = 2; splits <= kMostSplits && splits <= tiles; ++splits) {
        const double time = time_of(arch, form, s, splits);
        if (time < least) least = time, best = splits;
    }
    return best;
}

struct Picked {
    int form, splits;
};
// Of kDirectForms, by the same reckoning: rows in several tiles may be faster than tokens in several splits.
constexpr Picked pick_direct(Arch arch, const Sizes& s) {
    Picked best{0, 1};
    double least = 0;
    for (int form = 0; form < kDirectCount; ++form) {
        const Form& of = kDirectForms[form];
        const int splits = pick_splits(arch, of, s);
        const double time = time_of(arch, of, s, splits);
        if (form == 0 || time < least) least = time, best = {form, splits};
        if (of.rows() >= s.rows) break;
    }
    return best;
}

}  // namespace rocm_fp8::mla_decode::hip
