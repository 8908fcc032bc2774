// SmoothQuant's linear as AMD's article writes it: E = int8(alpha A B^T + beta D), by CK's batched GEMM with D.
// PEER_TILE, PEER_A, PEER_B, PEER_SHUFFLE say which tile; PEER_PIPELINE, where it is defined, which pipeline of the newer
// DeviceBatchedGemmMultiD_Xdl_CShuffle_V3.
#include <hip/hip_runtime.h>

#include <array>
#include <exception>

#include "ck/ck.hpp"
#include "ck/tensor_operation/gpu/device/gemm_specialization.hpp"
#ifdef PEER_PIPELINE
#include "ck/tensor_operation/gpu/device/impl/device_batched_gemm_multiple_d_xdl_cshuffle_v3.hpp"
#else
#include "ck/tensor_operation/gpu/device/impl/device_batched_gemm_multi_d_xdl.hpp"
#endif
#include "ck/tensor_operation/gpu/element/unary_element_wise_operation.hpp"

template <ck::index_t... I>
using S = ck::Sequence<I...>;
using Row = ck::tensor_layout::gemm::RowMajor;
using Column = ck::tensor_layout::gemm::ColumnMajor;
using Same = ck::tensor_operation::element_wise::PassThrough;
using Order = S<1, 0, 2>;
using ck::tensor_operation::device::GemmSpecialization;

// The article's: clamps, then truncates.
struct ScaleScaleAdd {
    float alpha, beta;

    template <typename Out, typename Sum, typename Addend>
    __host__ __device__ constexpr void operator()(Out& out, const Sum& sum, const Addend& addend) const {
        float value = ck::type_convert<float>(sum) * alpha + ck::type_convert<float>(addend) * beta;
        value = value > 127 ? 127 : value;
        value = value < -128 ? -128 : value;
        out = ck::type_convert<Out>(value);
    }
};

// PEER_TILE: block size, block tile, elements of k in one access to A and to B, MFMA tile, how many of them a wave has.
// PEER_A and PEER_B: threads of a load of A and B, and the elements of k that a thread loads.
#ifdef PEER_PIPELINE
using Gemm = ck::tensor_operation::device::DeviceBatchedGemmMultiD_Xdl_CShuffle_V3<
    Row, Column, ck::Tuple<Row>, Row, int8_t, int8_t, ck::Tuple<int8_t>, int8_t, int32_t, int32_t, Same, Same,
    ScaleScaleAdd, GemmSpecialization::MNKPadding, PEER_TILE, PEER_A, PEER_B, PEER_SHUFFLE,
    ck::BlockGemmPipelineScheduler::PEER_SCHEDULER, ck::BlockGemmPipelineVersion::PEER_PIPELINE, int8_t>;
#else
using Gemm = ck::tensor_operation::device::DeviceBatchedGemmMultiD_Xdl<
    Row, Column, ck::Tuple<Row>, Row, int8_t, int8_t, int32_t, int32_t, ck::Tuple<int8_t>, int8_t, Same, Same,
    ScaleScaleAdd, GemmSpecialization::MNKPadding, 1, PEER_TILE, PEER_A, PEER_B, PEER_SHUFFLE>;
#endif

// Pointers: a[m, k], b[n, k], d, e[m, n]. Sizes: m, n, k, d's stride: n for the article's copies of a row, or 0.
extern "C" int run(void* const* pointers, const int* sizes) {
    const int m = sizes[0], n = sizes[1], k = sizes[2], stride = sizes[3];
    Gemm gemm;
    const std::array<const void*, 1> d = {pointers[2]};
    const std::array<ck::index_t, 1> strides = {stride}, batch_strides = {m * n};
    auto argument = gemm.MakeArgument(pointers[0], pointers[1], d, pointers[3], m, n, k, 1, k, k, strides, n, m * k,
                                      n * k, batch_strides, m * n, Same{}, Same{}, ScaleScaleAdd{0.01f, 0.5f});
    if (!gemm.IsSupportedArgument(argument)) return 1;
    try {
        gemm.MakeInvoker().Run(argument, StreamConfig{});
    } catch (const std::exception&) {
        return 2;
    }
    return 0;
}
