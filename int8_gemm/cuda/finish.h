// From exact sums to the result: the epilogue of four neighbouring columns.
#pragma once

#include "../../common/cuda/half_pairs.h"
#include "../../common/cuda/vector.h"
#include "../../common/gemm/epilogue.h"
#include "../epilogue.h"

namespace rocm_fp8::int8_gemm::cuda {
namespace {

// One result of the epilogue, as its type's bits.
__device__ inline uint32_t rounded(DType type, float v) {
    if (type == DType::i8) return uint8_t(to_int8(v));
    if (type == DType::f32) return __float_as_uint(one_nan(v));
    if (v != v) return type == DType::f16 ? 0x7E00u : 0x7FC0u;
    return 0xFFFFu & gemm::rounded_pair(type, {v, 0});
}

// Four neighbouring results from number `at` on, or the first `count` of them one by one.
template <class T, class Vector>
__device__ inline void store_four(const Output& out, int64_t at, int count, bool vectors, const uint32_t (&bits)[4],
                                  const Vector& all) {
    T* const to = static_cast<T*>(out.data) + at;
    if (vectors) {
        *reinterpret_cast<Vector*>(to) = all;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i < count) to[i] = T(bits[i]);
    }
}
__device__ inline void store_four(const Output& out, int64_t at, int count, bool vectors, const uint32_t (&bits)[4]) {
    if (out.dtype == DType::f32) {
        store_four<uint32_t>(out, at, count, vectors, bits, uint4{bits[0], bits[1], bits[2], bits[3]});
    } else if (out.dtype == DType::i8) {
        store_four<uint8_t>(out, at, count, vectors, bits, bits[0] | bits[1] << 8 | bits[2] << 16 | bits[3] << 24);
    } else {
        store_four<uint16_t>(out, at, count, vectors, bits, uint2{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16});
    }
}

__device__ inline int size_of_result(DType type) { return type == DType::f32 ? 4 : type == DType::i8 ? 1 : 2; }

// Columns n to n + 3, or as many of them as there are.
struct Quad {
    int64_t batch, n, inside[4], first;  // first: number of element (batch, 0, n)
    int count;
    bool whole;  // stored at once
    float beta, scale_out;
    Column columns[4];

    // column(n): what column n of the matrix brings; called for columns that are there.
    template <class Of>
    __device__ Quad(const Args& a, int64_t batch, int64_t n, const Of& column)
        : batch(batch),
          n(n),
          inside{n, n + (n + 1 < a.n ? 1 : 0), n + (n + 2 < a.n ? 2 : 0), n + (n + 3 < a.n ? 3 : 0)},
          first(batch * a.epilogue.out.group_stride + n),
          count(a.n - n < 4 ? int(a.n - n) : 4),
          beta(scale_at(a.epilogue.addend.beta, 0, 0)),
          scale_out(scale_at(a.epilogue.scale_out, 0, 0)),
          columns{column(inside[0]), column(inside[1]), column(inside[2]), column(inside[3])} {
        const Output& out = a.epilogue.out;
        const int size = size_of_result(out.dtype);
        whole = count == 4 && (reinterpret_cast<uintptr_t>(out.data) + uint64_t(first) * size) % (4 * size) == 0 &&
                out.row_stride % 4 == 0;
    }
    // may_bend: whether the activation may be GELU, whose text is long.
    template <bool may_bend = true>
    __device__ void store(const Args& a, int64_t m, const Row& row, const int4& acc) const {
        const Epilogue& e = a.epilogue;
        const int32_t accs[4] = {acc.x, acc.y, acc.z, acc.w};
        uint32_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float d = addend_at(e.addend, batch, m, inside[i]);
            bits[i] = rounded(e.out.dtype, finished<may_bend>(e, accs[i], row, columns[i], d, beta, scale_out));
        }
        store_four(e.out, first + m * e.out.row_stride, count, whole, bits);
    }
};

}  // namespace
}  // namespace rocm_fp8::int8_gemm::cuda
