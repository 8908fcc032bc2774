"""What a launch did: instructions by class, lines of memory, banks of the LDS, matrix cycles, occupancy.

All of this is counted in every launch, so it has to be cheap: what an access touches depends on its addresses relative
to the first one alone, and programs repeat a few such patterns, which are worked out once.

  instructions  by class, by mnemonic, and by address (`counts` beside `program`)
  lines         of each access: the 128-byte lines of L1 and L2, the 64-byte lines of the memory-side cache.
                `coalescing` is the different bytes asked for over the bytes of the 128-byte lines. `footprints` has the
                lines of each buffer, each once, and how many of them several workgroups share
  LDS           cycles of accesses, loads that go there directly among them, and those due to bank conflicts. An access
                is served in phases of lanes (PHASES); a phase takes as long as its fullest bank. Published measurements
                cover most phases; what was chosen is said there
  matrix units  cycles; occupancy, and what limits it; the most operations of a wave in flight
"""

import functools
import re
from dataclasses import dataclass, field

import numpy as np

from simulator.isa.wave import LANES

LINE, HALF_LINE = 128, 64  # bytes: of L1 and L2; of the memory-side cache
UNITS = {"gfx942": 304, "gfx950": 256}  # compute units of a chip
CHIPLETS = 8  # each has an L2; workgroups go to them in turn
MOST_PATTERNS = 1 << 14  # of irregular accesses there may be no end

# --- Classes of instructions ---

CLASSES = [
    (r"s_waitcnt", "wait"),
    (r"s_barrier", "barrier"),
    (r"s_(c?branch|setpc|swappc|call)", "branch"),
    (r"s_(buffer_)?load_", "smem"),
    (r"s_(nop|sleep|setprio|endpgm|icache|dcache|sendmsg)", "other"),
    (r"s_", "salu"),
    (r"v_s?mfma", "mfma"),
    (r"v_(exp|log|rcp|rcp_iflag|rsq|sqrt|sin|cos)_", "transcendental"),
    (r"v_pk_", "packed"),
    (r"v_", "valu"),
    (r"ds_", "lds"),
    (r"(global|flat|buffer)_load_", "vmem_load"),
    (r"(global|flat|buffer)_store_", "vmem_store"),
    (r"(global|flat|buffer)_atomic_", "vmem_atomic"),
]
MATRIX = re.compile(r"v_s?mfma\w*?_(\d+)x\d+x\d+_(\w+)")


@functools.cache
def class_of(mnemonic: str) -> str:
    return next((name for pattern, name in CLASSES if re.match(pattern, mnemonic)), "other")


def matrix_cycles(mnemonic: str, modifiers: dict) -> int:
    """Cycles that a matrix instruction holds its SIMD's matrix unit: 4 a pass. A table by size is enough for those that
    the simulator knows: 16 rows take 4 passes, 32 take 8. f8f6f4 takes twice that where A or B has 8 bits: so FlyDSL's
    table and LLVM's model say; nobody has published a measurement of it."""
    match = MATRIX.match(mnemonic)
    if match is None:
        return 0
    wide = match[2] == "f8f6f4" and min(int(str(modifiers.get(each, 0)), 0) for each in ("cbsz", "blgp")) < 2
    return 4 * {16: 4, 32: 8}[int(match[1])] * (2 if wide else 1)


# --- Banks of the LDS ---


def _ranges(*parts: tuple[int, int]) -> list[int]:
    return [lane for first, last in parts for lane in range(first, last + 1)]


def _both_halves(groups: list[list[int]]) -> list[list[int]]:
    return groups + [[lane + 32 for lane in group] for group in groups]


def _consecutive(lanes: int) -> list[list[int]]:
    return [list(range(first, first + lanes)) for first in range(0, LANES, lanes)]


READ_B128_GFX942 = [
    _ranges((0, 3), (20, 23)), _ranges((4, 7), (16, 19)), _ranges((8, 11), (28, 31)), _ranges((12, 15), (24, 27))
]  # fmt: skip
READ_B128_GFX950 = [_ranges((0, 3), (12, 15), (20, 27)), _ranges((4, 11), (16, 19), (28, 31))]
# (architecture, write, bytes a lane): (banks, lanes that are served together). Not measured by anybody, and chosen:
# gfx942's write_b32 as its reads; gfx950's read_b32 in two halves, its write_b32 and write_b128 as gfx942's, its
# read_b64_tr_b16 as read_b64.
PHASES = {
    ("gfx942", False, 4): (32, _consecutive(32)),
    ("gfx942", False, 8): (32, _consecutive(16)),
    ("gfx942", False, 16): (32, _both_halves(READ_B128_GFX942)),
    ("gfx942", True, 4): (32, _consecutive(32)),
    ("gfx942", True, 8): (32, _consecutive(16)),
    ("gfx942", True, 16): (32, _consecutive(8)),
    ("gfx950", False, 4): (64, _consecutive(32)),
    ("gfx950", False, 8): (64, _consecutive(32)),
    ("gfx950", False, 16): (64, _both_halves(READ_B128_GFX950)),
    ("gfx950", True, 4): (32, _consecutive(32)),
    ("gfx950", True, 8): (32, _consecutive(16)),
    ("gfx950", True, 16): (32, _consecutive(8)),
}


def bank_cycles(arch: str, write: bool, size: int, addresses: np.ndarray, lanes: np.ndarray) -> tuple[int, int]:
    """(cycles of an LDS access, how many of them are due to conflicts).

    A phase takes as many cycles as the bank with the most different dwords has. Lanes that share a dword share a cycle;
    bytes and halves count as dwords, 12 bytes are served as 16 are.
    """
    banks, groups = PHASES[arch, write, 4 if size <= 4 else 8 if size == 8 else 16]
    first, last = addresses // 4, (addresses + size - 1) // 4
    phase_of = np.zeros(LANES, np.int64)
    for number, group in enumerate(groups):
        phase_of[group] = number
    cycles = phases = 0
    for number in set(phase_of[lanes].tolist()):
        chosen = phase_of[lanes] == number
        dwords = {d for low, high in zip(first[chosen].tolist(), last[chosen].tolist()) for d in range(low, high + 1)}
        cycles += int(np.bincount([dword % banks for dword in dwords]).max())
        phases += 1
    return cycles, cycles - phases


# --- Occupancy ---

# Of a compute unit, both architectures: 4 SIMDs of 8 waves, 512 registers a lane of a SIMD, and (not certain) at most
# 16 workgroups.
SIMDS, WAVES_PER_SIMD, VGPRS, MOST_WORKGROUPS = 4, 8, 512, 16
LDS_OF_UNIT = {"gfx942": (64 << 10, 512), "gfx950": (160 << 10, 1280)}  # bytes, granule


@dataclass(frozen=True)
class Occupancy:
    """How many workgroups a compute unit holds at once, and what allows no more."""

    waves: int  # of a workgroup
    workgroups: int  # on a compute unit
    limits: dict[str, int]  # workgroups that each resource would allow

    @property
    def waves_per_simd(self) -> float:
        return self.workgroups * self.waves / SIMDS

    @property
    def limited_by(self) -> str:
        return min(self.limits, key=self.limits.get)


def occupancy(arch: str, vgprs: int, threads: int, lds: int) -> Occupancy:
    waves = -(-threads // LANES)
    room, granule = LDS_OF_UNIT[arch]
    limits = {
        "waves": SIMDS * WAVES_PER_SIMD // waves,
        "registers": SIMDS * min(WAVES_PER_SIMD, VGPRS // max(8, -(-vgprs // 8) * 8)) // waves,
        "workgroups": MOST_WORKGROUPS,
    }
    if lds:
        limits["LDS"] = room // (-(-lds // granule) * granule)
    return Occupancy(waves, min(limits.values()), limits)


# --- Counters ---


@dataclass(frozen=True)
class Pattern:
    """What a global access touches, relative to the line of its first lane."""

    number: int
    bytes: int
    different_bytes: int  # lanes that ask for the same ones count once
    lines: int
    half_lines: np.ndarray  # their numbers relative to the first line, each once


_patterns: dict[tuple, Pattern] = {}
_banks: dict[tuple, tuple[int, int, bool]] = {}


@dataclass
class Footprint:
    """What the launch read of one registered buffer, or what it wrote: a line that is read and written moves twice."""

    name: str
    written: bool
    size: int  # of the buffer
    half_lines: int  # different 64-byte lines
    shared: int  # of those, that several workgroups touched
    by_workgroup: int = 0  # each as often as there are workgroups that touched it
    by_chiplet: int = 0  # and as often as there are chiplets with such workgroups: what their L2 caches fetch
    address: int = 0  # of the buffer


@dataclass
class Counters:
    """`instructions` is by class, see CLASSES; `counts` by position in `program`. Bytes are those that active lanes
    asked for; lines the 128-byte lines of each access, half lines the 64-byte ones, summed over the accesses (a line
    touched by two instructions counts twice; `footprints` has each once)."""

    arch: str = "gfx942"
    workgroups: int = 0  # that were run
    grid: int = 0  # that the launch has
    idle: int = 0  # of the grid, that have no work, as far as was looked for them (idle.py)
    occupancy: Occupancy | None = None
    instructions: dict[str, int] = field(default_factory=dict)
    mnemonics: dict[str, int] = field(default_factory=dict)
    program: list = field(default_factory=list, repr=False)
    counts: list[int] = field(default_factory=list, repr=False)
    accesses: int = 0
    different_bytes: int = 0  # of each access, summed
    bytes_loaded: int = 0
    bytes_stored: int = 0
    lines_loaded: int = 0
    lines_stored: int = 0
    half_lines_loaded: int = 0
    half_lines_stored: int = 0
    footprints: list[Footprint] = field(default_factory=list)
    distinct_lines: int = 0
    lds_bytes_read: int = 0
    lds_bytes_written: int = 0
    lds_cycles: int = 0
    lds_conflict_cycles: int = 0
    matrix_cycles: int = 0
    most_in_flight: int = 0

    def __post_init__(self):
        # Written or not -> (first line, pattern) -> workgroups.
        self._touched: dict[bool, dict[tuple[int, int], set[int]]] = {False: {}, True: {}}
        self._by_number: dict[int, Pattern] = {}
        # Of the latest access, for the profile: whether it was its workgroup's first to all these lines at once, what
        # tells them from others, the address of its first lane; the LDS dword that all lanes read or wrote, or None.
        self.latest_is_new, self.latest_address = False, 0
        self.latest_place: tuple[int, int] = 0, 0
        self._latest_pattern: Pattern | None = None
        self.latest_word: int | None = None

    @property
    def total(self) -> int:
        return sum(self.instructions.values())

    @property
    def bytes_distinct(self) -> int:
        """Bytes of all lines read, each once, and of all written: what HBM moves if caches are cold and keep all."""
        return HALF_LINE * sum(each.half_lines for each in self.footprints)

    @property
    def coalescing(self) -> float:
        """Different bytes that an access asked for, as a share of the bytes of the 128-byte lines that it touched."""
        touched = LINE * (self.lines_loaded + self.lines_stored)
        return self.different_bytes / touched if touched else 1.0

    def global_access(self, workgroup: int, addresses: np.ndarray, size: int, write: bool) -> None:
        first = int(addresses[0]) & -LINE
        relative = addresses - np.uint64(first)
        key = size, relative.tobytes()
        pattern = _patterns.get(key)
        if pattern is None:
            pattern = self._new_pattern(key, relative.view(np.int64), size)
        self.accesses += 1
        self.different_bytes += pattern.different_bytes
        if write:
            self.bytes_stored += pattern.bytes
            self.lines_stored += pattern.lines
            self.half_lines_stored += len(pattern.half_lines)
        else:
            self.bytes_loaded += pattern.bytes
            self.lines_loaded += pattern.lines
            self.half_lines_loaded += len(pattern.half_lines)
        place = first, pattern.number
        owners = self._touched[write].get(place)
        self.latest_is_new = owners is None or workgroup not in owners
        self.latest_address, self.latest_place, self._latest_pattern = int(addresses[0]), place, pattern
        if owners is None:
            self._touched[write][place] = {workgroup}
            self._by_number[pattern.number] = pattern
        else:
            owners.add(workgroup)

    def latest_half_lines(self) -> list[int]:
        """The numbers of the latest access's half lines."""
        return (self._latest_pattern.half_lines + self.latest_place[0] // HALF_LINE).tolist()

    @staticmethod
    def _new_pattern(key: tuple, relative: np.ndarray, size: int) -> Pattern:
        if len(_patterns) >= MOST_PATTERNS:
            _patterns.clear()
        # No access is longer than a half line: its first and last byte tell its lines.
        ends = np.concatenate([relative, relative + size - 1])
        _new_pattern_number[0] += 1
        different = len(np.unique(relative[:, None] + np.arange(size)))
        pattern = _patterns[key] = Pattern(
            _new_pattern_number[0], size * len(relative), different, len(np.unique(ends // LINE)),
            np.unique(ends // HALF_LINE),
        )  # fmt: skip
        return pattern

    def lds_access(self, addresses: np.ndarray, size: int, lanes: np.ndarray, write: bool) -> None:
        first = int(addresses[0])
        # Adding a dword to all addresses turns the banks round and changes nothing else.
        relative = addresses - (first & -4)
        key = self.arch, write, size, relative.tobytes(), None if len(lanes) == LANES else lanes.tobytes()
        found = _banks.get(key)
        if found is None:
            if len(_banks) >= MOST_PATTERNS:
                _banks.clear()
            one_word = size == 4 and bool((relative == relative[0]).all())
            found = _banks[key] = *bank_cycles(self.arch, write, size, relative, lanes), one_word
        cycles, conflicts, one_word = found
        self.lds_cycles += cycles
        self.lds_conflict_cycles += conflicts
        self.latest_word = first if one_word else None
        if write:
            self.lds_bytes_written += size * len(lanes)
        else:
            self.lds_bytes_read += size * len(lanes)

    def finish(self, memory, program: list, counts: list[int]) -> None:
        """Sums up at the end of the launch."""
        self.program, self.counts = program, counts
        for ins, count in zip(program, counts):
            if count:
                name = class_of(ins.mnemonic)
                self.instructions[name] = self.instructions.get(name, 0) + count
                self.mnemonics[ins.mnemonic] = self.mnemonics.get(ins.mnemonic, 0) + count
                self.matrix_cycles += matrix_cycles(ins.mnemonic, ins.text.modifiers) * count
        for write, touched in self._touched.items():
            parts = [self._by_number[number].half_lines + first // HALF_LINE for first, number in touched]
            if parts:
                groups = [next(iter(owners)) if len(owners) == 1 else -1 for owners in touched.values()]
                chiplets = [len({owner % CHIPLETS for owner in owners}) for owners in touched.values()]
                columns = np.array([groups, [len(owners) for owners in touched.values()], chiplets])
                self._sum_up(
                    memory, write, np.concatenate(parts), np.repeat(columns, [len(part) for part in parts], axis=1)
                )
        self._touched, self._by_number = {False: {}, True: {}}, {}

    def _sum_up(self, memory, write: bool, lines: np.ndarray, columns: np.ndarray) -> None:
        """`columns`: of each access's lines, the one workgroup that touched them, or -1; how many workgroups; how many
        chiplets. Where accesses of other shapes touch a line too, the largest number of one shape counts."""
        order = np.argsort(lines, kind="stable")
        lines, (owners, workgroups, chiplets) = lines[order], columns[:, order]
        starts = np.flatnonzero(np.r_[True, lines[1:] != lines[:-1]])
        low, high = np.minimum.reduceat(owners, starts), np.maximum.reduceat(owners, starts)
        workgroups, chiplets = np.maximum.reduceat(workgroups, starts), np.maximum.reduceat(chiplets, starts)
        lines, shared = lines[starts], (low < 0) | (low != high)
        self.distinct_lines += len(np.unique(lines // (LINE // HALF_LINE)))
        for region in memory.regions:
            inside = slice(
                np.searchsorted(lines, region.address // HALF_LINE),
                np.searchsorted(lines, -(-region.end // HALF_LINE)),
            )
            if count := inside.stop - inside.start:
                sums = (int(column[inside].sum()) for column in (shared, workgroups, chiplets))
                self.footprints.append(Footprint(region.name, write, region.size, int(count), *sums, region.address))


_new_pattern_number = [0]
