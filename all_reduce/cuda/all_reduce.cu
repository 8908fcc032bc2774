// All-reduce, reduce-scatter and all-gather between NVIDIA GPUs of one host.
//
// Bytes over a GPU's links, out: (ranks - 1) messages on one way, 2 (ranks - 1) / ranks on two (../gpu.h). Two GPUs:
// one message, at 450 GB/s of an H100's NVLink 2.3 us a MiB. Few bytes: the launch, one way over the link (about 1 us)
// and a read of L2.
//
//     rank 0   x in registers -> store over the link -> rank 1's memory, place 0 -> registers of rank 1, + x -> out
//     rank 1   x in registers -> store over the link -> rank 0's memory, place 1 -> registers of rank 0, + x -> out
//
// A thread has a vector of 16 bytes. Values say themselves that they have come (../../common/comm/gpu/exchange.h).
//
// Files: all_reduce.cu (values alone), norm.cu (with residual, RMSNorm and FP8), ../gpu.h (the kernels' bodies).
//
// Limit today, two H100: 4 us with the norm behind it, a MiB 7.5, of which the link takes 2.3.
// docs/journal/all_reduce.md.
#include "../gemm.h"
#include "../../common/rows/cuda/vendor.h"

namespace rocm_fp8::all_reduce {
namespace {

template <DType type, bool by_vector, int kMost, Operation operation>
__global__ __launch_bounds__(kFlatThreads, 1) void rows_of_ranks(FlatArgs f) {
    let_next_kernel_start();
    exchange_rows<type, by_vector, kMost, operation>(f);
}

using Kernel = void (*)(FlatArgs);

template <Operation operation, DType type>
Kernel kernel_of(const Peers& peers, bool by_vector) {
    if (peers.ranks <= 2) {
        return by_vector ? rows_of_ranks<type, true, 2, operation> : rows_of_ranks<type, false, 2, operation>;
    }
    constexpr int kMost = comm::kMostRanks;
    return by_vector ? rows_of_ranks<type, true, kMost, operation> : rows_of_ranks<type, false, kMost, operation>;
}

template <Operation operation>
Status launch_operation(const Args& args, const Peers& peers, const Executor& on, const uint32_t* sent = nullptr) {
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    return launch_flat(args, peers, Vendor(chip, on), operation, sent, [&](bool by_vector) {
        if constexpr (operation == Operation::all_gather) {
            if (args.dtype == DType::i8) return kernel_of<operation, DType::i8>(peers, by_vector);
        }
        return args.dtype == DType::f32   ? kernel_of<operation, DType::f32>(peers, by_vector)
               : args.dtype == DType::f16 ? kernel_of<operation, DType::f16>(peers, by_vector)
                                          : kernel_of<operation, DType::bf16>(peers, by_vector);
    });
}

}  // namespace

Status launch(const Args& args, const Peers& peers, const Executor& on) {
    return launch_operation<Operation::all_reduce>(args, peers, on);
}
Status launch_received(const Args& args, const Peers& peers, uint32_t what, const Executor& on) {
    return launch_operation<Operation::all_reduce>(args, peers, on, &what);
}
Status launch(const skinny_gemm::Args& gemm, const Peers& peers, const Executor& on) {
    const Args sum = sum_in_place(gemm);
    return launch_gemm(
        gemm, peers, Operation::gemm, on, [&](uint32_t what) { return launch_received(sum, peers, what, on); },
        [&] { return launch(sum, peers, on); });
}
Status launch_reduce_scatter(const Args& args, const Peers& peers, const Executor& on) {
    return launch_operation<Operation::reduce_scatter>(args, peers, on);
}
Status launch_all_gather(const Args& args, const Peers& peers, const Executor& on) {
    return launch_operation<Operation::all_gather>(args, peers, on);
}

}  // namespace rocm_fp8::all_reduce
