"""Kernels of the shipped ROCm library by themselves, whatever sizes its launchers take them for; and which of them an
operator has launched."""

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from problems.quantize import Problem
from scripts import machine_code
from simulator import Simulator
from tests.settings import SEED

LANES = {"quarter_wave": 16, "wave": 64, "workgroup": 128}  # that hold a row; of a workgroup two waves


@pytest.fixture
def simulated(simulated_rocm, arch):
    """The package on a simulated chip, which modules give its common name, `kernel`."""
    with simulated_rocm.on(arch, seed=SEED) as module:
        yield module


@pytest.fixture
def loaded(simulated_rocm):
    """The same on no chip: what `environment` has read its variables again."""
    return simulated_rocm.kernel


def readable(symbols: list[str]) -> list[str]:
    names = machine_code.tool("llvm-cxxfilt", text="\n".join(symbols)).splitlines()
    return [machine_code.readable(name) for name in names]


class LaunchLog:
    """The kernels that have run since the last look, by readable names."""

    def __init__(self, runtime):
        self._launches = runtime.launches

    def names(self) -> list[str]:
        found = readable([launch[0] for launch in self._launches]) if self._launches else []
        self._launches.clear()
        return found


class Kernels:
    """Every kernel of a library, by chip and readable name."""

    def __init__(self, library: Path):
        self._found: dict[str, dict[str, tuple[Simulator, str]]] = {}
        for arch, objects in machine_code.code_objects(library).items():
            for one in objects:
                simulator = Simulator(one, arch)
                for symbol, name in zip(simulator.kernels, readable(list(simulator.kernels))):
                    self._found.setdefault(arch, {})[name] = simulator, symbol

    def names(self, arch: str, *families: str) -> set[str]:
        return {name for name in self._found[arch] if name.partition("<")[0] in families}

    def found(self, arch: str, name: str) -> tuple[Simulator, str]:
        """The simulator of the code object that has a kernel, and the kernel's symbol."""
        return self._found[arch][name]

    def launch(self, arch: str, name: str, groups: int, threads: int, arguments: list, tensors: list) -> None:
        """`tensors`: all that the kernel may touch; None counts for nothing."""
        simulator, symbol = self._found[arch][name]
        with known_to(simulator.memory, [tensor for tensor in tensors if tensor is not None]):
            simulator.launch(symbol, groups, threads, arguments, seed=SEED)


@contextlib.contextmanager
def known_to(memory, tensors: list[torch.Tensor]) -> Iterator[None]:
    for tensor in tensors:
        memory.register_address(tensor.data_ptr(), tensor.nbytes, "tensor")
    try:
        yield
    finally:
        for tensor in tensors:
            memory.unregister(tensor.data_ptr())


@dataclass
class Results:
    """Where a kernel writes to, as a problem has it: dense rows, scales [rows, groups] column-major."""

    problem: Problem
    out: torch.Tensor
    scales: torch.Tensor
    upper_bound: torch.Tensor | None

    @classmethod
    def of(cls, problem: Problem) -> "Results":
        # Poison, in which what is not written shows.
        out = torch.full((problem.rows, problem.d), 0x80, dtype=torch.uint8).view(problem.fp8)
        rows = 1 if problem.scaling[0] == "tensor" else problem.rows
        scales = torch.full((problem.groups(), rows), 0xFF, dtype=torch.uint8)
        if problem.kind[0] == torch.float32:
            scales = torch.full((problem.groups(), rows), torch.nan)
        return cls(problem, out, scales.view(problem.kind[0]).t(), problem.arguments("cpu").get("scale_ub"))

    def dynamic(self, host_arguments) -> bytes:
        name, size = self.problem.scaling
        fp8_max = self.problem.fp8_max or torch.finfo(self.problem.fp8).max
        group = {"row": 0, "tensor": -1}.get(name, size)
        return host_arguments.dynamic_scale(self.scales, self.upper_bound, fp8_max, group, self.problem.kind[1])

    @property
    def tensors(self) -> list[torch.Tensor | None]:
        return [self.out, self.scales, self.upper_bound]

    @property
    def quantised(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(q, scale), as an operator returns them."""
        return self.out, self.scales.reshape(1) if self.problem.scaling[0] == "tensor" else self.scales


def values_source(x: torch.Tensor) -> bytes:
    """quantize::Values: where rows begin, and how far they are apart."""
    return struct.pack("<Qq", x.data_ptr(), x.stride(0) * x.element_size())


def gated_source(x: torch.Tensor, limit: float | None) -> bytes:
    """swiglu::Gated: the same, how far `up` is from the gate, the limit."""
    limit = torch.inf if limit is None else torch.tensor(limit, dtype=x.dtype).item()
    return struct.pack("<Qqqf4x", x.data_ptr(), x.stride(0) * 2, x.shape[1], limit)


def row_width(holder: str, held: int) -> int:
    """Columns that leave some lanes of the last vector without work; d % 16 is 0."""
    return 8 * LANES[holder] * held - (16 if holder == "quarter_wave" else 48)


def row_launch(holder: str, rows: int) -> tuple[int, int]:
    """(workgroups, threads of one)."""
    if holder == "workgroup":
        return rows, LANES[holder]
    return -(-rows // (256 // LANES[holder])), 256


def norm_arguments(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, threads: int, args: bytes) -> list:
    """rms_norm_fast's: what its loads need, and then everything."""
    first = x.data_ptr(), residual.data_ptr(), x.stride(0), residual.stride(0), weight.data_ptr()
    return [*first, x.shape[1], threads, args]


def pieces_of(problem: Problem) -> tuple[int, int]:
    """(of a row, of all rows): what a thread of a flat kernel takes is a vector; groups are filled up."""
    size = problem.scaling[1] if problem.scaling[0] == "group" else 8
    a_row = -(-problem.d // size) * (size // 8)
    return a_row, problem.rows * a_row
