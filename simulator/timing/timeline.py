"""Plays the recorded courses of workgroups back on one compute unit, against a clock (timeline.cpp).

Waves of a SIMD take turns for its vector and its matrix instructions; the unit's waves share LDS, L1 and the unit's
part of the bandwidth of L2, of the memory-side cache and of HBM. A load comes back after its latency, a wait lasts
until then, a barrier until all have come, a look at an LDS flag until it was written. One wave gets half of the LDS's
bandwidth. Not modelled: banks of DRAM, and scalar instructions of different waves in each other's way.
"""

import ctypes
import functools
import math
import tempfile
from dataclasses import astuple, dataclass, field
from pathlib import Path

import numpy as np

from simulator.counting.profile import MEMORY, Course
from simulator.native import compile_library

# As in timeline.cpp.
STALLS = ("issue", "matrix unit", "LDS", "scalar load", "HBM", "L2", "store", "atomic", "barrier", "LDS flag")
ACCESSES = {"load": 0, "store": 1, "atomic": 2}
STEP = 7  # integers of a step


@dataclass(frozen=True)
class UnitRates:
    """Of one compute unit: bytes a cycle (`fabric` of loads, `store` of stores), then cycles. `issue` is a wave's turn,
    `barrier` what opening one takes, `start` from a workgroup's end to its successor's first instruction, `matrix_gap`
    what the matrix unit is idle between two instructions, `lds_cycle_latency` by how much an LDS access is later for
    each cycle that it takes. `reach`: half lines that a workgroup may touch until L2 loses what it touched before."""

    hbm: float
    fabric: float
    store: float
    l2: float
    l1: float = 64.0
    hbm_latency: float = 900.0
    fabric_latency: float = 500.0
    l2_latency: float = 288.0
    scalar_latency: float = 48.0
    lds_latency: float = 51.0
    atomic_latency: float = 382.0
    issue: float = 4.0
    barrier: float = 0.0
    start: float = 0.0
    matrix_gap: float = 0.0
    lds_cycle_latency: float = 0.0
    reach: float = math.inf


@dataclass
class Played:
    """`stalls`: cycles that waves stood still, summed over waves, by what they waited for. `loads_in_flight`: a wave's
    mean over its life."""

    cycles: float = 0
    stalls: dict[str, float] = field(default_factory=dict)
    loads_in_flight: float = 0


@dataclass(frozen=True)
class Packed:
    """Courses of one or several kinds of workgroups: the steps of all waves, one after the other; where each wave's
    end; how many waves each workgroup has."""

    steps: np.ndarray
    ends: np.ndarray
    waves: np.ndarray

    def from_kind(self, first: int) -> "Packed":
        """The same workgroups, in turn from that one on."""
        wave = int(self.waves[:first].sum())
        step = int(self.ends[wave - 1]) if wave else 0
        lengths = np.diff(self.ends, prepend=0)
        return Packed(
            np.concatenate([self.steps[step:], self.steps[:step]]),
            np.cumsum(np.roll(lengths, -wave)),
            np.roll(self.waves, -first),
        )


def pack(groups: list[list[Course]]) -> Packed:
    rows, ends = [], []
    for course in (course for group in groups for course in group):
        for kind, *rest in course.steps:
            if kind == MEMORY:
                rest[3] = ACCESSES[rest[3]]
            rows.append([kind, *map(int, rest), *[0] * (STEP - 1 - len(rest))])
        ends.append(len(rows))
    steps = np.array(rows, np.int32).reshape(-1, STEP)
    return Packed(steps, np.array(ends, np.int64), np.array([len(group) for group in groups], np.int32))


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(__file__).with_name("timeline.cpp")
        return ctypes.CDLL(str(compile_library(source, Path(folder) / "timeline.so", "-O2")))


def play(packed: Packed, groups: int, resident: int, rates: UnitRates, buffers: np.ndarray) -> Played:
    """Runs `groups` workgroups, of the packed kinds in turn, `resident` at a time, each as soon as there is room.

    `buffers` [number, 2]: of what a workgroup touches for the first time, the share that its chiplet's L2 lacks; of
    that, the share that comes from HBM.
    """
    out, buffers = np.zeros(3 + len(STALLS)), np.ascontiguousarray(buffers, np.float64)
    arrays = packed.steps, packed.ends, packed.waves
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in arrays]
    constants = np.array(astuple(rates), np.float64)
    _library().timeline_play(
        *pointers, len(packed.waves), groups, resident, ctypes.c_void_p(buffers.ctypes.data),
        ctypes.c_void_p(constants.ctypes.data), ctypes.c_void_p(out.ctypes.data),
    )  # fmt: skip
    cycles, flying, lived, *stalls = out.tolist()
    named = {name: value for name, value in zip(STALLS, stalls) if value}
    return Played(cycles, named, flying / lived if lived else 0.0)
