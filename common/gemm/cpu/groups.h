// Products of sorted rows with the matrix of their group, on the CPU: what of the operands is a group's, or a row's.
#pragma once

#include <algorithm>

#include "../args.h"

namespace rocm_fp8::gemm {
namespace {

inline int64_t bytes_of(DType t) { return t == DType::f32 ? 4 : t == DType::e8m0 ? 1 : 2; }

// The rows [begin, end) of the result, all of group e.
struct Part {
    int64_t e, begin, end;
    int64_t rows() const { return end - begin; }
};

// body(part): each group that has rows. Offsets that fall, or leave [0, m], give none. Without offsets all rows are of
// one.
template <class Args, class Body>
Status each_group(const Args& a, const Body& body) {
    if (!a.offsets) return body(Part{0, 0, a.m});
    Status status;
    for (int64_t e = 0; e < a.groups && status.ok(); ++e) {
        const int64_t begin = std::max<int64_t>(a.offsets[e], 0), end = std::min<int64_t>(a.offsets[e + 1], a.m);
        if (begin < end) status = body(Part{e, begin, end});
    }
    return status;
}

// The row of A of row i of the result: -1 where there is none.
template <class Args>
int64_t source(const Args& a, int64_t i) {
    const int64_t slot = a.rows ? a.rows[i] : i, row = a.rows && slot > 0 ? divide(uint32_t(slot), a.slots) : slot;
    return row >= 0 && row < a.a_rows ? row : -1;
}

inline Scales scales_of(Scales s, int64_t e) {
    s.data = static_cast<const char*>(s.data) + e * s.group_stride * bytes_of(s.dtype);
    return s;
}

template <class Args>
Bias bias_of(const Args& a, int64_t e) {
    Bias bias = a.bias;
    if (bias.data) bias.data = static_cast<const char*>(bias.data) + e * a.bias_group_stride * bytes_of(bias.dtype);
    return bias;
}

}  // namespace
}  // namespace rocm_fp8::gemm
