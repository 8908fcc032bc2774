// From a wave's sums to the result: split-K, and ../epilogue.h's arithmetic.
//
// Sums pass LDS, in panels of a subtile's rows by kPanel columns, so that eight neighbouring lanes have neighbouring
// fours of columns of a row: what is read of rows, columns and addends is read once, and stores have whole vectors.
#pragma once

#include "../../common/hip/split_k.h"
#include "../epilogue.h"
#include "tile.h"

namespace rocm_fp8::int8_gemm::hip {
namespace {

constexpr int kPanel = 32;

// What a workgroup makes: a tile of the result, over blocks of k.
struct Unit {
    int batch, tile_m, tile_n;
    int tile, part;  // tile: its counter and the place of its parts
    int begin, end;  // blocks
};

// A wave's part of LDS in the epilogue: the stages' place.
template <class S>
constexpr int kRegionBytes = S::matrix * kPanel * int(sizeof(int32_t));

// Parts of a tile in memory: [parts][fours of a lane][threads] of 16 bytes, in the order in which lanes have them.
// Returns whether this workgroup has the tile's sums now, and is to finish it. Sums of parts wrap around. `lds`: 4 bytes.
template <class S>
__device__ inline bool add_parts(TileSums<S>& sums, const Unit& unit, const SplitK& split, char* lds) {
    constexpr uint32_t kPartBytes = uint32_t(S::rows) * S::columns * sizeof(int32_t);
    char* const parts = reinterpret_cast<char*>(split.partial) + int64_t(unit.tile) * split.parts * kPartBytes;
    const uint32_t mine_at = uint32_t(fresh_thread()) * 16;
    const auto at = [&](int four) { return uint32_t(four * S::threads) * 16 + mine_at; };
    const Buffer mine(parts + int64_t(unit.part) * kPartBytes, kPartBytes);
    each_four<S>([&](int i, int j, int q, int four) {
        mine.template store<kAllChiplets>(at(four), __builtin_bit_cast(u32x4, four_of<i32x4>(sums[i][j], q)));
    });
    uint32_t& before = *reinterpret_cast<uint32_t*>(lds);
    if (!arrives_last(split.arrived + unit.tile, split.parts, before)) return false;
    // Closes: `before` has been read by all waves; their parts of LDS are written next.
    lds_barrier();
    for (int part = 0; part < split.parts; ++part) {
        if (part == unit.part) continue;
        const Buffer other(parts + int64_t(part) * kPartBytes, kPartBytes);
        each_four<S>([&](int i, int j, int q, int four) {
            const u32x4 v = other.template load<kAllChiplets>(at(four));
            const u32x4 sum = __builtin_bit_cast(u32x4, four_of<i32x4>(sums[i][j], q)) + v;
            set_four(sums[i][j], q, __builtin_bit_cast(i32x4, sum));
        });
    }
    reset(split.arrived + unit.tile);
    return true;
}

__device__ inline int64_t result_at(const Output& out, int64_t batch, int64_t m, int64_t n) {
    return batch * out.batch_stride + m * out.row_stride + n;
}

// Four neighbours of a row, at a multiple of four elements.
__device__ inline void store_four(const Output& out, int64_t at, const float (&v)[4]) {
    if (out.dtype == DType::i8) {
        uint32_t codes = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) codes |= uint32_t(uint8_t(to_int8(v[e]))) << (8 * e);
        global<uint32_t>(out.data)[at / 4] = codes;
        return;
    }
    const f32x2 low{one_nan(v[0]), one_nan(v[1])}, high{one_nan(v[2]), one_nan(v[3])};
    if (out.dtype == DType::f32) {
        global<f32x4>(out.data)[at / 4] = f32x4{low.x, low.y, high.x, high.y};
    } else if (out.dtype == DType::f16) {
        global<u32x2>(out.data)[at / 4] = u32x2{Pairs<DType::f16>::round(low), Pairs<DType::f16>::round(high)};
    } else {
        // The upper half of 0x7FC00000 is left as it is.
        global<u32x2>(out.data)[at / 4] = u32x2{Pairs<DType::bf16>::round(low), Pairs<DType::bf16>::round(high)};
    }
}
__device__ inline void store_one(const Output& out, int64_t at, float v) {
    if (out.dtype == DType::i8) {
        global<int8_t>(out.data)[at] = to_int8(v);
    } else if (out.dtype == DType::f32) {
        global<float>(out.data)[at] = one_nan(v);
    } else {
        const f32x2 pair{one_nan(v), 0.0f};
        global<uint16_t>(out.data)[at] =
            uint16_t(out.dtype == DType::f16 ? Pairs<DType::f16>::round(pair) : Pairs<DType::bf16>::round(pair));
    }
}

// Whether rows take stores of four neighbours, and the activation is few instructions.
__device__ inline bool by_fours(const Args& a) {
    const Output& out = a.epilogue.out;
    const int bytes = out.dtype == DType::i8 ? 1 : out.dtype == DType::f32 ? 4 : 2;
    return a.n % 4 == 0 && out.row_stride % 4 == 0 && out.batch_stride % 4 == 0 &&
           reinterpret_cast<uintptr_t>(out.data) % (4 * bytes) == 0 &&
           (a.epilogue.activation == Activation::none || a.epilogue.activation == Activation::relu);
}

// What four neighbours of a row read.
struct Four {
    Row row;
    float addend[4];

    __device__ Four(const Args& a, int64_t batch, int64_t m, int64_t n, bool addends) : row(0, 0), addend{} {
        read(a, batch, m, n, addends);
    }
    __device__ void read(const Args& a, int64_t batch, int64_t m, int64_t n, bool addends) {
        row = Row(a.epilogue, batch, m);
        if (!addends) return;
#pragma unroll
        for (int c = 0; c < 4; ++c) addend[c] = addend_at(a.epilogue.addend, batch, m, n + c);
    }
};

// A wave's part of the tile, whose first element is (row, column). `region` is the wave's own. arguments(): the launch's,
// loaded anew.
template <class S, class Arguments>
__device__ inline void store_tile(const TileSums<S>& sums, const Arguments& arguments, char* region, const Unit& unit,
                                  int64_t row, int64_t column) {
    constexpr int kRowBytes = kPanel * sizeof(int32_t), kChunks = kRowBytes / kChunk;
    constexpr int kPanels = S::wave_columns / kPanel, kRowsAPass = kWave / kChunks;
    static_assert(S::wave_columns % kPanel == 0 && kPanel % S::matrix == 0);
    const int lane = fresh_thread() % kWave;
    const auto at = [](int r, int chunk) { return r * kRowBytes + (chunk ^ r % kChunks) * kChunk; };
    // One text for all panels: which sums are stored to LDS is a branch that all lanes take.
#pragma unroll 1
    for (int panel = 0; panel < S::sub_m * kPanels; ++panel) {
        each_four<S>([&](int i, int j, int q, int) {
            if (panel != i * kPanels + j * S::matrix / kPanel) return;
            const int chunk = column_in_wave<S>(lane, j, q) % kPanel / 4;
            *reinterpret_cast<i32x4*>(region + at(lane % S::matrix, chunk)) = four_of<i32x4>(sums[i][j], q);
        });
        // Only this wave has the region, and its accesses to LDS are in order.
        __builtin_amdgcn_wave_barrier();
        const Args& a = arguments().args;
        const Epilogue& e = a.epilogue;
        const int64_t batch = unit.batch;
        const float beta = scale_at(e.addend.beta, 0, 0), scale_out = scale_at(e.scale_out, 0, 0);
        const int64_t m0 = row + panel / kPanels * S::matrix, n0 = column + panel % kPanels * kPanel;
        if (by_fours(a)) {
            const int64_t n = n0 + lane % kChunks * 4;
            int64_t m = m0 + lane / kChunks;
            if (n < a.n && m < a.m) {
                const Column columns[] = {{e, batch, n}, {e, batch, n + 1}, {e, batch, n + 2}, {e, batch, n + 3}};
                const bool shared = e.addend.row_stride == 0;
                Four next(a, batch, m, n, true);
                const int64_t last = a.m - 1;
#pragma unroll 1
                for (int r = lane / kChunks; r < S::matrix && m <= last; r += kRowsAPass, m += kRowsAPass) {
                    const Args& a = arguments().args;
                    const Epilogue& e = a.epilogue;
                    const i32x4 acc = *reinterpret_cast<const i32x4*>(region + at(r, lane % kChunks));
                    const Four mine = next;
                    // Of the row that is next, in the meantime; after the last one, of that.
                    next.read(a, batch, m + kRowsAPass <= last ? m + kRowsAPass : last, n, !shared);
                    float v[4];
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        v[c] = finished(e, acc[c], mine.row, columns[c], mine.addend[c], beta, scale_out);
                    }
                    store_four(e.out, result_at(e.out, batch, m, n), v);
                }
            }
        } else {
#pragma unroll 1
            for (int index = lane; index < S::matrix * kPanel; index += kWave) {
                const Args& a = arguments().args;
                const Epilogue& e = a.epilogue;
                const int r = index / kPanel, c = index % kPanel;
                const int64_t m = m0 + r, n = n0 + c;
                if (m >= a.m || n >= a.n) continue;
                const int32_t acc = *reinterpret_cast<const int32_t*>(region + at(r, c / 4) + c % 4 * 4);
                const float v = finished(e, acc, Row(e, batch, m), Column(e, batch, n),
                                         addend_at(e.addend, batch, m, n), beta, scale_out);
                store_one(e.out, result_at(e.out, batch, m, n), v);
            }
        }
        __builtin_amdgcn_wave_barrier();
    }
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm::hip
