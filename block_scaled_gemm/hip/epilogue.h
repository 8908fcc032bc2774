// From a tile's sums to the result, with split-K.
#pragma once

#include "../../common/gemm/hip/add_parts.h"
#include "../../common/gemm/hip/tile_end.h"
#include "../../common/hip/lds.h"
#include "launch.h"
#include "tile.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

// A tile's sums to the result, if this workgroup has them. regions: of each wave. columns: of 16-bit results, that go
// together.
template <class S, int columns>
__device__ inline void finish_tile(TileSums<S>& sums, const Launch& launch, const WorkItem& done,
                                   char (&regions)[S::waves][S::region_bytes]) {
    if (launch.split.parts > 1 && !add_parts<S>(sums, done, launch.split, regions)) return;
    const Args& a = launch.args;
    const int wave = uniform(threadIdx.x / kWave);
    char* const region = regions[wave];
    const int64_t row = first_row<S>(done) + wave / S::waves_n * S::wave_rows;
    const int64_t column = first_column<S>(done) + wave % S::waves_n * S::wave_columns;
    const auto column_of = [&](int n) { return column + n; };
    scale_and_add<S>(sums, a, launch.mode, column_of, reinterpret_cast<float*>(region));
    if (a.out.dtype == DType::f32) {
        store_rows<S, float, S::matrix>(sums, a, region, row, column);
    } else {
        store_rows<S, uint16_t, columns>(sums, a, region, row, column);
    }
    // Others write there after the next barrier.
    lds_done();
}

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
