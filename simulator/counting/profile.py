"""What costs time to watch, and so is asked for: each instruction's accesses, what waits waited for, a wave's trace,
and the course of each wave (`courses`), which timing/timeline.py plays back against a clock.

    profile = Profile()
    counters = simulator.launch(..., profile=profile)

A launch runs up to a quarter slower for it.
"""

import bisect
import copy
from dataclasses import dataclass, field

from simulator.isa.wave import LANES
from simulator.memory.waits import allowed

from .counters import class_of, matrix_cycles

# Steps of a course: a tuple of one of these and what is written beside it.
VECTOR, SCALAR, MATRIX, LDS = range(4)  # cycles
CONSTANT = 4  # a scalar load: whether its 64 bytes are new to the workgroup
# Half lines; how many of them are new to the workgroup; how many others it touched since it last touched the rest;
# "load", "store" or "atomic"; flat; number of the buffer.
MEMORY = 5
WAIT = 6  # vmcnt, lgkmcnt: how many may be outstanding
BARRIER = 7
RELEASE, ACQUIRE = 8, 9  # an LDS dword, how often it had been written by all lanes of a wave
FILL = 10  # cycles of LDS that a load to it takes

WORK = (MATRIX, MEMORY, BARRIER, RELEASE)

VECTOR_CYCLES = {"valu": 4, "packed": 4, "transcendental": 16}
SCALAR_CYCLES = 4  # a wave's turn comes every fourth cycle
MOST_MERGED = 64  # cycles of vector instructions in one step: waves of a SIMD take turns


@dataclass
class Site:
    """What one instruction of the program did, beyond how often it ran."""

    accesses: int = 0
    different_bytes: int = 0
    lines: int = 0
    lds_cycles: int = 0
    lds_conflict_cycles: int = 0


@dataclass
class Waits:
    """Waits for one thing; `outstanding` is summed, of the counter waited on, before the wait."""

    times: int = 0
    outstanding: int = 0


@dataclass
class BufferUse:
    """`own`: half lines that workgroups touched for the first time each, summed over the workgroups."""

    number: int
    size: int
    own: int = 0


class Recent:
    """What a workgroup touched, by when it last did. A place is the half lines of an access, all together."""

    def __init__(self):
        self._clock = 0
        self._stamps: dict[tuple[int, int], int] = {}
        self._order: list[int] = []  # their values, ascending
        # Of loads, and of what writes: half line -> the latest of its places, by when they were new.
        self._places: dict[bool, dict[int, tuple[int, int]]] = {False: {}, True: {}}

    def _since(self, place: tuple[int, int]) -> int | None:
        """How many other places were touched since this one was; None: it is not kept."""
        stamp = self._stamps.get(place)
        return None if stamp is None else len(self._order) - bisect.bisect_left(self._order, stamp) - 1

    def enter(self, place: tuple[int, int], half_lines: list[int], written: bool, streams: bool) -> list[int | None]:
        """A place that is new. Of those half lines that other places have: how many places ago, as `_since`."""
        places = self._places[written]
        found = [places[line] for line in half_lines if line in places]
        places.update(dict.fromkeys([line for line in half_lines if not streams or line not in places], place))
        return [self._since(each) for each in found]

    def touch(self, place: tuple[int, int], streams: bool) -> int | None:
        """How many other places were touched since this one was; None: it is new. Places that stream are not kept."""
        since = self._since(place)
        if since is not None:
            del self._order[len(self._order) - since - 1]
        if since is not None or not streams:
            self._clock += 1
            self._stamps[place] = self._clock
            self._order.append(self._clock)
        return since


@dataclass
class Course:
    """One wave: its steps, and what is outstanding."""

    steps: list[tuple] = field(default_factory=list)
    vm: list[str] = field(default_factory=list)
    lgkm: list[str] = field(default_factory=list)
    looked_at: int = 0  # the step at which LDS was last read
    slept_at: int | None = None  # the step at which it went to sleep, with nothing done since


class Profile:
    """Of the latest launch. `trace`: the workgroup and wave whose first `trace_limit` instructions go to `write`, line
    by line."""

    def __init__(self, trace: tuple[int, int] | None = None, trace_limit: int = 200, write=print):
        self.trace, self.trace_limit, self.write = trace, trace_limit, write

    def start(self, launch) -> list:
        """The launch's program, each instruction watched."""
        self.counters = launch.counters
        self.sites = [Site() for _ in launch.program]
        # (counter, what) -> of the latest operation that the wait needs
        self.waits: dict[tuple[str, str], Waits] = {}
        self.courses: dict[int, list[Course]] = {}
        self._releases: dict[tuple[int, int], int] = {}
        self._constants: set[tuple[int, int]] = set()
        self._recent: dict[int, Recent] = {}  # of each workgroup
        # (address, written) of a buffer -> its number in the order of the first access, and what is summed of it.
        self.buffers: dict[tuple[int, bool], BufferUse] = {}
        self._memory_of_launch = launch.memory
        self.traced = 0
        return [self._watched(ins, site) for ins, site in zip(launch.program, self.sites)]

    def _watched(self, ins, site: Site):
        watched = copy.copy(ins)
        kind, inner = class_of(ins.mnemonic), ins.run
        note = self._note(ins, kind, site)

        def run(wave):
            workgroup = wave.workgroup
            courses = self.courses.get(workgroup.index)
            if courses is None:
                courses = self.courses[workgroup.index] = [Course() for _ in workgroup.waves]
            before = self._traced_state(wave) if self.trace else None
            following = note(courses[wave.index], workgroup.index, wave, inner)
            if before is not None:
                self._show_changes(ins, wave, before)
            return following

        watched.run = run
        return watched

    # What is noted of each class.

    def _note(self, ins, kind: str, site: Site):
        if kind in VECTOR_CYCLES:
            return self._vector(VECTOR_CYCLES[kind])
        if kind == "mfma":
            return self._simple((MATRIX, matrix_cycles(ins.mnemonic, ins.text.modifiers)))
        if kind.startswith("vmem_") or ins.mnemonic == "buffer_wbl2":
            return self._memory(kind.removeprefix("vmem_") if kind != "other" else "store", site, ins)
        if kind == "lds":
            return self._lds(site, ins)
        if kind == "smem":
            return self._constant(ins)
        if kind == "wait":
            return self._wait(ins)
        if kind == "barrier":
            return self._simple((BARRIER,))
        if ins.mnemonic == "s_nop":
            return self._simple((SCALAR, SCALAR_CYCLES * (1 + (ins.text.words[0] & 0xFFFF))))
        return self._sleep if ins.mnemonic == "s_sleep" else self._simple((SCALAR, SCALAR_CYCLES))

    @staticmethod
    def _simple(step: tuple):
        def note(course, group, wave, inner):
            course.steps.append(step)
            return inner(wave)

        return note

    @staticmethod
    def _vector(cycles: int):
        def note(course, group, wave, inner):
            steps = course.steps
            if steps and steps[-1][0] == VECTOR and steps[-1][1] < MOST_MERGED:
                steps[-1] = VECTOR, steps[-1][1] + cycles
            else:
                steps.append((VECTOR, cycles))
            return inner(wave)

        return note

    def _constant(self, ins):
        base = ins.operands[1].index

        def note(course, group, wave, inner):
            line = group, wave.pair(base) // 64
            course.steps.append((CONSTANT, line not in self._constants))
            self._constants.add(line)
            course.lgkm.append("scalar load")
            return inner(wave)

        return note

    # A wave that polls: how often it looks at its flag depends on the schedule. Only the look that succeeds is kept.

    @staticmethod
    def _forget(course: Course, since: int) -> bool:
        """Takes back the steps of a look in vain, if they are no more than that."""
        if any(step[0] in WORK for step in course.steps[since:]):
            return False
        del course.steps[since:]
        return True

    def _sleep(self, course, group, wave, inner):
        course.slept_at = len(course.steps) if self._forget(course, course.looked_at) else None
        return inner(wave)

    def _look(self, course: Course) -> None:
        if course.slept_at is not None:
            self._forget(course, course.slept_at)
            course.slept_at = None
        course.looked_at = len(course.steps)

    def _memory(self, what: str, site: Site, ins):
        flat, streams = ins.mnemonic.startswith("flat_"), " nt" in ins.text.line

        def note(course, group, wave, inner):
            counters = self.counters
            half_lines = counters.half_lines_loaded + counters.half_lines_stored
            lines, size = counters.lines_loaded + counters.lines_stored, counters.different_bytes
            lds_cycles, lds_conflicts = counters.lds_cycles, counters.lds_conflict_cycles
            counters.latest_is_new = False
            following = inner(wave)
            half_lines = counters.half_lines_loaded + counters.half_lines_stored - half_lines
            site.accesses += 1
            site.lines += counters.lines_loaded + counters.lines_stored - lines
            site.different_bytes += counters.different_bytes - size
            use = self._use(counters.latest_address, what != "load")
            first, new, since = self._touch(group, half_lines, what != "load", streams) if half_lines else (0, 0, 0)
            use.own += first
            course.steps.append((MEMORY, half_lines, new, since, what, flat, use.number))
            if (fills := counters.lds_cycles - lds_cycles) and not flat:
                site.lds_cycles += fills
                site.lds_conflict_cycles += counters.lds_conflict_cycles - lds_conflicts
                course.steps.append((FILL, fills))
            name = f"{what} ({'first touch' if first else 'cached'})" if what == "load" else what
            course.vm.append(name)
            if flat:
                course.lgkm.append(name)
            return following

        return note

    def _touch(self, group: int, half_lines: int, written: bool, streams: bool) -> tuple[int, int, int]:
        """Of the latest access: half lines that its workgroup touches for the first time; those that its chiplet's L2
        may lack, these among them; how many others were touched since the rest was.

        A half line is fetched whole: after one access another one finds it, whichever bytes both ask for. Lines that
        stream (nt) are the first that L2 gives up: they come anew, and push nothing out."""
        counters, recent = self.counters, self._recent.setdefault(group, Recent())
        if counters.latest_is_new:
            touched = counters.latest_half_lines()
            known = recent.enter(counters.latest_place, touched, written, streams)
            recent.touch(counters.latest_place, streams)
            first = len(touched) - len(known)
        else:
            known, first = [recent.touch(counters.latest_place, streams)] * half_lines, 0
        kept = [each for each in known if each is not None]
        return first, first + len(known) - len(kept), max(kept, default=0) * half_lines

    def _use(self, address: int, written: bool) -> BufferUse:
        region = self._memory_of_launch.find(address)
        key = (region.address if region else 0), written
        if key not in self.buffers:
            self.buffers[key] = BufferUse(len(self.buffers), region.size if region else 0)
        return self.buffers[key]

    def _lds(self, site: Site, ins):
        reads = ins.mnemonic.startswith("ds_read")

        def note(course, group, wave, inner):
            counters = self.counters
            cycles, conflicts = counters.lds_cycles, counters.lds_conflict_cycles
            counters.latest_word = None
            following = inner(wave)
            word, cycles = counters.latest_word, counters.lds_cycles - cycles
            site.accesses += 1
            site.lds_cycles += cycles
            site.lds_conflict_cycles += counters.lds_conflict_cycles - conflicts
            written = self._releases.get((group, word), 0) if word is not None else 0
            if ins.is_look:
                self._look(course)
                if written:
                    course.steps.append((ACQUIRE, word, written))
            course.steps.append((LDS, cycles))
            course.lgkm.append("LDS")
            if word is not None and not reads:
                self._releases[group, word] = written + 1
                course.steps.append((RELEASE, word, written + 1))
            return following

        return note

    def _wait(self, ins):
        vm, lgkm = allowed(ins)

        def note(course, group, wave, inner):
            for name, queue, count in (("vmcnt", course.vm, vm), ("lgkmcnt", course.lgkm, lgkm)):
                if len(queue) > count:
                    cut = len(queue) - count
                    waits = self.waits.setdefault((name, queue[cut - 1]), Waits())
                    waits.times += 1
                    waits.outstanding += len(queue)
                    del queue[:cut]
            course.steps.append((WAIT, vm, lgkm))
            return inner(wave)

        return note

    # Tracing one wave.

    def _traced_state(self, wave):
        if (wave.workgroup.index, wave.index) != self.trace or self.traced >= self.trace_limit:
            return None
        self.traced += 1
        return wave.registers.words.copy(), list(wave.s), wave.scc, wave.exec

    def _show_changes(self, ins, wave, before) -> None:
        words, scalars, scc, active = before
        changes = [
            f"{ {106: 'vcc_lo', 107: 'vcc_hi', 124: 'm0'}.get(i, f's{i}') }={new:#x}"
            for i, (old, new) in enumerate(zip(scalars, wave.s))
            if old != new
        ]
        changes += [f"scc={wave.scc}"] if wave.scc != scc else []
        changes += [f"exec={wave.exec:#x}"] if wave.exec != active else []
        for row in (wave.registers.words != words).any(axis=1).nonzero()[0].tolist():
            new = wave.registers.words[row]
            name = f"v{row}" if row < 256 else f"a{row - 256}"
            # Of lanes that differ: the first two and the last.
            lanes = [0] if (new == new[0]).all() else [0, 1, LANES - 1]
            changes.append(f"{name}=[{', '.join(f'{int(new[lane]):#x}' for lane in lanes)}]")
        self.write(f"{ins.address:#8x}  {ins.text.line:<60}  {' '.join(changes)}".rstrip())
