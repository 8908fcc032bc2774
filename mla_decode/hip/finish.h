// The end of a workgroup: groups' sums become one, and rows go to the result or to this split's place.
#pragma once

#include "rows.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

// What a wave reads of a region at once: four columns of four rows, so that 16 lanes have 64 neighbours of a row.
__device__ inline f32x4 piece_of(const char* region, int piece) {
    const uint32_t lane = fresh_lane(), row = 4 * piece + lane / 16;
    return *reinterpret_cast<const f32x4*>(region + row * 256 + (lane % 16 ^ row % 16) * 16);
}

// Where the result goes, or this split's share of it.
template <DType type, int kRows>
struct Target {
    void* out;
    float* lse;
    bool split;
    int32_t rows;  // from `first` on

    __device__ Target(const Launch& launch, const Item& item, int32_t first) {
        const Args& a = launch.args;
        const Partial& p = launch.partial;
        const int32_t all = a.rows();
        split = p.splits > 1, rows = all - first;
        const int64_t row = split ? p.row(item.b, item.split, all, first) : int64_t(item.b) * all + first;
        out = split ? static_cast<void*>(p.out + row * kLatent) : offset(a.out, row * kLatent * 2);
        lse = split ? p.lse + row : a.lse ? a.lse + row : nullptr;
    }
    __device__ void store_lse(float v) const {
        const int32_t lane = int32_t(fresh_lane());
        if (lse && lane < kRows && lane < rows) global<float>(lse)[lane] = v;
    }
    // A piece of 64 columns.
    __device__ void store(int piece, int block, f32x4 four) const {
        const uint32_t lane = fresh_lane(), row = 4 * piece + lane / 16,
                       at = row * kLatent + block * 64 + lane % 16 * 4;
        if (int32_t(row) >= rows) return;
        if (split) {
            *global<f32x4>(offset(out, at * 4)) = four;
        } else {
            using P = Pairs<type>;
            const u32x2 rounded{P::round_any_nan(f32x2{four.x, four.y}), P::round_any_nan(f32x2{four.z, four.w})};
            *global<u32x2>(offset(out, at * 2)) = rounded;
        }
    }
};

// Brings the groups' softmax together: the wave's has the sum of all then. Returns by what its own sums are multiplied.
template <const Form& form, class Softmax>
__device__ inline float meet_groups(Softmax& softmax, char* lds, int group, int wave) {
    struct Stats {
        float reference, sum;
    };
    const uint32_t lane = fresh_lane();
    const auto stats = [&](int of) { return reinterpret_cast<Stats*>(lds) + (of * form.waves + wave) * kWave + lane; };
    // Barrier: all waves have read the last tiles, in whose place the softmax is.
    lds_done();
    lds_barrier();
    *stats(group) = {softmax.reference, softmax.sum};
    // Barrier: all groups' softmax is there.
    lds_done();
    lds_barrier();
    Stats found[form.groups];
#pragma unroll
    for (int i = 0; i < form.groups; ++i) found[i] = *stats(i);
    float to = found[0].reference, sum = 0;
#pragma unroll
    for (const Stats& each : found) to = __builtin_fmaxf(to, each.reference);
#pragma unroll
    for (const Stats& each : found) sum += each.sum * __builtin_amdgcn_exp2f(each.reference - to);
    const float own = __builtin_amdgcn_exp2f(softmax.reference - to);
    softmax.reference = to, softmax.sum = sum;
    return own;
}

// A wave's rows, of all groups, by way of LDS (the tiles'), which turns them: lanes have neighbouring columns behind. Of
// one group, all waves have read the last tile before.
template <const Form& form, DType type, class Tile>
__device__ inline void finish(Rows<form, type, Tile>& rows, const Launch& launch, const Work& work, float scale,
                              char* lds) {
    constexpr int kPieces = form.matrix / 4, kBlocks = kLatent / 64;
    constexpr int kRegion = form.matrix * 64 * 4;  // bytes in which a wave turns 64 columns, or hands them over
    const int group = work.group, wave = work.wave;
    rows.softmax.meet();
    float own = 1;
    if constexpr (form.groups > 1) {
        own = meet_groups<form>(rows.softmax, lds, group, wave);
        // Barrier: all waves have read the groups' softmax, where sums are put below.
        lds_done();
        lds_barrier();
    }
    const Target<type, form.matrix> target(launch, work.item, work.first_row);
    const float sum = rows.softmax.sum;
    if (work.live && group == 0) target.store_lse(rows.softmax.lse());
    if (any_lane(sum == 0.0f)) [[unlikely]] {
        keep_branch();
        rows.clear(sum == 0.0f);
    }
    rows.finished();
    const float factor = own * (sum == 0.0f ? 0.0f : scale / sum);
    if constexpr (form.groups == 1) {
        if (!work.live) return;
        char* const region = lds + wave * kRegion;
        rows.put(region, 0, factor);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
            meet_lanes();
            f32x4 pieces[kPieces];
#pragma unroll
            for (int i = 0; i < kPieces; ++i) pieces[i] = piece_of(region, i);
            meet_lanes();
            // While the pieces are on their way.
            if (b + 1 < kBlocks) rows.put(region, b + 1, factor);
#pragma unroll
            for (int i = 0; i < kPieces; ++i) target.store(i, b, pieces[i]);
        }
    } else {
        constexpr int kBytes = form.groups * form.buffers * kTileBytes, kOfABlock = form.groups * form.waves * kRegion;
        constexpr int kRoom = kBytes / kOfABlock, kAtOnce = kRoom >= 4 ? 4 : kRoom >= 2 ? 2 : 1;
        static_assert(kRoom >= 1);
        const auto region = [&](int of, int b) { return lds + ((of * form.waves + wave) * kAtOnce + b) * kRegion; };
#pragma unroll
        for (int begin = 0; begin < kBlocks; begin += kAtOnce) {
#pragma unroll
            for (int b = 0; b < kAtOnce; ++b) rows.put(region(group, b), begin + b, factor);
            // Barrier: all groups' columns are there.
            lds_done();
            lds_barrier();
            constexpr int kAll = kAtOnce * kPieces, kOwn = (kAll + form.groups - 1) / form.groups;
            f32x4 pieces[kOwn];
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const int all = group + i * form.groups, n = all < kAll ? all : kAll - 1;
                pieces[i] = piece_of(region(0, n / kPieces), n % kPieces);
#pragma unroll
                for (int of = 1; of < form.groups; ++of) pieces[i] += piece_of(region(of, n / kPieces), n % kPieces);
            }
            if (begin + kAtOnce < kBlocks) {
                // Barrier: what lies there has been read; the next columns may come.
                lds_done();
                lds_barrier();
            }
            if (!work.live) continue;
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const int n = group + i * form.groups;
                if (n < kAll) target.store(n % kPieces, begin + n / kPieces, pieces[i]);
            }
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
