// The kernel: rows (queries and heads) of a sequence against a share of its tokens.
//
// A wave has kTile rows. Its queries and the sums of all 512 columns stay in registers; scores, exponentials and their
// 16-bit form never leave them either: what an instruction of 16 x 16 gives for keys x queries, a lane's four tokens of
// a row, is what the next one takes for values x exponentials.
//
// Rows and columns of the sums: lane 16 g + j has row j, and of 64 columns b * 64 the 16 g ... + 15: column 4 r + n of
// those is sums[b][n][r].
#pragma once

#include "../../common/attention/hip/online_softmax.h"
#include "../../common/gemm/hip/half_matrix.h"
#include "../../common/gpu/lanes.h"
#include "../gpu/splits.h"
#include "tile.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

using gemm::hip::lds_barrier, gemm::hip::lds_done, gemm::hip::load_unaligned, gemm::hip::multiply_eight_bytes,
    gemm::hip::half_of;

struct Launch {
    Args args;
    Partial partial;
    Divider page_size, heads, row_tiles, splits;
    uint32_t items, per_chiplet;
};

// What a workgroup makes.
struct Item {
    int32_t b, split, first_row;
};

// Workgroup i runs on chiplet i % 8. Row tiles of a split follow one another on a chiplet, whose L2 they share.
__device__ inline bool item_of(const Launch& launch, int rows, Item* item) {
    constexpr uint32_t kChiplets = 8;
    const uint32_t place = blockIdx.x / kChiplets, at = blockIdx.x % kChiplets * launch.per_chiplet + place;
    if (place >= launch.per_chiplet || at >= launch.items) return false;
    const uint32_t of_rows = divide(at, launch.row_tiles), b = divide(of_rows, launch.splits);
    *item = {int32_t(b), int32_t(of_rows - b * launch.splits.divisor),
             int32_t(at - of_rows * launch.row_tiles.divisor) * rows};
    return true;
}

// LDS by numbers: of a pointer the compiler does not see that an exclusive or leaves the constant part of an address.
__device__ inline uint32_t lds_address(const char* p) {
    return uint32_t(reinterpret_cast<uintptr_t>((__attribute__((address_space(3))) const char*)(p)));
}
template <class T>
__device__ inline T of_lds(uint32_t address) {
    return *(__attribute__((address_space(3))) const T*)(uintptr_t(address));
}

// These sums are made before later reads of LDS: more of those in flight would take registers that there are not.
__device__ inline void made_first(f32x4& sums) { asm volatile("" : "+v"(sums)::"memory"); }

// keys, values: reads of LDS that are ahead of the multiplications.
template <DType type, int keys_ahead, int values_ahead>
class Rows {
    static constexpr int kSteps = kWidth / 32, kBlocks = kLatent / 64;
    static constexpr int kKeysAhead = keys_ahead, kValuesAhead = values_ahead;
    using Softmax = attention::OnlineSoftmax<type>;
    u32x4 q[kSteps];
    f32x4 sums[kBlocks][4];
    int32_t seen;  // the tokens before it count
    float scale;   // of scores, to logarithms to base 2

  public:
    static constexpr int kRegion = kTile * 64 * 4;  // bytes of LDS in which a wave turns 64 columns, or hands them over
    static constexpr int kColumnBlocks = kBlocks;
    Softmax softmax;

    __device__ void start(const Launch& launch, const Item& item, int first, int32_t length, int32_t end, float by) {
        const Args& a = launch.args;
        const uint32_t lane = fresh_lane();
        const int last = a.rows() - 1, own = first + int(lane % 16), row = own < last ? own : last;
        const int query = int(divide(uint32_t(row), launch.heads)), head = row - query * a.heads;
        const int64_t seen_of_query = a.seen_by(query, length);
        seen = seen_of_query < end ? int32_t(seen_of_query) : end;
        scale = by;
        const int64_t at = item.b * a.q_batch_stride + query * a.q_query_stride + head * a.q_head_stride;
        const auto* const from = static_cast<const uint8_t*>(a.q) + (at + lane / 16 * kNumbers) * 2;
#pragma unroll
        for (int c = 0; c < kSteps; ++c) q[c] = load_unaligned(from + c * 64);
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x4& four : block) four = f32x4(0);
        }
    }

    // The queries are there: a wait in the main loop would wait for the tile in flight as well.
    __device__ void ready() {
#pragma unroll
        for (u32x4& eight : q) have_computed(eight);
    }

    // Of a tile, between its two products.
    struct Attended {
        u32x2 exponentials;
        u32x2 values[kValuesAhead][4];  // the first ones
    };
    __device__ Attended attend(const char* lds, int32_t tile) {
        const uint32_t lane = fresh_lane(), j = lane % 16, g = lane / 16;
        f32x4 scores = keys_by_queries(lds, j, g);
        Attended attended;
        const uint32_t first = first_value(lds, j, g);
        // Read while exponentials are computed.
#pragma unroll
        for (int b = 0; b < kValuesAhead; ++b) read_values(attended.values[b], first, b);
        float by = scale;
        have_computed(by);  // else it would be in pairs of registers from the loop's start on
        scores *= by;
        const int32_t left = seen - tile * kTile - int32_t(4 * g);  // of this lane's tokens
        if (any_lane(left < 4)) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[i] = i < left ? scores[i] : -__builtin_inff();
        }
        attended.exponentials = softmax.exponentials(scores, [&](float factor) { rescale(factor); });
        return attended;
    }
    __device__ void gather(const char* lds, Attended& attended) {
        const uint32_t lane = fresh_lane(), j = lane % 16, g = lane / 16;
        const long exponentials = __builtin_bit_cast(long, attended.exponentials);
        const uint32_t first = first_value(lds, j, g);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
            u32x2(&token)[4] = attended.values[b % kValuesAhead];
            u32x2 turned[4];
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                constexpr uint32_t kLowHalves = 0x05040100u, kHighHalves = 0x07060302u;
                const uint32_t halves = n % 2 ? kHighHalves : kLowHalves;
                turned[n] = u32x2{__builtin_amdgcn_perm(token[1][n / 2], token[0][n / 2], halves),
                                  __builtin_amdgcn_perm(token[3][n / 2], token[2][n / 2], halves)};
            }
            if (b + kValuesAhead < kBlocks) read_values(token, first, b + kValuesAhead);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                sums[b][n] =
                    multiply_eight_bytes<16, type>(__builtin_bit_cast(long, turned[n]), exponentials, sums[b][n]);
            }
#pragma unroll
            for (f32x4& four : sums[b]) made_first(four);
            __builtin_amdgcn_sched_barrier(0);
        }
    }

    __device__ void rescale(float factor) {
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x4& four : block) four *= factor;
        }
    }

  private:
    __device__ f32x4 keys_by_queries(const char* lds, uint32_t j, uint32_t g) const {
        // A chunk four further is in bit 6 of the place: rows of LDS are multiples of 128 bytes.
        const uint32_t even = lds_address(lds) + place(j, g), odd = even ^ 4 * kChunk;
        const auto read = [&](int c) { return of_lds<u32x4>((c % 2 ? odd : even) + c / 2 * 128); };
        u32x4 keys[kKeysAhead];
#pragma unroll
        for (int c = 0; c < kKeysAhead; ++c) keys[c] = read(c);
        f32x4 scores(0);
#pragma unroll
        for (int c = 0; c < kSteps; ++c) {
            u32x4& now = keys[c % kKeysAhead];
#pragma unroll
            for (int n = 0; n < 2; ++n)
                scores = multiply_eight_bytes<16, type>(half_of(now, n), half_of(q[c], n), scores);
            if (c + kKeysAhead < kSteps) now = read(c + kKeysAhead);
            made_first(scores);
            __builtin_amdgcn_sched_barrier(0);
        }
        return scores;
    }
    // Of columns b * 64 + 4 j ... + 3 the lane's four tokens. first: the place of the first one; the others' chunks
    // differ from its own in the two bits of r.
    __device__ static void read_values(u32x2 (&token)[4], uint32_t first, int b) {
#pragma unroll
        for (int r = 0; r < 4; ++r) token[r] = of_lds<u32x2>((first ^ r * kChunk) + r * kTokenBytes + b * 128);
    }
    __device__ static uint32_t first_value(const char* lds, uint32_t j, uint32_t g) {
        return lds_address(lds) + place(4 * g, j / 2) + j % 2 * 8;
    }

  public:
    // Columns of block b, times `factor`, to a region of LDS: [16 rows][16 chunks of four], a row's chunks permuted. In
    // every phase of an access all banks are different.
    __device__ void put(char* region, int b, float factor) const {
        const uint32_t lane = fresh_lane(), j = lane % 16, g = lane / 16;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const f32x4 four{sums[b][0][r], sums[b][1][r], sums[b][2][r], sums[b][3][r]};
            *reinterpret_cast<f32x4*>(region + j * 256 + ((4 * g + r) ^ j) * 16) = four * factor;
        }
    }
    // Of rows that have seen nothing: zeros, whatever tokens that they do not see hold.
    __device__ void clear(bool row) {
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
            for (f32x4& four : block) four = row ? f32x4(0) : four;
        }
    }
};

// What a wave reads of a region at once: four columns of four rows, so that 16 lanes have 64 neighbours of a row.
constexpr int kPieces = 4;
__device__ inline f32x4 piece_of(const char* region, int piece) {
    const uint32_t lane = fresh_lane(), row = 4 * piece + lane / 16;
    return *reinterpret_cast<const f32x4*>(region + row * 256 + (lane % 16 ^ row) * 16);
}

// Where the result goes, or this split's share of it.
template <DType type>
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
        if (lse && lane < kTile && lane < rows) global<float>(lse)[lane] = v;
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
    // Closes: all waves have read the last tiles.
    lds_done();
    lds_barrier();
    *stats(group) = {softmax.reference, softmax.sum};
    // Closes: all groups' are there.
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

// A wave's rows, of all groups, by way of LDS (the tiles'), which turns them: lanes have neighbouring columns behind.
template <const Form& form, DType type, class Rows>
__device__ inline void finish(Rows& rows, const Launch& launch, const Item& item, int first, bool live, float scale,
                              char* lds, int group, int wave) {
    rows.softmax.meet();
    float own = 1;
    if constexpr (form.groups > 1) own = meet_groups<form>(rows.softmax, lds, group, wave);
    // Closes: all waves have read the last tiles, or the groups' softmax.
    lds_done();
    lds_barrier();
    const Target<type> target(launch, item, first);
    const float sum = rows.softmax.sum;
    if (live && group == 0) target.store_lse(rows.softmax.lse());
    if (any_lane(sum == 0.0f)) [[unlikely]] {
        keep_branch();
        rows.clear(sum == 0.0f);
    }
    const float factor = own * (sum == 0.0f ? 0.0f : scale / sum);
    if constexpr (form.groups == 1) {
        if (!live) return;
        char* const region = lds + wave * Rows::kRegion;
        rows.put(region, 0, factor);
#pragma unroll
        for (int b = 0; b < Rows::kColumnBlocks; ++b) {
            meet_lanes();
            f32x4 pieces[kPieces];
#pragma unroll
            for (int i = 0; i < kPieces; ++i) pieces[i] = piece_of(region, i);
            meet_lanes();
            // While the pieces are on their way.
            if (b + 1 < Rows::kColumnBlocks) rows.put(region, b + 1, factor);
#pragma unroll
            for (int i = 0; i < kPieces; ++i) target.store(i, b, pieces[i]);
        }
    } else {
        constexpr int kBytes = form.groups * form.buffers * kTileBytes,
                      kOfABlock = form.groups * form.waves * Rows::kRegion;
        constexpr int kRoom = kBytes / kOfABlock, kAtOnce = kRoom >= 4 ? 4 : kRoom >= 2 ? 2 : 1;
        static_assert(kRoom >= 1);
        const auto region = [&](int of, int b) {
            return lds + ((of * form.waves + wave) * kAtOnce + b) * Rows::kRegion;
        };
#pragma unroll
        for (int begin = 0; begin < Rows::kColumnBlocks; begin += kAtOnce) {
#pragma unroll
            for (int b = 0; b < kAtOnce; ++b) rows.put(region(group, b), begin + b, factor);
            // Closes: all groups' columns are there.
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
            // Closes: what lies there has been read; the next columns may come.
            lds_done();
            lds_barrier();
            if (!live) continue;
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const int n = group + i * form.groups;
                if (n < kAll) target.store(n % kPieces, begin + n / kPieces, pieces[i]);
            }
        }
    }
}

template <const Form& form>
constexpr int kWavesPerSimd = (form.waves * form.groups * form.per_unit + 3) / 4;

template <int index, DType type, Format format>
__global__ __launch_bounds__((kForms[index].threads()), (kWavesPerSimd<kForms[index]>)) void mla_decode(Launch) {
    static constexpr const Form& form = kForms[index];
    __shared__ alignas(128) char lds[form.groups][form.buffers][kTileBytes];
    const Launch& launch = arguments<Launch>();
    const Args& a = launch.args;
    Item item;
    if (!item_of(launch, form.rows(), &item)) return;
    const int32_t length = int32_t(a.length_of(item.b)), tiles = (length + kTile - 1) / kTile;
    const Share share = share_of(tiles, launch.partial.splits, item.split);
    if (share.begin == share.end && launch.partial.splits > 1) return;

    const int all = uniform(threadIdx.x / kWave), group = all / form.waves, wave = all % form.waves;
    const int first_row = item.first_row + wave * kTile;
    const bool live = first_row < a.rows();
    const float of_cache = format == Format::fp8 ? load_scalar(a.cache.scale) : 1.0f;
    const int32_t end = share.end * kTile < length ? share.end * kTile : length;

    TileLoader<form.waves, type, format> loader;
    using OwnRows = Rows<type, form.keys_ahead, form.values_ahead>;
    OwnRows rows;
    const int32_t first_tile = share.begin + group;
    if (first_tile < share.end) {
        const Cache& cache = a.cache;
        loader.start({cache.data, cache.page_stride, cache.row_stride, cache.pages,
                      a.table ? a.table + item.b * a.table_stride : nullptr, item.b, launch.page_size},
                     end, wave);
        loader.find(first_tile);
        loader.request(first_tile);
        if (first_tile + form.groups < share.end) loader.find(first_tile + form.groups);
    }
    if (live) rows.start(launch, item, first_row, length, end, a.softmax_scale * of_cache * attention::kLog2E);
    if (live) rows.ready();

    // Stores a tile, and asks for the group's next one.
    const auto bring = [&](char* to, int32_t tile) {
        if (tile >= share.end) return;
        loader.store(to, tile);
        if (tile + form.groups < share.end) {
            loader.request(tile + form.groups);
            if (tile + 2 * form.groups < share.end) loader.find(tile + 2 * form.groups);
        }
    };
    if constexpr (form.buffers == 3) {
        static_assert(form.groups == 1);
        const auto enter = [] {
            // Closes: the next tile is in LDS. The one before the last has been read by all: its place is free.
            lds_done();
            lds_barrier();
        };
        // Of two waves of a SIMD one is half a tile behind: it multiplies while the other computes exponentials, and
        // stores what comes.
        const bool behind = wave >= form.waves / 2;
        bring(lds[0][0], share.begin);
        enter();
        int32_t at = 0;
        for (int32_t tile = share.begin; tile < share.end; ++tile) {
            char *const mine = lds[0][at], *const next = lds[0][at = at == 2 ? 0 : at + 1];
            typename OwnRows::Attended attended;
            if (live) attended = rows.attend(mine, tile);
            bring(next, tile + 1);
            if (behind) enter();
            if (live) rows.gather(mine, attended);
            if (!behind) enter();
        }
    } else {
        static_assert(form.buffers == 1);
        char* const mine = lds[group][0];
        for (int32_t of_first = share.begin; of_first < share.end; of_first += form.groups) {
            const int32_t tile = of_first + group;
            // Closes: the tile that lay there has been read.
            if constexpr (form.waves > 1) lds_done(), lds_barrier();
            else meet_lanes();
            bring(mine, tile);
            // Closes: the tile is in LDS.
            if constexpr (form.waves > 1) lds_done(), lds_barrier();
            else meet_lanes();
            if (!live || tile >= share.end) continue;
            auto attended = rows.attend(mine, tile);
            rows.gather(mine, attended);
        }
    }
    finish<form, type>(rows, launch, item, first_row, live, of_cache, lds[0][0], group, wave);
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
