// An instance of Composable Kernel's block-scaled FP8 GEMM behind a C function. PEER names the template's parameters from
// the specialisation on. pointers: a [M, K], b [N, K], c [M, N] bfloat16, scales of a [M, K/128] and b [N/128, K/128];
// sizes: M, N, K, parts of K.
#include <hip/hip_runtime.h>

#include <array>
#include <exception>

#include "ck/ck.hpp"
#include "ck/tensor_operation/gpu/device/gemm_specialization.hpp"
#include "ck/tensor_operation/gpu/device/impl/device_gemm_multiple_d_xdl_cshuffle_v3_ab_scale.hpp"
#include "ck/tensor_operation/gpu/element/unary_element_wise_operation.hpp"

template <ck::index_t... I>
using S = ck::Sequence<I...>;
using Row = ck::tensor_layout::gemm::RowMajor;
using Column = ck::tensor_layout::gemm::ColumnMajor;
using Same = ck::tensor_operation::element_wise::PassThrough;
using FP8 = ck::f8_t;
using Gemm =
    ck::tensor_operation::device::DeviceGemmMultiD_ABScale_Xdl_CShuffle_V3<Row, Column, ck::Tuple<>, Row, FP8, float,
                                                                           FP8, float, ck::Tuple<>, ck::bhalf_t, float,
                                                                           float, Same, Same, Same, PEER, FP8>;

extern "C" int run(void* const* pointers, const int* sizes) {
    const int m = sizes[0], n = sizes[1], k = sizes[2];
    Gemm gemm;
    auto argument = gemm.MakeArgument(pointers[0], pointers[1], std::array<const void*, 0>{}, pointers[2], m, n, k, k,
                                      k, std::array<ck::index_t, 0>{}, n, static_cast<const float*>(pointers[3]),
                                      static_cast<const float*>(pointers[4]), Same{}, Same{}, Same{});
    if (const int parts = sizes[3]; parts > 1) {
        gemm.SetKBatch(&argument, parts);
        // This release leaves these as they were for one part.
        using Grid = Gemm::GridwiseGemm64;
        argument.KRead = Grid::CalculateKRead(k, parts);
        argument.KPadded = Grid::CalculateKPadded(k, parts);
        argument.AK0 = Grid::CalculateAK0Padded(k, parts);
        argument.BK0 = Grid::CalculateBK0Padded(k, parts);
    }
    if (!gemm.IsSupportedArgument(argument)) return 1;
    try {
        gemm.MakeInvoker().Run(argument, StreamConfig{});
    } catch (const std::exception&) {
        return 2;
    }
    return 0;
}
