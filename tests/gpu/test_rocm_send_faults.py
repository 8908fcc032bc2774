"""A GEMM that sends and the launch that receives, with one step of either changed, simulated: each change is found."""

import pytest
import torch

from problems.buffers import same_bytes
from problems.inputs import normal
from problems.ranks import sum_of
from simulator import CoherenceFault
from tests.gpu.changed_sources import EXCHANGE, OF_RANKS, SEND, SYSTEM, PlainRanks, each_schedule, library, runtime
from tests.settings import needs_rocm_toolchain

pytestmark = [needs_rocm_toolchain, pytest.mark.covering]  # each case is a library of its own
RANKS, HALF, COLUMNS, K = 3, 1 << 15, 16, 80  # short GEMMs, which a rank may end twice while another stands still

# One kernel of send.hip and one of all_reduce.hip, and a call of both.
SOURCE = """
#include "all_reduce/gemm.h"
#include "common/hip/device.hip"
#include "common/rows/hip/vendor.h"
#include "skinny_gemm/hip/kernel.h"

namespace rocm_fp8 {
namespace skinny_gemm::hip {
__global__ __launch_bounds__(Any<0>::threads) void send(StreamWork work, StreamArgs, comm::Sending, gemm::Operand a,
                                                        gemm::Operand b) {
    multiply_any<0, SendLaunch>(work, a, b);
}
}  // namespace skinny_gemm::hip
namespace all_reduce {
__global__ __launch_bounds__(kFlatThreads) void sum(FlatArgs f) {
    exchange_rows<DType::f32, true, 8, Operation::all_reduce>(f);
}
}  // namespace all_reduce
}  // namespace rocm_fp8

extern "C" int run(const uint8_t* a, const uint8_t* b, const float* scale, const float* bias, float* out, long m,
                   long n, long k, const void** memory, void* state, void* report, long half, int rank, int ranks) {
    using namespace rocm_fp8;
    using namespace rocm_fp8::skinny_gemm::hip;
    const comm::Peers peers = peers_of(memory, state, report, half, rank, ranks);
    const Executor on{};
    skinny_gemm::Args g{{0, a, k, 1}, {0, b, k, 1}, m, n, k, {}, DType::e4m3fn, false};
    g.epilogue.scale_a = g.epilogue.scale_b = {0, scale, 0, 0, 1, DType::f32, 0};
    g.epilogue.bias = {bias, 1, DType::f32};
    g.epilogue.out = {0, out, n, DType::f32};
    const int64_t tiles = ceil_div(n, Any<0>::columns), blocks = gemm::blocks_of(k);
    const StreamWork work{a, b, uint32_t(k), uint32_t(k), int(m), int(n), uint32_t(k), int(blocks), 0, divider_by(1u)};
    const uint32_t what = comm::signature(comm::Operation::gemm, DType::f32, m, n);
    const StreamArgs rest{g.epilogue, {1, nullptr, nullptr}};
    const Status sent = launch_kernel(send, tiles, Any<0>::threads, on, work, rest,
                                      comm::sending_of(peers, what), g.a, g.b);
    if (!sent.ok()) return 1;
    return !all_reduce::launch_flat(all_reduce::sum_in_place(g), peers, Vendor(Arch::gfx942, on),
                                    comm::Operation::all_reduce, &what, [](bool) { return all_reduce::sum; }).ok();
}
"""
# What is changed: a file, text in it, what takes its place.
FAULTS = {
    "the own product is not as the others get it": (OF_RANKS, "v[i] = comm::to_send(v[i]);", "(void)0;"),
    "words of ones are sent": (SEND, "sent[i] = to_send(words[i])", "sent[i] = words[i]"),
    "stores of the device's scope": (
        SYSTEM,
        "__ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM",
        "__ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT",
    ),
    "the epoch is not counted": (EXCHANGE, "store_now(&state.epoch, epoch + 1);", ""),
    "the sender counts it, too": (
        SEND,
        "first = (epoch & 1) * to.half + to.place;",
        "first = (epoch & 1) * to.half + to.place; if (threadIdx.x == 0) store_now(&to.state->epoch, epoch + 1);",
    ),
    "one half": (SEND, "first = (epoch & 1) * to.half", "first = 0"),
    "nobody sends a header": (
        SEND,
        "to_each([&](char* memory) { store_system(memory + at, header_of(epoch, to.what)); });",
        "(void)at;",
    ),
    "what is sent is sent again": (OF_RANKS, "wanted(i) && way != Way::sent", "wanted(i)"),
    "the last rank is left out": (SEND, "peers.ranks; ++i) s.others", "peers.ranks - 1; ++i) s.others"),
    "nothing is taken away": (EXCHANGE, "store_system(own, places[i], absent())", "(void)absent()"),
}


def exchange(changed, arch: str, seed: int, generator) -> None:
    """Four calls in a row, with words of ones among the products: zeros and a bias. All ranks have the right bytes."""
    one, calls = torch.ones(1), []
    a, b = torch.zeros(8, K, dtype=torch.uint8), torch.zeros(COLUMNS, K, dtype=torch.uint8)
    for rows in (2, 8, 1, 3):
        biases = [normal((COLUMNS,), torch.float32, generator) for _ in range(RANKS)]
        for rank, bias in enumerate(biases):
            bias.view(torch.int32)[4 * rank : 4 * rank + 5] = -1
        calls.append((rows, biases, [torch.zeros(rows, COLUMNS) for _ in range(RANKS)]))
    runtime().configure(seed=seed)
    operands = [[t.clone() for t in (a, b, one)] for _ in range(RANKS)]
    with runtime().devices(arch, RANKS) as devices:
        together = PlainRanks(devices, RANKS, HALF)
        for rank in range(RANKS):
            for each in (*operands[rank], *(t[rank] for _, *both in calls for t in both)):
                devices.own_address(rank, each.data_ptr(), each.nbytes)
        for rows, biases, outs in calls:
            for rank in range(RANKS):
                pointers = (each.data_ptr() for each in (*operands[rank], biases[rank], outs[rank]))
                with runtime().on(arch, rank):
                    given = *pointers, rows, COLUMNS, K, *together.arguments(rank)
                    assert runtime().call(changed.run, *given) == 0
        devices.run()
    together.assert_as_before()
    for rows, biases, outs in calls:
        wanted = sum_of([bias.expand(rows, -1) for bias in biases])
        nan = wanted.isnan()
        for out in outs:
            assert same_bytes(out[~nan], wanted[~nan]) and out[nan].isnan().all() and same_bytes(out, outs[0])


def test_as_it_stands(tmp_path, generator):
    each_schedule(exchange, library(SOURCE, None, tmp_path, 5, 3), 6, generator)


@pytest.mark.parametrize("name", FAULTS)
def test_a_change_is_found(tmp_path, generator, name):
    changed = library(SOURCE, FAULTS[name], tmp_path, 5, 3)
    with pytest.raises((AssertionError, CoherenceFault)):
        each_schedule(exchange, changed, 30, generator)
