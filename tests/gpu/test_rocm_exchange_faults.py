"""The exchange between devices with one step of it changed, simulated: each change is found."""

import ctypes
import shutil

import numpy as np
import pytest
import torch

from simulator import CoherenceFault
from simulator.library import Runtime
from simulator.tests.harness import ARCHS, compile_hip, hip_toolchain
from tests.problems.buffers import same_bytes
from tests.problems.inputs import normal
from tests.problems.ranks import CONTROL_BYTES, sum_of
from tests.settings import ROOT, SEED, needs_rocm_toolchain

pytestmark = needs_rocm_toolchain
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
    comm::Peers peers{};
    for (int i = 0; i < ranks; ++i) peers.memory[i] = const_cast<void*>(memory[i]);
    peers.state = static_cast<comm::State*>(state), peers.report = static_cast<comm::Report*>(report);
    peers.half = half, peers.place_bytes = half / ranks / 128 * 128, peers.timeout = 2000000000;
    peers.rank = rank, peers.ranks = ranks, peers.locks = -1;
    const Executor on{};
    const all_reduce::Args args{x, out, rows, d, d, d, DType::bf16};
    return !all_reduce::launch_flat(args, peers, Vendor(Arch::gfx942, on), comm::Operation::all_reduce,
                                    [](bool) { return all_reduce::sum; }).ok();
}
"""
EXCHANGE, SYSTEM, PEERS = "common/comm/gpu/exchange.h", "common/comm/hip/system.h", "common/comm/peers.h"
# What is changed: a file, text in it, what takes its place.
FAULTS = {
    "one word is looked at": (EXCHANGE, "come &= word(v, i) != kAbsent", "come &= word(v, 0) != kAbsent"),
    "loads of the device's scope": (SYSTEM, "kSystemAccess = 1 | 16", "kSystemAccess = 16"),
    "stores of the device's scope": (SYSTEM, "off sc0 sc1", "off sc1"),
    "one half": (PEERS, "(epoch & 1) * half", "0 * half"),
    "nothing is taken away": (EXCHANGE, "store_system(own, places[i], absent())", "(void)absent()"),
    "words of ones are sent": (EXCHANGE, "word(v, i) == kAbsent ? kAbsent - 1 : word(v, i)", "word(v, i)"),
    "no epoch is counted": (EXCHANGE, "store_now(&state.epoch, epoch + 1);", ""),
}


@pytest.fixture
def changed(tmp_path):
    """changed(name) -> the library with that change; None: with none."""

    def compiled(name: str | None) -> ctypes.CDLL:
        for folder in ("all_reduce", "common", "rmsnorm_fp8", "quantize_fp8"):
            shutil.copytree(ROOT / folder, tmp_path / folder)
        if name:
            file, text, instead = FAULTS[name]
            before = (tmp_path / file).read_text()
            assert text in before
            (tmp_path / file).write_text(before.replace(text, instead))
        library = runtime().open(compile_hip(SOURCE, tmp_path, f"-I{tmp_path}", "-ffp-contract=off"))
        library.run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 2 + [ctypes.c_void_p] * 3
        library.run.argtypes += [ctypes.c_long] + [ctypes.c_int] * 2
        return library

    return compiled


def runtime() -> Runtime:
    return Runtime.shared(hip_toolchain().root / "include")


def exchange(library, arch: str, seed: int, generator) -> None:
    """Four calls in a row, of one way and of two, with words of ones; all ranks have the same right bytes."""
    calls = []
    for d in (4096, 512, 2048, 4096):
        parts = [normal((1, d), torch.bfloat16, generator) for _ in range(RANKS)]
        for rank, part in enumerate(parts):
            part.view(torch.int16)[0, 64 * rank : 64 * rank + 8] = -1
        calls.append((parts, [torch.zeros(1, d, dtype=torch.bfloat16) for _ in range(RANKS)]))
    memory = [np.full(CONTROL_BYTES + 2 * HALF, 0xFF, np.uint8) for _ in range(RANKS)]
    states = [np.zeros(4, np.uint32) for _ in range(RANKS)]
    reports = [np.zeros(2, np.uint32) for _ in range(RANKS)]
    pointers = (ctypes.c_void_p * RANKS)(*(each.ctypes.data for each in memory))
    runtime().configure(seed=seed)
    with runtime().devices(arch, RANKS) as devices:
        for rank in range(RANKS):
            memory[rank][:CONTROL_BYTES] = 0
            devices.share(memory[rank]), devices.share(reports[rank]), devices.own(rank, states[rank])
            for parts, outs in calls:
                for each in (parts[rank], outs[rank]):
                    devices.own_address(rank, each.data_ptr(), each.nbytes)
        for parts, outs in calls:
            for rank in range(RANKS):
                operands = parts[rank].data_ptr(), outs[rank].data_ptr(), 1, parts[rank].shape[1], pointers
                own = states[rank].ctypes.data, reports[rank].ctypes.data, HALF, rank, RANKS
                with runtime().on(arch, rank):
                    assert runtime().call(library.run, *operands, *own) == 0
        devices.run()
    assert not any(each.any() for each in reports), "a rank has waited in vain"
    for parts, outs in calls:
        wanted = sum_of(parts)
        nan = wanted.isnan()
        for out in outs:
            assert same_bytes(out[~nan], wanted[~nan]) and out[nan].isnan().all() and same_bytes(out, outs[0])
    assert all((each[CONTROL_BYTES:] == 0xFF).all() for each in memory), "something is left"


def test_as_it_stands(changed, generator):
    library = changed(None)
    for number in range(6):
        exchange(library, ARCHS[number % 2], SEED + number, generator)


@pytest.mark.parametrize("name", FAULTS)
def test_a_change_is_found(changed, generator, name):
    library = changed(name)
    with pytest.raises((AssertionError, CoherenceFault)):
        for number in range(30):
            exchange(library, ARCHS[number % 2], SEED + number, generator)
