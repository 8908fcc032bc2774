// What GEMM launchers share: split-K's counters and memory, and the launch of a persistent tile kernel.
#pragma once

#include "../../forced.h"
#include "../../hip/device.h"
#include "choose.h"
#include "counters.h"
#include "work.h"

namespace rocm_fp8::gemm::hip {

constexpr int64_t kMaxItems = int64_t(1) << 30;
constexpr int64_t kMostTilesAcross = (int64_t(1) << 28) - 1;  // eight rows of tiles are numbered in 31 bits

// Whether offsets of 32 bits from the first of `rows` rows take all of them: kNowhere lies behind their last byte.
// row_bytes: of the last one; rows that overlap are longer than their stride.
constexpr bool in_reach(int64_t rows, int64_t stride, int64_t row_bytes) {
    return row_bytes <= kNowhere && (rows - 1) * stride <= kNowhere - row_bytes;
}

// Of FP8 operands: each chip multiplies its own kind alone.
inline Status own_fp8(DType format, Arch arch) {
    if (format == native_fp8(arch)) return {};
    return {
        arch == Arch::gfx942
            ? "a: dtype float8_e4m3fn; this GPU (gfx942) multiplies float8_e4m3fnuz: same bytes, 0x80 to 0x00, scale * 2"
            : "a: dtype float8_e4m3fnuz; this GPU (gfx950) multiplies float8_e4m3fn"};
}

// The configuration that the environment names, in place of the picked one. place(name): its shape. fits(forced): whether
// it takes the arguments; `blocks` of K have no more parts.
template <class Place, class Fits>
Status take_forced(const char* op, const Place& place, int64_t blocks, const Fits& fits, Choice* config) {
    ForcedConfig forced;
    const Status read = read_forced_config(op, place, kMaxParts, false, &forced);
    if (!read.ok() || !forced.set) return read;
    if (!fits(forced)) return {kUnfit};
    *config = {forced.shape, forced.splits < blocks ? forced.splits : int(blocks)};
    return {};
}

struct SplitResult {
    SplitK split;
    Status status;
};

// For `parts` workgroups a tile, of which each stores `bytes` of sums.
inline SplitResult split_for(int parts, int64_t tiles, int64_t bytes, const Executor& on) {
    SplitK split{parts, nullptr, nullptr};
    if (parts == 1) return {split, {}};
    if (tiles > kCounters) return {split, {"ROCM_FP8_KERNELS_CONFIG splits K for more tiles than there are counters"}};
    const CountersResult counters = counters_for(on.stream);
    if (!counters.status.ok()) return {split, counters.status};
    split.arrived = counters.counters;
    split.partial = static_cast<float*>(on.scratch(on.context, tiles * parts * bytes));
    if (!split.partial) return {split, {"no memory for the sums of split K"}};
    return {split, {}};
}

// kernel: takes a TileLaunch<Args>. As many workgroups as the chip holds without spare_units compute units, or as there
// are items.
template <class Args>
Status launch_tiles(const void* kernel, const TileShape& shape, int parts, int mode, const Args& args, int64_t groups,
                    Arch arch, const Executor& on, int spare_units = 0) {
    const int64_t tiles_m = (args.m + shape.rows - 1) / shape.rows;
    const int64_t tiles_n = (args.n + shape.columns - 1) / shape.columns;
    const int64_t tiles = groups * tiles_m * tiles_n, items = tiles * parts;
    if (items > kMaxItems) return {"a and b have more rows than one launch takes"};
    if (tiles_n > kMostTilesAcross) return {"b has more rows than one launch takes"};
    const auto [split, status] =
        split_for(parts, tiles, int64_t(shape.rows) * shape.columns * shape.waves_k * int64_t(sizeof(float)), on);
    if (!status.ok()) return status;
    const int per_chiplet = int((items + kChiplets - 1) / kChiplets);
    const int left = compute_units(arch) - spare_units;
    const int room = (left > kChiplets ? left / kChiplets : 1) * shape.per_unit;
    const Work work{int(tiles_m), int(tiles_n), int(tiles), int(items), per_chiplet};
    const int workgroups = kChiplets * (per_chiplet < room ? per_chiplet : room);
    TileLaunch<Args> launch{args, work, split, mode};
    void* arguments[] = {&launch};
    return launch_any(kernel, dim3(uint32_t(workgroups)), dim3(shape.waves() * kWave), on.stream, arguments);
}

}  // namespace rocm_fp8::gemm::hip
