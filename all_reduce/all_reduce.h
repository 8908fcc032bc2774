// Sums over the ranks of one host, and what follows them: the contract of every backend's launchers.
//
//     sum = round_dtype(float(x of rank 0) + float(x of rank 1) + ...)      float32, in that order
//
// All ranks get the same bits: those of a gather, that sum, and the operator without communication. All ranks call the
// same operators with the same sizes in the same order, on one stream each.
#pragma once

#include <initializer_list>

#include "../common/comm/peers.h"
#include "../rmsnorm_fp8/rmsnorm_fp8.h"
#include "../skinny_gemm/skinny_gemm.h"

namespace rocm_fp8::all_reduce {

struct Args {
    const void* x;  // dtype [rows, d], rows x_stride elements apart
    void* out;      // dtype [rows, d]; reduce_scatter: [rows / ranks, d]; all_gather: [rows * ranks, d]
    int64_t rows, d;
    int64_t x_stride, out_stride;
    DType dtype;  // f32, f16 or bf16; all_gather: i8 stands for any type of one byte, too
};

// out = sum. x and out may be the same memory, or lie apart.
Status launch(const Args& args, const comm::Peers& peers, const Executor& on);

// out = this rank's rows of sum: [rank * rows / ranks, (rank + 1) * rows / ranks). rows is a multiple of ranks.
Status launch_reduce_scatter(const Args& args, const comm::Peers& peers, const Executor& on);

// out = x of rank 0, then of rank 1, ...
Status launch_all_gather(const Args& args, const comm::Peers& peers, const Executor& on);

// rms_norm of the sum, with a residual, to FP8: x is this rank's, all else as in ../rmsnorm_fp8/rmsnorm_fp8.h.
Status launch(const rms_norm::Args& args, const comm::Peers& peers, const Executor& on);

// gemm.epilogue.out = sum of the GEMMs' results, each rounded to its dtype. On GPUs products are sent as they are
// finished.
Status launch(const skinny_gemm::Args& gemm, const comm::Peers& peers, const Executor& on);

// The same, and rms_norm of that sum: norm.x is gemm.epilogue.out, this rank's product.
Status launch(const skinny_gemm::Args& gemm, const rms_norm::Args& norm, const comm::Peers& peers, const Executor& on);

// --- for launchers ---

// Of x, a whole message that skinny_gemm's launch_and_send has just sent with `what`. GPUs.
Status launch_received(const Args& args, const comm::Peers& peers, uint32_t what, const Executor& on);

// A GEMM's result and its sum, in the same memory.
inline Args sum_in_place(const skinny_gemm::Args& g) {
    const gemm::Output& out = g.epilogue.out;
    return {out.data, out.data, g.m, g.n, out.row_stride, out.row_stride, out.dtype};
}

// Rows [first, first + count) of the arguments.
inline rms_norm::Args rows_of(const rms_norm::Args& a, int64_t first, int64_t count) {
    rms_norm::Args part = a;
    const auto move = [&](const void* p, int64_t bytes) {
        return p ? static_cast<const char*>(p) + first * bytes : nullptr;
    };
    part.x = move(a.x, a.x_stride * 2);
    part.residual = const_cast<char*>(move(a.residual, a.residual_stride * 2));
    part.out = const_cast<char*>(move(a.out, a.out_stride));
    part.normalized = const_cast<char*>(move(a.normalized, a.normalized_stride * 2));
    part.dynamic.data = const_cast<char*>(move(a.dynamic.data, a.dynamic.row_stride * (a.dynamic.exponents ? 1 : 4)));
    part.rows = count;
    return part;
}

// body(first, count) for the rows of each epoch, until one fails.
template <class Body>
Status each_epoch(int64_t rows, int64_t at_once, const Body& body) {
    if (at_once == 0) return {"x has rows longer than the communicator takes; needs a larger max_bytes"};
    Status status;
    for (int64_t first = 0; first < rows && status.ok(); first += at_once)
        status = body(first, rows - first < at_once ? rows - first : at_once);
    return status;
}

}  // namespace rocm_fp8::all_reduce
