// skinny_gemm and the sum of its products over the ranks, in two launches that overlap over the links: for GPUs.
//
//     launch 1   GEMM --> own memory                                       skinny_gemm's launch_and_send
//                     \-> the other ranks' memories, number by number, as they are finished
//     launch 2   own product + what has come --> sum (--> residual, RMSNorm, FP8)    ../all_reduce, way `sent` (gpu.h)
//
// When launch 2 begins, all but the last tiles have come: it waits for what a slower rank or the last link's latency
// keeps. Its signature left with launch 1, too. One launch for both would have to know when a row is finished: a count
// in memory of all workgroups that have columns of it, on this rank, and workgroups that wait for it. PDL has launch 2
// resident by then, and on AMD GPUs a launch in a graph takes less than the count through memory of eight chiplets.
//
// Bytes, order and rounding are those of the two operators one after the other. Where a message goes two ways, or rows
// are no whole vectors, they are just that. The choice is one of sizes alone, so all ranks make the same.
#pragma once

#include "gpu.h"

namespace rocm_fp8::all_reduce {
namespace {

inline bool sends(const Peers& peers, const skinny_gemm::Args& g) {
    const int64_t row_bytes = g.n * bytes_of(g.epilogue.out.dtype);
    return peers.ranks > 1 && row_bytes % 16 == 0 && way_of(peers, g.m * row_bytes) == Way::one_shot;
}

// receive(what): of what was sent. apart(): of the product in memory.
template <class Receive, class Apart>
Status launch_gemm(const skinny_gemm::Args& g, const Peers& peers, Operation operation, const Executor& on,
                   const Receive& receive, const Apart& apart) {
    if (g.m == 0 || g.n == 0) return {};
    if (!sends(peers, g)) {
        const Status status = skinny_gemm::launch(g, on);
        return status.ok() ? apart() : status;
    }
    const uint32_t what = comm::signature(operation, g.epilogue.out.dtype, g.m, g.n);
    const Status status = skinny_gemm::launch_and_send(g, peers, what, on);
    return status.ok() ? receive(what) : status;
}

}  // namespace
}  // namespace rocm_fp8::all_reduce
