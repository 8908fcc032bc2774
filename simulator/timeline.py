"""Plays the recorded courses of workgroups back on one compute unit, against a clock.

Waves of a SIMD take turns for its vector and its matrix instructions; the unit's waves share LDS, L1 and the unit's
part of L2's and HBM's bandwidth; a load comes back after its latency, a wait lasts until then, a barrier until all have
come, a look at an LDS flag until it was written. Not modelled: instruction fetch, banks of DRAM, scalar instructions of
different waves in each other's way, wait states, and that one wave gets half of the LDS's bandwidth at most.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

from .counters import SIMDS
from .profile import ACQUIRE, BARRIER, CONSTANT, LDS, MATRIX, MEMORY, RELEASE, SCALAR_CYCLES, VECTOR, WAIT, Course


@dataclass(frozen=True)
class UnitRates:
    """Of one compute unit: cycles, and bytes a cycle."""

    hbm: float
    l2: float
    l1: float = 64.0
    hbm_latency: int = 900
    l2_latency: int = 288
    scalar_latency: int = 48
    lds_latency: int = 51
    atomic_latency: int = 382


@dataclass
class Played:
    """`stalls`: cycles that waves stood still, summed over waves, by what they waited for. `loads_in_flight`: a wave's
    mean over its life."""

    cycles: float = 0
    stalls: dict[str, float] = field(default_factory=dict)
    loads_in_flight: float = 0


class _Group:
    def __init__(self, courses: list[Course], begin: float):
        self.alive = len(courses)
        self.at_barrier: list[_Wave] = []
        self.written: dict[tuple[int, int], float] = {}
        self.looking: dict[tuple[int, int], list[_Wave]] = {}
        self.latest_end = begin


class _Wave:
    def __init__(self, group: _Group, course: Course, simd: int, clock: float):
        self.group, self.steps, self.simd, self.clock, self.begin = group, course.steps, simd, clock, clock
        self.at = 0
        self.vm: deque[tuple[float, str]] = deque()
        self.lgkm: deque[tuple[float, str]] = deque()


class _Unit:
    def __init__(self, rates: UnitRates):
        self.rates = rates
        self.vector, self.matrix = [0.0] * SIMDS, [0.0] * SIMDS
        self.lds = self.l1 = self.l2 = self.hbm = 0.0
        self.ready: list[tuple[float, int, _Wave]] = []
        self.order = self.started = 0
        self.stalls: dict[str, float] = {}
        self.flying = self.lived = 0.0

    def push(self, wave: _Wave) -> None:
        self.order += 1
        heapq.heappush(self.ready, (wave.clock, self.order, wave))

    def start(self, courses: list[Course], clock: float) -> None:
        group = _Group(courses, clock)
        for course in courses:
            self.push(_Wave(group, course, self.started % SIMDS, clock))
            self.started += 1

    def stall(self, wave: _Wave, until: float, what: str) -> None:
        if until > wave.clock:
            self.stalls[what] = self.stalls.get(what, 0.0) + until - wave.clock
            wave.clock = until

    def memory(self, wave: _Wave, half_lines: int, new: bool, what: str, flat: bool) -> None:
        rates, size = self.rates, 64 * half_lines
        begin = max(wave.clock, self.l1)
        wave.clock = begin + SCALAR_CYCLES
        self.l1 = begin + size / rates.l1
        self.l2 = max(begin, self.l2) + size / rates.l2
        latency = {"load": rates.l2_latency, "store": rates.l2_latency, "atomic": rates.atomic_latency}[what]
        back = self.l2 + latency
        if new:
            self.hbm = max(begin, self.hbm) + size / rates.hbm
            back = max(back, self.hbm + (rates.hbm_latency if what == "load" else latency))
        queue = wave.vm
        back = max(back, queue[-1][0]) if queue else back
        name = what if what != "load" else "HBM" if new else "L2"
        queue.append((back, name))
        if flat:
            wave.lgkm.append((back, name))
        if what == "load":
            self.flying += back - begin

    def wait(self, wave: _Wave, vm: int, lgkm: int) -> None:
        for queue, allowed in ((wave.vm, vm), (wave.lgkm, lgkm)):
            while len(queue) > allowed:
                self.stall(wave, *queue.popleft())

    def open_barrier(self, group: _Group) -> None:
        if group.at_barrier and len(group.at_barrier) == group.alive:
            latest = max(wave.clock for wave in group.at_barrier)
            for wave in group.at_barrier:
                self.stall(wave, latest, "barrier")
                self.push(wave)
            group.at_barrier = []

    def step(self, wave: _Wave) -> bool:
        """Whether the wave can go on by itself."""
        kind, *rest = wave.steps[wave.at]
        wave.at += 1
        rates = self.rates
        if kind in (VECTOR, MATRIX):
            free = self.vector if kind == VECTOR else self.matrix
            self.stall(wave, free[wave.simd], "issue" if kind == VECTOR else "matrix unit")
            free[wave.simd] = wave.clock + rest[0]
            wave.clock += rest[0] if kind == VECTOR else SCALAR_CYCLES
        elif kind == MEMORY:
            self.memory(wave, *rest)
        elif kind == WAIT:
            wave.clock += SCALAR_CYCLES
            self.wait(wave, *rest)
        elif kind == LDS:
            begin = max(wave.clock, self.lds)
            self.lds = begin + max(1, rest[0])
            back = self.lds + rates.lds_latency
            wave.lgkm.append((max(back, wave.lgkm[-1][0]) if wave.lgkm else back, "LDS"))
            wave.clock = begin + SCALAR_CYCLES
        elif kind == CONSTANT:
            latency = rates.l2_latency if rest[0] else rates.scalar_latency
            wave.clock += SCALAR_CYCLES
            wave.lgkm.append((wave.clock + latency, "scalar load"))
        elif kind == BARRIER:
            wave.group.at_barrier.append(wave)
            self.open_barrier(wave.group)
            return False
        elif kind == RELEASE:
            key = tuple(rest)
            wave.group.written[key] = wave.clock + rates.lds_latency
            for other in wave.group.looking.pop(key, []):
                self.stall(other, wave.group.written[key], "LDS flag")
                self.push(other)
        elif kind == ACQUIRE:
            key = tuple(rest)
            if key not in wave.group.written:
                wave.group.looking.setdefault(key, []).append(wave)
                return False
            self.stall(wave, wave.group.written[key], "LDS flag")
        else:
            wave.clock += rest[0]
        return True

    def end(self, wave: _Wave) -> bool:
        """Whether the wave was its workgroup's last."""
        group = wave.group
        group.alive -= 1
        group.latest_end = max(group.latest_end, wave.clock)
        self.lived += wave.clock - wave.begin
        self.open_barrier(group)
        return group.alive == 0


def play(groups: list[list[Course]], resident: int, rates: UnitRates) -> Played:
    """Runs the workgroups in order, `resident` at a time, each as soon as there is room."""
    unit, waiting = _Unit(rates), deque(groups)
    for _ in range(min(resident, len(waiting))):
        unit.start(waiting.popleft(), 0.0)
    latest = 0.0
    while unit.ready:
        _, _, wave = heapq.heappop(unit.ready)
        if wave.at == len(wave.steps):
            if unit.end(wave):
                latest = max(latest, wave.group.latest_end)
                if waiting:
                    unit.start(waiting.popleft(), wave.group.latest_end)
        elif unit.step(wave):
            unit.push(wave)
    # Stores are done when they are in memory.
    return Played(max(latest, unit.hbm), unit.stalls, unit.flying / unit.lived if unit.lived else 0.0)
