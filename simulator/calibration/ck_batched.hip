// CK's batched GEMM as AITER instantiates it. PEER_TILE, PEER_SHUFFLE, PEER_PIPELINE, PEER_SPEC and PEER_INT8 say which.
#include <hip/hip_runtime.h>

#include <array>
#include <exception>

#include "ck/ck.hpp"
#include "ck/tensor_operation/gpu/device/gemm_specialization.hpp"
#include "ck/tensor_operation/gpu/device/impl/device_batched_gemm_multiple_d_xdl_cshuffle_v3.hpp"
#include "ck/tensor_operation/gpu/element/unary_element_wise_operation.hpp"

template <ck::index_t... I>
using S = ck::Sequence<I...>;
using Row = ck::tensor_layout::gemm::RowMajor;
using Column = ck::tensor_layout::gemm::ColumnMajor;
using Same = ck::tensor_operation::element_wise::PassThrough;
using Bf16 = ck::bhalf_t;
using Order = S<1, 0, 2>;

// Scales of a row of x and of a row of w.
struct ScaleTwice {
    template <typename Out, typename Sum, typename First, typename Second>
    __host__ __device__ constexpr void operator()(Out& out, const Sum& sum, const First& first,
                                                  const Second& second) const {
        out = ck::type_convert<Out>(ck::type_convert<float>(sum) * ck::type_convert<float>(first) *
                                    ck::type_convert<float>(second));
    }
};

#if PEER_INT8
using In = int8_t;
using Sum = int32_t;
using Finish = ScaleTwice;
using ScaleLayouts = ck::Tuple<Row, Column>;
using Scales = ck::Tuple<Bf16, Bf16>;
constexpr int kScales = 2;
#else
using In = Bf16;
using Sum = float;
using Finish = Same;
using ScaleLayouts = ck::Tuple<>;
using Scales = ck::Tuple<>;
constexpr int kScales = 0;
#endif

// PEER_TILE: block size, block tile, elements of k in one access to A and to B, MFMA tile, how many of them a wave has.
// PEER_A and PEER_B: threads of a load of A and B. PEER_KA and PEER_KB: elements of k that a thread loads.
using Gemm = ck::tensor_operation::device::DeviceBatchedGemmMultiD_Xdl_CShuffle_V3<
    Row, Column, ScaleLayouts, Row, In, In, Scales, Bf16, Sum, Sum, Same, Same, Finish,
    ck::tensor_operation::device::GemmSpecialization::PEER_SPEC, PEER_TILE, PEER_A, Order, Order, 2, PEER_KA, PEER_KA,
    0, PEER_B, Order, Order, 2, PEER_KB, PEER_KB, 0, PEER_SHUFFLE, ck::BlockGemmPipelineScheduler::PEER_SCHEDULER,
    ck::BlockGemmPipelineVersion::PEER_PIPELINE, In>;

// Pointers: a[batch, m, k], b[batch, n, k], c[batch, m, n], then for int8 the scales of w[batch, n] and x[batch, m].
// Sizes: batch, m, n, k.
extern "C" int run(void* const* pointers, const int* sizes) {
    const int batch = sizes[0], m = sizes[1], n = sizes[2], k = sizes[3];
    std::array<const void*, kScales> scales{};
    std::array<ck::index_t, kScales> strides{}, batch_strides{};
#if PEER_INT8
    scales = {pointers[3], pointers[4]};
    batch_strides = {n, m};
#endif
    Gemm gemm;
    auto argument = gemm.MakeArgument(pointers[0], pointers[1], scales, pointers[2], m, n, k, batch, k, k, strides, n,
                                      m * k, n * k, batch_strides, m * n, Same{}, Same{}, Finish{});
    if (!gemm.IsSupportedArgument(argument)) return 1;
    try {
        gemm.MakeInvoker().Run(argument, StreamConfig{});
    } catch (const std::exception&) {
        return 2;
    }
    return 0;
}
