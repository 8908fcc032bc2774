"""All that an estimate needs of a launch, as numbers alone: it can be stored, and estimated again by another model."""

from dataclasses import dataclass

from simulator.counting.counters import Counters
from simulator.counting.profile import MEMORY, VECTOR_CYCLES, Course, Profile

from .timeline import Packed, pack


@dataclass(frozen=True)
class Buffer:
    """What workgroups read of one buffer, or write to it."""

    size: int  # bytes
    own: float  # half lines that a workgroup touches, each once: the mean
    fills: float  # of those, the share that the L2 of its chiplet lacks when workgroups in flight go in step


@dataclass(frozen=True)
class Recording:
    """Of one launch. Cycles and half lines are of one workgroup, the mean of those that have work."""

    arch: str
    grid: int  # workgroups
    resident: int  # of them, a compute unit holds at once
    vector: float  # cycles of vector instructions
    matrix: float
    lds: float
    half_lines: float  # of all accesses
    buffers: tuple[Buffer, ...]
    courses: Packed
    idle: int = 0  # workgroups of the grid that have no work

    @property
    def busy(self) -> int:
        return self.grid - self.idle


def _accesses_memory(courses: list[Course]) -> bool:
    return any(step[0] == MEMORY for course in courses for step in course.steps)


def record(counters: Counters, profile: Profile, beginnings: Counters | None = None) -> Recording:
    """`profile` has watched the launch that `counters` are of. Where it was a sample, `beginnings` are the counters of
    sharing.Beginnings: a sample cannot tell what workgroups share, nor how many have no work (`counters.idle`).

    What workgroups without work executed is counted to the others."""
    courses = [each for each in profile.courses.values() if _accesses_memory(each)] or list(profile.courses.values())
    ran = len(courses)
    idle = counters.workgroups - ran if counters.workgroups == counters.grid else counters.idle
    shared = {(each.address, each.written): each for each in (beginnings or counters).footprints}
    buffers = []
    for key, use in profile.buffers.items():
        each = shared.get(key)
        fills = each.by_chiplet / each.by_workgroup if each else 1.0
        buffers.append(Buffer(use.size, use.own / ran, fills))
    vector = sum(cycles * counters.instructions.get(name, 0) for name, cycles in VECTOR_CYCLES.items())
    return Recording(
        counters.arch, counters.grid, counters.occupancy.workgroups, vector / ran, counters.matrix_cycles / ran,
        counters.lds_cycles / ran, (counters.half_lines_loaded + counters.half_lines_stored) / ran, tuple(buffers),
        pack(courses), idle,
    )  # fmt: skip
