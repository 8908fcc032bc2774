// grouped_gemm's CUDA kernels, emulated: what its launcher does, with a form that the caller names. Those with wgmma: for
// FP8.
#include <algorithm>
#include <bit>
#include <utility>

#include "common/cuda/vector.h"
// The emulation comes first: it defines CUDA's words.
#include "emulated_lanes.h"

namespace rocm_fp8 {

using std::min;

// common/cuda/mma.h's: lane 4 g + t has four of k of columns g and g + 8, and of row g.
template <DType type>
void multiply_halves(float (&sums)[4], Four first, Four second, Four narrow) {
    const int lane = current->thread % kWarp, g = lane / 4, t = lane % 4;
    auto& lanes = current->cta->exchanged[current->thread / kWarp];
    lanes.resize(kWarp);
    lanes[lane] = {first.low, first.high, second.low, second.high, narrow.low, narrow.high};
    __syncwarp();
    for (int e = 0; e < 4; ++e) {
        for (int part = 0; part < 4; ++part) {
            for (int i = 0; i < 2; ++i) {
                const auto a = Pairs<type>::widen(lanes[g * 4 + part][e / 2 * 2 + i]);
                const auto b = Pairs<type>::widen(lanes[(2 * t + e % 2) * 4 + part][4 + i]);
                sums[e] += a.x * b.x;
                sums[e] += a.y * b.y;
            }
        }
    }
    __syncwarp();
}
inline void multiply(float (&sums)[4], Four first, Four second, Four narrow) {
    multiply_halves<DType::f16>(sums, first, second, narrow);
}
inline void multiply_bf16(float (&sums)[4], Four first, Four second, Four narrow) {
    multiply_halves<DType::bf16>(sums, first, second, narrow);
}

}  // namespace rocm_fp8

#include "grouped_gemm/cuda/fallback.h"
#include "grouped_gemm/cuda/gather.h"
#include "grouped_gemm/cuda/tile.h"

using namespace rocm_fp8;
using namespace rocm_fp8::grouped_gemm;
using namespace rocm_fp8::grouped_gemm::cuda;

namespace {

template <int index>
void run_form(const Args& a, const CUtensorMap& rows, const Launch& launched, int64_t ctas) {
    using S = Shape<index, kScaled>;
    const CUtensorMap weights{a.b.data, a.n, a.k, a.b.row_stride, S::kColumns, a.b.group_stride};
    launch(ctas, S::kThreads, launched.splits, sizeof(typename S::All),
           [&] { grouped_gemm_tiles<index, kScaled>(a, weights, rows, launched); });
}

template <Kind kind>
void run_plain(const Args& a, int64_t ctas) {
    const bool vectors = a.k * a.element_bytes() % 16 == 0 && rows_aligned(a.a.data, a.a.row_stride) &&
                         rows_aligned(a.b.data, a.b.row_stride) && a.b.group_stride % 16 == 0;
    const int pieces = int(ceil_div(a.n, kFallbackTile));
    launch(ctas, kFallbackThreads, 1, 0, [&] {
        vectors ? grouped_gemm_fallback<kind, true>(a, pieces) : grouped_gemm_fallback<kind, false>(a, pieces);
    });
}

}  // namespace

extern "C" int form_count() { return kFormCount; }
extern "C" bool form_splits(int form) { return kForms[form].splits(); }

// given: without slots. ctas: of a launch that does not split K. Scales of many rows are put into columns where `columns`
// asks for it.
extern "C" void run(const Args* given, int slots, int form, int splits, int64_t ctas, bool columns) {
    Args a = *given;
    a.slots = divider_by(uint32_t(slots));
    if (form < 0) {
        if (a.format == DType::bf16) run_plain<kBf16>(a, ctas);
        else if (a.format == DType::f16) run_plain<kF16>(a, ctas);
        else run_plain<kScaled>(a, ctas);
        return;
    }
    const Form& f = kForms[form];
    const bool of_rows = a.rows && !one_by_one(f);
    const int64_t stride = ceil_div(a.k, 16) * 16, blocks = ceil_div(a.k, gemm::kBlock);
    // Poison: nothing may be read before it is written.
    std::vector<uint4> copies(of_rows ? a.m * stride / 16 : 0, uint4{~0u, ~0u, ~0u, ~0u});
    std::vector<float> scales(columns ? a.m * blocks : 0, std::bit_cast<float>(~0u));
    if (of_rows || columns) {
        const Gathered to{of_rows ? reinterpret_cast<uint8_t*>(copies.data()) : nullptr, stride,
                          columns ? scales.data() : nullptr};
        const bool vectors = a.k % 16 == 0 && rows_aligned(a.a.data, a.a.row_stride);
        launch(2, kGatherThreads, 1, 0,
               [&] { vectors ? grouped_gemm_gather<true>(a, to) : grouped_gemm_gather<false>(a, to); });
    }
    const Launch launched{int(ceil_div(a.n, columns_of(f))), 0, int(ceil_div(a.k, tiles::kStep)),
                          a.rows && one_by_one(f), splits};
    const int64_t count = of_rows ? a.m : a.a_rows;
    if (of_rows) a.a = {0, reinterpret_cast<uint8_t*>(copies.data()), stride, 1};
    if (columns) {
        a.scale_a = {0, scales.data(), 1, a.m, 1, DType::f32, 0};
        a.rows = nullptr, a.slots = divider_by(1), a.a_rows = a.m;
    }
    const CUtensorMap rows{a.a.data, count, a.k, a.a.row_stride, launched.one_by_one ? 1 : rows_of_copy(f)};
    const int64_t all = most_tiles(f, a.m, a.n, a.groups);
    const int64_t of_launch = splits > 1 ? all * splits : all < ctas ? all : ctas;
    [&]<int... i>(std::integer_sequence<int, i...>) {
        ((form == i ? run_form<i>(a, rows, launched, of_launch) : void()), ...);
    }(std::make_integer_sequence<int, kFormCount>());
}
