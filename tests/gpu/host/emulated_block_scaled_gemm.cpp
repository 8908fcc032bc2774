// block_scaled_gemm's CUDA kernels, emulated: what its launcher does, with a form that the caller names.
#include <algorithm>
#include <bit>
#include <utility>

#include "common/cuda/vector.h"
// The emulation comes first: it defines CUDA's words.
#include "block_scaled_gemm/cuda/config.h"
#include "block_scaled_gemm/cuda/pack.h"
#include "block_scaled_gemm/cuda/fallback.h"
#include "block_scaled_gemm/cuda/tile.h"

using namespace rocm_fp8;
using namespace rocm_fp8::block_scaled_gemm;
using namespace rocm_fp8::block_scaled_gemm::cuda;

namespace {

Operand packed(const Operand& x, int64_t rows, int64_t k, std::vector<uint4>& memory) {
    const int64_t stride = ceil_div(k, 16) * 16, row_tiles = ceil_div(rows, kPackTile);
    memory.resize(rows * stride / 16 + 1);
    const Packing p{x, reinterpret_cast<uint8_t*>(memory.data()), rows, k, stride, int(row_tiles)};
    const bool vectors =
        x.row_stride == 1 && (reinterpret_cast<uintptr_t>(x.data) | uint64_t(x.k_stride) | uint64_t(rows)) % 16 == 0;
    launch(row_tiles * ceil_div(k, kPackTile), kPackThreads, 1, 0,
           [&] { vectors ? block_scaled_gemm_pack<true>(p) : block_scaled_gemm_pack<false>(p); });
    return {0, p.to, stride, 1};
}

template <int form>
void run_form(const Args& a, const Tiling& tiling, int64_t ctas) {
    using S = Shape<form>;
    const auto map = [&](const Operand& x, int64_t rows, int height) {
        return CUtensorMap{x.data, rows, a.k, x.row_stride, height};
    };
    const CUtensorMap of_a = map(a.a, a.m, S::kSwapped ? S::kNarrow : tiling.height),
                      of_b = map(a.b, a.n, S::kSwapped ? tiling.height : S::kNarrow);
    launch(ctas, S::kThreads, tiling.splits, sizeof(typename S::Memory),
           [&] { block_scaled_gemm_tiles<form>(a, S::kSwapped ? of_b : of_a, S::kSwapped ? of_a : of_b, tiling); });
}

}  // namespace

extern "C" int form_count() { return kFormCount; }
// swapped, wide rows, narrow rows, whether it splits K
extern "C" void form_sizes(int form, int* sizes) {
    const Form& f = kForms[form];
    sizes[0] = f.swapped, sizes[1] = f.wide(), sizes[2] = f.narrow, sizes[3] = f.splits();
}

struct Tensor {
    void* data;
    int64_t first_stride, second_stride;
    int rows;  // of scales: that share one
    int type;  // a DType
};

// pieces: 0 for the fewest. multiprocessors: CTAs at once, which then take several tiles.
extern "C" void run(int form, int splits, int pieces, int multiprocessors, const int64_t* sizes, const Tensor* t) {
    const auto operand = [](const Tensor& x) {
        return Operand{0, static_cast<const uint8_t*>(x.data), x.first_stride, x.second_stride};
    };
    const auto scales = [](const Tensor& x) {
        return Scales{0, x.data, x.first_stride, x.second_stride, x.rows, DType(x.type), 0};
    };
    Args a{operand(t[0]),
           operand(t[1]),
           sizes[0],
           sizes[1],
           sizes[2],
           scales(t[2]),
           scales(t[3]),
           {t[4].data, t[4].first_stride, DType(t[4].type)},
           {0, t[5].data, t[5].first_stride, DType(t[5].type)},
           DType::e4m3fn,
           false};
    if (form < 0) {
        const auto fits = [&](const Operand& x) {
            return x.k_contiguous() && a.k % 16 == 0 && rows_aligned(x.data, x.row_stride);
        };
        const bool vectors = fits(a.a) && fits(a.b);
        launch(ceil_div(a.n, kFallbackTile) * ceil_div(a.m, kFallbackTile), kFallbackThreads, 1, 0,
               [&] { vectors ? block_scaled_gemm_fallback<true>(a) : block_scaled_gemm_fallback<false>(a); });
        return;
    }
    std::vector<uint4> memory[2];
    if (!a.a.k_contiguous() || !rows_aligned(a.a.data, a.a.row_stride)) a.a = packed(a.a, a.m, a.k, memory[0]);
    if (!a.b.k_contiguous() || !rows_aligned(a.b.data, a.b.row_stride)) a.b = packed(a.b, a.n, a.k, memory[1]);
    const Form& f = kForms[form];
    if (!pieces) pieces = int(ceil_div(f.swapped ? a.n : a.m, f.wide()));
    const Tiling tiling = tiles::tiling_of(f, splits, pieces, a.m, a.n);
    const int64_t ctas = ctas_of(tiling, multiprocessors);
    [&]<int... i>(std::integer_sequence<int, i...>) {
        ((form == i ? run_form<i>(a, tiling, ctas) : void()), ...);
    }(std::make_integer_sequence<int, kFormCount>());
}
