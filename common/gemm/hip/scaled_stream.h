// What a wave of a stream (stream.h) makes of products with scales of blocks: a block's, then times its scale to the
// sums. Scales come kPeriod blocks at a time, past the fragments, and wait in LDS.
//
// Scales is the operator's: per_column, whether columns have scales of their own in a block;
//
//     begin(column, first, blocks)   for columns from `column` on, blocks [first, first + blocks): asks for the first
//                                    period's
//     request(block)                 those of the period that begins there, counted from `first`
//     store(region)                  those of rows, times those of B where it has one for all columns, to
//                                    [kPeriod][kScalePitch<S::rows>]; per_column: then B's [kPeriod][kScalePitch<S::columns>]
#pragma once

#include "block_scales.h"
#include "stream.h"

namespace rocm_fp8::gemm::hip {
namespace {

template <class S, class Scales>
class ScaledSums {
    static constexpr bool per_column = Scales::per_column;
    static constexpr int kScalesOfA = kPeriod * kScalePitch<S::rows>,
                         kScalesOfB = per_column ? kPeriod * kScalePitch<S::columns> : 0;

    float* region;
    int column, first;
    uint32_t blocks, block = 0;
    Scales scales;
    float scale[S::sub_m];
    f32x4 of_block[S::sub_m][S::sub_n], sums[S::sub_m][S::sub_n];

  public:
    static constexpr int kSums = S::sums, kScales = kScalesOfA + kScalesOfB;
    // Floats in LDS that a wave has for itself: scales, then sums.
    static constexpr int kRegion = kSums > kScales ? kSums : kScales;

    // For columns from `column` on, blocks [first, first + count).
    __device__ void start(float* own_region, int own_column, int first_block, int count) {
        region = own_region, column = own_column, first = first_block, blocks = uint32_t(count);
        clear_sums(sums);
    }

    // For what an operator's Scales need beside.
    __device__ Scales& of_scales() { return scales; }
    __device__ void begin() { scales.begin(column, first, int(blocks)); }

    __device__ void multiply(const u32x4 (&a)[S::sub_m][kHalves], const u32x4 (&b)[S::sub_n][kHalves], int slot) {
        if ((kPeriod % S::depth || slot == 0) && block % kPeriod == 0) change_scales();
        const int lane = threadIdx.x % kWave, at = int(block % kPeriod);
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) scale[i] = region[at * kScalePitch<S::rows> + 16 * i + lane % 16];
#pragma unroll
        for (int n = 0; n < instructions_on(kHalves); ++n) {
#pragma unroll
            for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
                for (int j = 0; j < S::sub_n; ++j)
                    of_block[i][j] = hip::multiply<16>(b[j], a[i], n ? of_block[i][j] : f32x4(0), n);
            }
        }
    }

    __device__ void fold() {
        const int lane = threadIdx.x % kWave, at = int(block % kPeriod);
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) {
                f32x4 factor(scale[i]);
                if constexpr (per_column) {
                    factor *= *reinterpret_cast<const f32x4*>(region + kScalesOfA + at * kScalePitch<S::columns> +
                                                              16 * j + lane / 16 * 4);
                }
                sums[i][j] = __builtin_elementwise_fma(of_block[i][j], factor, sums[i][j]);
            }
        }
        ++block;
    }

    // Over the scales: a wave's accesses to LDS are in order.
    __device__ void store(float* own_region) const {
        __builtin_amdgcn_wave_barrier();
        store_sums<S>(own_region, sums);
    }

  private:
    // A period's scales to LDS; the next ones are asked for.
    __device__ void change_scales() {
        __builtin_amdgcn_wave_barrier();
        scales.store(region);
        if (block + kPeriod < blocks) scales.request(block + kPeriod);
        __builtin_amdgcn_wave_barrier();
    }
};

}  // namespace
}  // namespace rocm_fp8::gemm::hip
