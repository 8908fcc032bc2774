"""The exchange between devices with one step of it changed, simulated: each change is found."""

import pytest
import torch

from problems.buffers import same_bytes
from problems.inputs import normal
from problems.ranks import sum_of
from simulator import CoherenceFault
from tests.gpu.changed_sources import EXCHANGE, PEERS, SYSTEM, PlainRanks, each_schedule, library, runtime
from tests.settings import needs_rocm_toolchain

pytestmark = [needs_rocm_toolchain, pytest.mark.covering]  # each case is a library of its own
RANKS, HALF = 3, 1 << 16

# One kernel of all_reduce.hip, and its launch.
SOURCE = """
#include "all_reduce/gpu.h"
#include "common/hip/device.hip"
#include "common/rows/hip/vendor.h"

namespace rocm_fp8::all_reduce {
__global__ __launch_bounds__(kFlatThreads) void sum(FlatArgs f) {
    exchange_rows<DType::bf16, true, 8, Operation::all_reduce>(f);
}
}  // namespace rocm_fp8::all_reduce

extern "C" int run(const void* x, void* out, long rows, long d, const void** memory, void* state, void* report,
                   long half, int rank, int ranks) {
    using namespace rocm_fp8;
    const comm::Peers peers = peers_of(memory, state, report, half, rank, ranks);
    const Executor on{};
    const all_reduce::Args args{x, out, rows, d, d, d, DType::bf16};
    return !all_reduce::launch_flat(args, peers, Vendor(Arch::gfx942, on), comm::Operation::all_reduce,
                                    nullptr, [](bool) { return all_reduce::sum; }).ok();
}
"""
FAULTS = {
    "one word is looked at": (EXCHANGE, "come &= word(v, i) != kAbsent", "come &= word(v, 0) != kAbsent"),
    "loads of the device's scope": (SYSTEM, "kSystemAccess = 1 | 16", "kSystemAccess = 16"),
    "stores of the device's scope": (SYSTEM, "off sc0 sc1", "off sc1"),
    "one half": (PEERS, "(epoch & 1) * half", "0 * half"),
    "nothing is taken away": (EXCHANGE, "store_system(own, places[i], absent())", "(void)absent()"),
    "words of ones are sent": (EXCHANGE, "word == kAbsent ? kAbsent - 1 : word", "word"),
    "no epoch is counted": (EXCHANGE, "store_now(&state.epoch, epoch + 1);", ""),
}


def exchange(changed, arch: str, seed: int, generator) -> None:
    """Four calls in a row, of one way and of two, with words of ones; all ranks have the same right bytes."""
    calls = []
    for d in (4096, 512, 2048, 4096):
        parts = [normal((1, d), torch.bfloat16, generator) for _ in range(RANKS)]
        for rank, part in enumerate(parts):
            part.view(torch.int16)[0, 64 * rank : 64 * rank + 8] = -1
        calls.append((parts, [torch.zeros(1, d, dtype=torch.bfloat16) for _ in range(RANKS)]))
    runtime().configure(seed=seed)
    with runtime().devices(arch, RANKS) as devices:
        together = PlainRanks(devices, RANKS, HALF)
        for rank in range(RANKS):
            for parts, outs in calls:
                for each in (parts[rank], outs[rank]):
                    devices.own_address(rank, each.data_ptr(), each.nbytes)
        for parts, outs in calls:
            for rank in range(RANKS):
                operands = parts[rank].data_ptr(), outs[rank].data_ptr(), 1, parts[rank].shape[1]
                with runtime().on(arch, rank):
                    assert runtime().call(changed.run, *operands, *together.arguments(rank)) == 0
        devices.run()
    together.assert_as_before()
    for parts, outs in calls:
        wanted = sum_of(parts)
        nan = wanted.isnan()
        for out in outs:
            assert same_bytes(out[~nan], wanted[~nan]) and out[nan].isnan().all() and same_bytes(out, outs[0])


def test_as_it_stands(tmp_path, generator):
    each_schedule(exchange, library(SOURCE, None, tmp_path, 2, 2), 6, generator)


@pytest.mark.parametrize("name", FAULTS)
def test_a_change_is_found(tmp_path, generator, name):
    changed = library(SOURCE, FAULTS[name], tmp_path, 2, 2)
    with pytest.raises((AssertionError, CoherenceFault)):
        each_schedule(exchange, changed, 30, generator)
