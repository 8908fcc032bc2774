// From a wave's sums to the result: ../epilogue.h's arithmetic.
//
// Sums pass LDS, in panels of a subtile's rows by kPanel columns, so that four neighbouring lanes have neighbouring
// eights of columns of a row: what is read of rows, columns and addends is read once, and stores have whole vectors.
#pragma once

#include "../../common/hip/lds.h"
#include "scales.h"

namespace rocm_fp8::int8_gemm::hip {
namespace {

__device__ inline int64_t result_at(const Output& out, int64_t batch, int64_t m, int64_t n) {
    return batch * out.group_stride + m * out.row_stride + n;
}

// Eight neighbours of a row.
struct Eight {
    f32x4 v[2];

    template <class Body>
    __device__ void each(Body body) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int c = 0; c < 4; ++c) v[h][c] = body(float(v[h][c]), h, c);
        }
    }
    // one_nan() of each. NaN are rare: one comparison for two values.
    __device__ void one_nan_each() {
        bool any = false;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            any |= __builtin_isunordered(v[h].x, v[h].y) | __builtin_isunordered(v[h].z, v[h].w);
        }
        if (any_lane(any)) [[unlikely]] {
            keep_branch();
            each([](float x, int, int) { return one_nan(x); });
        }
    }
};

// At a multiple of four elements. whole: of eight, and all eight are to be stored. second: whether the last four are.
template <DType type>
__device__ inline u32x2 halves(f32x4 v) {
    return {Pairs<type>::round(f32x2{v.x, v.y}), Pairs<type>::round(f32x2{v.z, v.w})};
}
__device__ inline void store_eight(char* to, DType type, Eight x, bool whole, bool second) {
    if (type == DType::i8) {
        u32x2 codes{0, 0};
        x.each([&](float v, int h, int c) {
            codes[h] |= uint32_t(uint8_t(to_int8(v))) << (8 * c);
            return v;
        });
        if (whole) {
            *global<u32x2>(to) = codes;
        } else {
            global<uint32_t>(to)[0] = codes.x;
            if (second) global<uint32_t>(to)[1] = codes.y;
        }
        return;
    }
    x.one_nan_each();
    if (type == DType::f32) {
        global<f32x4>(to)[0] = x.v[0];
        if (second) global<f32x4>(to)[1] = x.v[1];
        return;
    }
    // The upper half of bfloat16's 0x7FC00000 is left as it is.
    const bool is_half = type == DType::f16;
    const u32x2 low = is_half ? halves<DType::f16>(x.v[0]) : halves<DType::bf16>(x.v[0]);
    const u32x2 high = is_half ? halves<DType::f16>(x.v[1]) : halves<DType::bf16>(x.v[1]);
    if (whole) {
        store_at(to, joined(low, high));
    } else {
        store_at(to, low);
        if (second) store_at(to + 8, high);
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

// Eight of an addend, at a multiple of eight.
__device__ inline Eight addend_eight(const Addend& d, int64_t at) {
    Eight x;
    if (d.dtype == DType::f32) {
        x.v[0] = global<f32x4>(d.data)[at / 4];
        x.v[1] = global<f32x4>(d.data)[at / 4 + 1];
    } else if (d.dtype == DType::i8) {
        const u32x2 codes = global<u32x2>(d.data)[at / 8];
        x.each([&](float, int h, int c) { return float(int8_t(codes[h] >> (8 * c))); });
    } else {
        const u32x4 bits = global<u32x4>(d.data)[at / 8];
        const bool is_half = d.dtype == DType::f16;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const f32x2 pair = is_half ? Pairs<DType::f16>::widen(bits[i]) : Pairs<DType::bf16>::widen(bits[i]);
            x.v[i / 2][i % 2 * 2] = pair.x;
            x.v[i / 2][i % 2 * 2 + 1] = pair.y;
        }
    }
    return x;
}

// The tile. arguments(): the launch's, loaded anew.
template <class S, class Arguments>
__device__ inline void store_tile(const TileSums<S>& sums, const Arguments& arguments,
                                  char (&regions)[S::waves][S::region_bytes], const WorkItem& item, Scales<S>& scales) {
    constexpr int kRowBytes = kPanel * sizeof(int32_t), kChunks = kRowBytes / kChunk;
    constexpr int kPanels = S::wave_columns / kPanel, kEights = kPanel / 8, kRowsAPass = kWave / kEights;
    // Waves that multiplied different k have the same panels: each finishes its part of the passes.
    constexpr int kPasses = S::matrix / kRowsAPass / S::waves_k;
    static_assert(S::wave_columns % kPanel == 0 && kPanel % S::matrix == 0);
    static_assert(kPasses * kRowsAPass * S::waves_k == S::matrix && S::waves_k <= 2);
    const int lane = fresh_thread() % kWave, wave = uniform(fresh_thread() / kWave);
    const int first_pass = S::waves_k == 1 ? 0 : wave / S::grid_waves * kPasses;
    // Computed where it is needed: it takes four registers.
    const auto corner_anew = [&] { return Corner<S>(item, uniform(fresh_thread() / kWave)); };
    char* const region = regions[wave];
    const char* const other = regions[(wave + S::grid_waves) % S::waves];
    const auto at = [](int r, int chunk) { return r * kRowBytes + (chunk ^ r % kChunks) * kChunk; };
    constexpr int kAll = kPanels * S::sub_m;
    // One text for all panels: which sums are stored to LDS is a branch that all lanes take.
    const auto store_panel = [&](int panel) {
        have_now(panel);
        char* const to = region + panel % S::waves_k * S::panel_bytes;
#pragma unroll
        for (int each = 0; each < kAll; ++each) {
            if (panel != each) continue;
            const int i = each % S::sub_m;
#pragma unroll
            for (int j = each / S::sub_m * kPanel / S::matrix; j < (each / S::sub_m + 1) * kPanel / S::matrix; ++j) {
#pragma unroll
                for (int q = 0; q < S::quads; ++q) {
                    const int chunk = column_in_wave<S>(lane, j, q) % kPanel / 4;
                    *reinterpret_cast<i32x4*>(to + at(lane % S::matrix, chunk)) = four_of<i32x4>(sums[i][j], q);
                }
            }
            asm volatile("; panel %0" ::"n"(each));  // else branches would share their stores, and copy sums first
        }
    };
    const int first_r = first_pass * kRowsAPass + lane / kEights;
    // Held for all panels: what of the arguments each needs.
    const Args& held = arguments().args;
    const Corner<S> corner = corner_anew();
    const int64_t rows_beyond = held.m - corner.row, columns_beyond = held.n - corner.column;
    const int rows = int(rows_beyond < S::wave_rows ? rows_beyond : S::wave_rows);
    const int columns = int(columns_beyond < S::wave_columns ? columns_beyond : S::wave_columns);
    scales.take(held);
    const float added = scales.added(held);
    const Output& out = held.epilogue.out;
    const DType type = DType(scales.way >> kTypeShift & 15);
    const int shift = type == DType::i8 ? 0 : type == DType::f32 ? 2 : 1;
    char* const tile_at =
        static_cast<char*>(out.data) +
        ((item.group * out.group_stride + (corner.row + first_r) * out.row_stride + corner.column + lane % kEights * 8)
         << shift);

    if constexpr (S::waves_k > 1) store_panel(0);
#pragma unroll 1
    for (int across = 0; across < kPanels; ++across) {
        const int own_column = across * kPanel + lane % kEights * 8;
        char* to = tile_at + (across * kPanel << shift);
        Eight scale_b, column_d;
        const int from = across * kPanel + lane % kEights * 8;
        scale_b.each([&](float, int h, int c) { return of_lane(from + h * 4 + c, scales.column); });
        column_d.each([&](float, int h, int c) { return of_lane(from + h * 4 + c, added); });
#pragma unroll 1
        for (int down = 0; down < S::sub_m; ++down) {
            const int panel = across * S::sub_m + down, from_byte = panel % S::waves_k * S::panel_bytes;
            if constexpr (S::waves_k > 1) {
                // Barrier: this panel is in LDS, of both waves; and both have read the last one.
                lds_barrier();
                if (panel + 1 < kAll) store_panel(panel + 1);
            } else {
                // Only this wave has the region, and its accesses to LDS are in order.
                __builtin_amdgcn_wave_barrier();
                store_panel(panel);
                __builtin_amdgcn_wave_barrier();
            }
            int way = scales.way;
            have_now(way);  // its bits are looked at here: from before the loop on they would take two registers each
            // Loaded anew, for the same reason.
            const int64_t pass_bytes = (arguments().args.epilogue.out.row_stride * kRowsAPass) << shift;
            const auto sum_at = [&](int r, int chunk) {
                i32x4 v = *reinterpret_cast<const i32x4*>(region + from_byte + at(r, chunk));
                if constexpr (S::waves_k > 1) v += *reinterpret_cast<const i32x4*>(other + from_byte + at(r, chunk));
                return v;
            };
            const auto one_at = [&](int byte) {
                int32_t v = *reinterpret_cast<const int32_t*>(region + from_byte + byte);
                if constexpr (S::waves_k > 1) v += *reinterpret_cast<const int32_t*>(other + from_byte + byte);
                return v;
            };
            if (way & kByEights) {
                float row_scales = scales.row[0];
#pragma unroll
                for (int i = 1; i < Scales<S>::kRows; ++i) {
                    if (down * S::matrix >= i * kWave) row_scales = scales.row[i];
                }
#pragma unroll
                for (int p = 0; p < kPasses; ++p) {
                    const int r = p * kRowsAPass + first_r, own_row = down * S::matrix + r;
                    const float row_scale = of_lane(own_row & (kWave - 1), row_scales);
                    i32x4 acc[2];
#pragma unroll
                    for (int h = 0; h < 2; ++h) acc[h] = sum_at(r, lane % kEights * 2 + h);
                    Eight v;
                    v.each([&](float, int h, int c) { return product(acc[h][c]); });
                    if (way & kZeros) [[unlikely]] {
                        const Integers& zeros = arguments().args.epilogue.zero_a;
                        const int64_t m = corner_anew().row + (own_row < rows ? own_row : rows - 1);
                        const int32_t zero = integer_at(zeros, item.group, m);
                        v.each([&](float, int h, int c) {
                            return product(acc[h][c], zero, of_lane(from + h * 4 + c, scales.sum));
                        });
                    }
#pragma unroll
                    for (int h = 0; h < 2; ++h) v.v[h] = v.v[h] * row_scale * scale_b.v[h];
                    if (!(way & (kMatrixAddend | kRelu | kDivides))) {
#pragma unroll
                        for (int h = 0; h < 2; ++h) v.v[h] += column_d.v[h];
                    } else {
                        keep_branch();
                        const Epilogue& e = arguments().args.epilogue;
                        if (way & kMatrixAddend) {
                            const Corner<S> corner = corner_anew();
                            const int64_t m = corner.row + (own_row < rows ? own_row : rows - 1);
                            const int64_t n = own_column < columns ? corner.column + own_column : 0;
                            const float beta = scale_at(e.addend.beta, 0, 0);
                            Eight d = addend_eight(e.addend,
                                                   item.group * e.addend.group_stride + m * e.addend.row_stride + n);
                            v.each([&](float x, int h, int c) {
                                return ::rocm_fp8::int8_gemm::added(x, beta, d.v[h][c]);
                            });
                        } else {
#pragma unroll
                            for (int h = 0; h < 2; ++h) v.v[h] += column_d.v[h];
                        }
                        if (way & kRelu) v.each([](float x, int, int) { return activated(Activation::relu, x); });
                        if (way & kDivides) {
                            const float scale_out = scale_at(e.scale_out, 0, 0);
                            v.each([&](float x, int, int) { return x / scale_out; });
                        }
                    }
                    if (own_row < rows && own_column < columns) {
                        store_eight(to + p * pass_bytes, DType(way >> kTypeShift & 15), v, way & kWholeEights,
                                    own_column + 4 < columns);
                    }
                    // Passes side by side would take more registers than some shapes have.
                    __builtin_amdgcn_sched_barrier(0);
                }
                to += S::matrix / kRowsAPass * pass_bytes;
            } else {
                constexpr int kMine = S::matrix * kPanel / S::waves_k;
                const Corner<S> corner = corner_anew();
                const int64_t batch = item.group;
#pragma unroll 1
                for (int index = lane; index < kMine; index += kWave) {
                    const Args& a = arguments().args;
                    const Epilogue& e = a.epilogue;
                    const int r = first_pass * kRowsAPass + index / kPanel, c = index % kPanel;
                    const int64_t m = corner.row + down * S::matrix + r, n = corner.column + across * kPanel + c;
                    if (m >= a.m || n >= a.n) continue;
                    const int32_t acc = one_at(at(r, c / 4) + c % 4 * 4);
                    const float v =
                        finished(e, acc, Row(e, batch, m), Column(e, batch, n), addend_at(e.addend, batch, m, n),
                                 scale_at(e.addend.beta, 0, 0), scale_at(e.scale_out, 0, 0));
                    store_one(e.out, result_at(e.out, batch, m, n), v);
                }
            }
        }
    }
}

}  // namespace
}  // namespace rocm_fp8::int8_gemm::hip
