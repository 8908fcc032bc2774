"""One launch: workgroups of waves in flight, a seeded scheduler, deadlock detection.

Waves run for random stretches in an order that the seed decides, several workgroups at a time. A result that depends on
the schedule, or on what registers and LDS held before, differs between seeds.
"""

import itertools
import random
import re
from dataclasses import dataclass

import numpy as np

from simulator.binary.code_object import CodeObject, Kernel
from simulator.binary.source_lines import at_source_line
from simulator.counting.counters import Counters, occupancy
from simulator.faults import DeadlockFault, SimulationError, UninitialisedFault, UnsupportedError, WaitFault
from simulator.isa.wave import ACCUMULATION, ALL_LANES, LANES, VECTOR_BIT, RegisterFile, Wave
from simulator.memory.coherence import Coherence, Knowledge
from simulator.memory.lds import Lds
from simulator.memory.races import WORD, Races
from simulator.memory.waits import lds_outstanding

from . import hazards
from .program import program

# A wave that slept this often with no store, atomic, barrier or end anywhere in the launch waits for ever, if all do.
SLEEPS_OF_A_DEADLOCK = 300
LONGEST_SLICE = 9  # 2 to this power, in instructions
SMALL_LDS = re.compile(r"^ds_(read|write)_[a-z]*(8|16)(_|$)")
LDS_LIMIT = {"gfx942": 64 << 10, "gfx950": 160 << 10}


@dataclass
class Checks:
    """What is checked besides bounds.

    `alignment` and `uninitialised_registers` are off: correct programs may load unaligned words and leave unused halves
    of register pairs undefined. Without `waits` a register that is touched too early has what will be loaded. So the
    time of a kernel can be estimated that is right only if its loads are early enough, as some published ones are.
    """

    waits: bool = True
    alignment: bool = False
    uninitialised_lds: bool = True
    uninitialised_registers: bool = False
    races: bool = True
    hazards: bool = True
    coherence: bool = True


class Clock:
    """What s_memrealtime reads, in units of 10 ns: a number that grows, another one on each device."""

    def __init__(self, offsets: list[int]):
        self.ticks, self.offsets, self.reads = 0, offsets, 0

    def read(self, device: int) -> int:
        self.ticks += 1
        self.reads += 1
        return self.ticks + self.offsets[device]


def checked_arithmetic():
    return np.errstate(invalid="raise", divide="ignore", over="ignore", under="ignore")


class Workgroup:
    def __init__(self, launch: "Launch", index: int):
        self.launch = launch
        self.index = index
        x, y, _ = launch.grid
        self.position = index % x, index // x % y, index // (x * y)
        waves = -(-launch.threads // LANES)
        races = None
        if launch.checks.races and waves > 1 and launch.lds_size:
            races = Races(launch.lds_size, waves, 1 if launch.has_small_lds_accesses else WORD)
        self.lds = Lds(launch.lds_size, launch.garbage, launch.checks, races)
        self.waves: list[Wave] = []
        self.cached: list = []  # stores to memory that devices share (memory/fine_grained.py)


class Launch:
    """A kernel on a grid. `kernarg` is the filled kernarg segment, `kernarg_address` where it lies in memory; `groups`
    are the workgroups to run (None: all), `profile` is a Profile or None. `run` runs it alone; devices.py runs several
    together, by `step`, and sets `device`, `clock`, `traffic` and `began_at` (memory/fine_grained.py)."""

    _spare_registers: dict[tuple[int, int], list[RegisterFile]] = {}

    def __init__(
        self, code: CodeObject, kernel: Kernel, memory, image_base: int, kernarg: bytes, kernarg_address: int,
        grid: tuple, block: tuple, dynamic_lds: int, seed: int, resident: int, checks: Checks, max_idle: int,
        groups=None, profile=None,
    ):  # fmt: skip
        self.code, self.kernel, self.memory, self.image_base = code, kernel, memory, image_base
        self.kernarg, self.kernarg_address = kernarg, kernarg_address
        self.grid, self.block, self.dynamic_lds = grid, block, dynamic_lds
        self.threads = block[0] * block[1] * block[2]
        self.lds_size = kernel.lds_size + dynamic_lds
        self.random = random.Random(seed)
        self.garbage = np.random.default_rng(seed)
        self.resident, self.checks, self.max_idle = resident, checks, max_idle
        self.progress = self.executed = 0
        self.device, self.clock, self.traffic, self.began_at = 0, Clock([self.random.getrandbits(40)]), None, 0
        self._check_supported()
        self.program, self.entry = program(code, kernel)
        if checks.hazards:
            hazards.check(code, kernel, self.program)
        self.counts = [0] * len(self.program)
        self.coherence = Coherence() if checks.coherence else None
        total = grid[0] * grid[1] * grid[2]
        self.groups = range(total) if groups is None else groups
        self.counters = Counters(code.arch, len(self.groups), total)
        self.counters.occupancy = occupancy(code.arch, kernel.vgprs, self.threads, self.lds_size)
        if profile is not None:
            self.program = profile.start(self)
        self.has_small_lds_accesses = any(SMALL_LDS.match(ins.mnemonic) for ins in self.program)

    def _check_supported(self) -> None:
        kernel, threads = self.kernel, self.threads
        limit = kernel.metadata.get(".max_flat_workgroup_size", 1024)
        problems = {
            "scratch memory": kernel.scratch_size,
            "a rounding mode other than to nearest even": kernel.bits("rsrc1", 12, 4),
            "flushed denormals": kernel.bits("rsrc1", 16, 4) != 15,
            "IEEE mode off": not kernel.bits("rsrc1", 23),
            "DX10_CLAMP off": not kernel.bits("rsrc1", 21),
            "a user SGPR other than the kernarg pointer": kernel.properties & 0x7F & ~0x8,
            f"{threads} threads in a workgroup, {limit} at most": threads > limit or threads == 0,
            f"{self.lds_size} bytes of LDS": self.lds_size > LDS_LIMIT[self.code.arch],
            "wave32": kernel.metadata[".wavefront_size"] != LANES,
        }
        for what, present in problems.items():
            if present:
                raise UnsupportedError(f"kernel {kernel.name}: {what}")

    # Setting up waves.

    def _registers(self) -> RegisterFile:
        arch = self.kernel.accum_offset
        key = arch, max(0, self.kernel.vgprs - arch)
        spare = self._spare_registers.setdefault(key, [])
        registers = spare.pop() if spare else RegisterFile(*key)
        # Registers hold anything at the start; a kernel that depends on it differs between seeds.
        words = registers.words
        words[:arch] = self.garbage.integers(0, 1 << 32, (arch, LANES), np.uint32)
        return registers

    def _thread_ids(self, wave: int) -> np.ndarray:
        """What v0 holds: x, and ten bits each for y and z where the kernel asked for them."""
        x_size, y_size, _ = self.block
        thread = np.arange(LANES) + wave * LANES
        asked = self.kernel.bits("rsrc2", 11, 2)
        ids = thread % x_size
        if asked >= 1:
            ids = ids | thread // x_size % y_size << 10
        if asked >= 2:
            ids = ids | thread // (x_size * y_size) % 1024 << 20
        return ids.astype(np.uint32)

    def _start_wave(self, workgroup: Workgroup, index: int) -> Wave:
        kernel = self.kernel
        wave = Wave(workgroup, index, self._registers(), Knowledge())
        wave.pc = self.entry
        wave.knowledge.fresh_at = self.began_at
        wave.fp16_overflow_clamps = bool(kernel.bits("rsrc1", 26))
        threads = self.threads
        wave.set_exec(ALL_LANES if threads >= (index + 1) * LANES else (1 << threads - index * LANES) - 1)
        wave.u32[0][:] = self._thread_ids(index)

        wave.s = [self.random.getrandbits(32) for _ in range(106)] + [0] * 22
        user = []
        if kernel.properties & 8:
            user += [self.kernarg_address & 0xFFFFFFFF, self.kernarg_address >> 32]
        first, count = kernel.preload_dwords
        words = np.frombuffer(self.kernarg[: len(self.kernarg) // 4 * 4], np.uint32)
        user += words[first : first + count].tolist()
        wave.s[: len(user)] = user
        at = kernel.user_sgprs
        initial = len(user)
        for dimension, enabled in enumerate(kernel.bits("rsrc2", 7 + i) for i in range(3)):
            if enabled:
                wave.s[at] = workgroup.position[dimension]
                at += 1
        written = (1 << initial) - 1 | ((1 << at) - 1) ^ ((1 << kernel.user_sgprs) - 1) | 3 << 126 | 1 << VECTOR_BIT
        wave.uninitialised = ((1 << VECTOR_BIT + 2 * ACCUMULATION) - 1) & ~written
        return wave

    def _start_workgroup(self, index: int) -> Workgroup:
        workgroup = Workgroup(self, index)
        workgroup.waves = [self._start_wave(workgroup, i) for i in range(-(-self.threads // LANES))]
        if workgroup.lds.races:
            workgroup.lds.races.knowledge = [wave.knowledge for wave in workgroup.waves]
        return workgroup

    # Running them.

    def run(self) -> Counters:
        idle_since, progress = 0, -1
        with checked_arithmetic():
            self.begin()
            while self.step():
                if self.progress != progress:
                    progress, idle_since = self.progress, self.executed
                elif self._hangs(self.runnable, self.executed - idle_since):
                    raise DeadlockFault(f"no progress: {self.positions()}")
        return self.finish()

    def begin(self, in_order: bool = False) -> None:
        """Some workgroups are in flight at a time. They start in an order of the seed's, or in that of `groups`."""
        self.waiting = list(self.groups)[::-1]
        if not in_order:
            self.random.shuffle(self.waiting)
        self.runnable: list[Wave] = []
        self.in_flight: list[Workgroup] = []

    def step(self) -> Wave | None:
        """Runs a wave for a stretch; None: all have ended."""
        runnable = self.runnable
        while self.waiting and len(self.in_flight) < self.resident:
            workgroup = self._start_workgroup(self.waiting.pop())
            self.in_flight.append(workgroup)
            runnable += workgroup.waves
        if not self.in_flight:
            return None
        if not runnable:
            raise DeadlockFault(f"no wave can run: {self.positions()}")
        at = self.random.randrange(len(runnable))
        wave = runnable[at]
        self._slice(wave, 1 << self.random.randrange(LONGEST_SLICE + 1))
        self.clock.ticks += 1
        if wave.ended or wave.at_barrier:
            runnable[at] = runnable[-1]
            runnable.pop()
            self._after_stop(wave)
        return wave

    def finish(self) -> Counters:
        self.counters.finish(self.memory, self.program, self.counts)
        return self.counters

    def _after_stop(self, wave: Wave) -> None:
        """A wave has ended or come to a barrier: opens the barrier, or retires the workgroup."""
        workgroup = wave.workgroup
        if wave.ended:
            self.progress += 1
            # Stores and loads to LDS that nobody waited for still happen.
            for _, _, deferred in wave.vm:
                if deferred:
                    deferred()
        alive = [each for each in workgroup.waves if not each.ended]
        if not alive:
            self.in_flight.remove(workgroup)
            spare = self._spare_registers[
                self.kernel.accum_offset, max(0, self.kernel.vgprs - self.kernel.accum_offset)
            ]
            spare += [each.registers for each in workgroup.waves]
        elif all(each.at_barrier for each in alive):
            self.progress += 1
            if workgroup.lds.races:
                workgroup.lds.races.barrier([each.index for each in alive if lds_outstanding(each)])
            if self.coherence:
                self.coherence.barrier(workgroup.waves)
            for each in alive:
                each.at_barrier = False
            self.runnable += alive

    def _hangs(self, runnable: list[Wave], idle: int) -> bool:
        if idle > self.max_idle:
            return True
        return bool(runnable) and all(
            wave.sleeps >= SLEEPS_OF_A_DEADLOCK and wave.progress_seen == self.progress for wave in runnable
        )

    def _slice(self, wave: Wave, budget: int) -> None:
        """Runs a wave for at most `budget` instructions, or until it waits for others."""
        instructions, counts = self.program, self.counts
        strict, forgives_waits = self.checks.uninitialised_registers, not self.checks.waits
        pc, start = wave.pc, budget
        try:
            while budget:
                budget -= 1
                ins = instructions[pc]
                if wave.pending & ins.touched and not forgives_waits:
                    raise WaitFault(f"{names(wave.pending & ins.touched)} touched before the wait that covers its load")
                if strict:
                    if wave.uninitialised & ins.reads:
                        raise UninitialisedFault(f"{names(wave.uninitialised & ins.reads)} read, never written")
                    wave.uninitialised &= ~ins.writes
                counts[pc] += 1
                following = ins.run(wave)
                if following is None:
                    pc += 1
                elif following >= 0:
                    pc = following
                else:
                    pc += 1
                    break
        except SimulationError as error:
            error.where = error.where or self._where(wave, ins)
            raise
        except FloatingPointError as error:
            failure = UnsupportedError(f"{error} (a NaN that {ins.mnemonic} is not modelled for)")
            failure.where = self._where(wave, ins)
            raise failure from error
        wave.pc = pc
        self.executed += start - budget

    def _where(self, wave: Wave, ins) -> str:
        position = ", ".join(map(str, wave.workgroup.position))
        return (
            f"\n  {self.device_name}kernel {self.kernel.name}, workgroup ({position}), wave {wave.index}, "
            f"{ins.address:#x}: `{ins.text.line}`{at_source_line(self.code, ins.address)}"
        )

    def positions(self) -> str:
        """Where every wave is."""
        lines = []
        for wave in itertools.chain.from_iterable(workgroup.waves for workgroup in self.in_flight):
            ins = self.program[min(wave.pc, len(self.program) - 1)]
            state = "ended" if wave.ended else "at a barrier, before" if wave.at_barrier else "at"
            position = ", ".join(map(str, wave.workgroup.position))
            where = f" {ins.address:#x} `{ins.text.line}`{at_source_line(self.code, ins.address)}"
            where = "" if wave.ended else where
            lines.append(f"  workgroup ({position}), wave {wave.index}: {state}{where}")
        return f"{self.device_name}kernel {self.kernel.name}\n" + "\n".join(lines)

    @property
    def device_name(self) -> str:
        return f"device {self.device}, " if self.traffic else ""


def names(bits: int) -> str:
    """The registers of a set, as the assembler calls them."""
    found = []
    while bits:
        bit = (bits & -bits).bit_length() - 1
        bits &= bits - 1
        if bit < VECTOR_BIT:
            found.append({106: "vcc_lo", 107: "vcc_hi", 124: "m0"}.get(bit, f"s{bit}"))
        elif bit < VECTOR_BIT + ACCUMULATION:
            found.append(f"v{bit - VECTOR_BIT}")
        else:
            found.append(f"a{bit - VECTOR_BIT - ACCUMULATION}")
    return ", ".join(found)
