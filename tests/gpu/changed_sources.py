"""Kernels compiled from a copy of the sources in which one text is another, on devices of the simulator."""

import ctypes
import hashlib
import shutil
from pathlib import Path

import numpy as np

from problems.ranks import CONTROL_BYTES
from simulator.host.library import Runtime
from simulator.tests.harness import ARCHS, compile_hip, hip_toolchain
from tests.settings import ROOT, SEED

FOLDERS = ("all_reduce", "common", "rmsnorm_fp8", "quantize_fp8", "skinny_gemm")
EXCHANGE, SEND = "common/comm/gpu/exchange.h", "common/comm/gpu/send.h"
SYSTEM, PEERS, OF_RANKS = "common/comm/hip/system.h", "common/comm/peers.h", "all_reduce/gpu.h"
Fault = tuple[str, str, str]  # a file, text in it, what takes its place

# Of the host: what a rank's launch has of the others.
PEERS_OF = """
#include "common/comm/peers.h"

inline rocm_fp8::comm::Peers peers_of(const void** memory, void* state, void* report, long half, int rank, int ranks) {
    rocm_fp8::comm::Peers peers{};
    for (int i = 0; i < ranks; ++i) peers.memory[i] = const_cast<void*>(memory[i]);
    peers.state = static_cast<rocm_fp8::comm::State*>(state);
    peers.report = static_cast<rocm_fp8::comm::Report*>(report);
    peers.half = half, peers.place_bytes = half / ranks / 128 * 128, peers.timeout = 2000000000;
    peers.rank = rank, peers.ranks = ranks, peers.locks = -1;
    return peers;
}
"""


def runtime() -> Runtime:
    return Runtime.shared(hip_toolchain().include)


def compiled(source: str, fault: Fault | None, folder: Path, folders: tuple[str, ...] = FOLDERS) -> ctypes.CDLL:
    for name in folders:
        shutil.copytree(ROOT / name, folder / name)
    if fault:
        file, text, instead = fault
        before = (folder / file).read_text()
        assert text in before
        (folder / file).write_text(before.replace(text, instead))
    # What is compiled is kept by its source: of headers that have changed under the same path, another.
    headers = (path.read_bytes() for name in folders for path in sorted((folder / name).rglob("*.[hi]*")))
    source = f"// {hashlib.sha256(b''.join(headers)).hexdigest()}\n{PEERS_OF}{source}"
    return runtime().open(compile_hip(source, folder, f"-I{folder}", "-ffp-contract=off"))


def library(source: str, fault: Fault | None, folder: Path, pointers: int, sizes: int) -> ctypes.CDLL:
    """Whose run() takes so many pointers and sizes, then what peers_of does."""
    found = compiled(source, fault, folder)
    found.run.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_long] * sizes + [ctypes.c_void_p] * 3
    found.run.argtypes += [ctypes.c_long] + [ctypes.c_int] * 2
    return found


def each_schedule(exchange, changed: ctypes.CDLL, count: int, generator) -> None:
    """On both chips by turns."""
    for number in range(count):
        exchange(changed, ARCHS[number % 2], SEED + number, generator)


class PlainRanks:
    """Memory of ranks, as numpy arrays that are registered with the simulator's devices."""

    def __init__(self, devices, ranks: int, half: int):
        self.ranks, self.half = ranks, half
        self.memory = [np.full(CONTROL_BYTES + 2 * half, 0xFF, np.uint8) for _ in range(ranks)]
        self.states = [np.zeros(4, np.uint32) for _ in range(ranks)]
        self.reports = [np.zeros(2, np.uint32) for _ in range(ranks)]
        self.pointers = (ctypes.c_void_p * ranks)(*(each.ctypes.data for each in self.memory))
        for rank in range(ranks):
            self.memory[rank][:CONTROL_BYTES] = 0
            devices.share(self.memory[rank])
            devices.share(self.reports[rank])
            devices.own(rank, self.states[rank])

    def arguments(self, rank: int) -> tuple:
        """peers_of's."""
        own = self.states[rank].ctypes.data, self.reports[rank].ctypes.data
        return self.pointers, *own, self.half, rank, self.ranks

    def assert_as_before(self) -> None:
        assert not any(each.any() for each in self.reports), "a rank has waited in vain"
        assert all((each[CONTROL_BYTES:] == 0xFF).all() for each in self.memory), "something is left"
