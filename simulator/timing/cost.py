"""A recorded launch, and a table of the chip, as an estimated time. It ranks versions of a kernel and names what binds
them; it is no measurement and replaces none. docs/journal/simulator-clock.md has its error against measured times of
other people's kernels.

    estimate = launch + max(one compute unit's course, each chip-wide part alone)

Parts alone, as if nothing else took time:
    HBM     different 64-byte lines of the launch / bandwidth (caches cold, and large enough to read nothing twice)
    fabric  lines that the chiplets' L2 caches fetch, again where they have lost them, and stores / bandwidth of the
            memory-side cache
    L2      64-byte lines of all accesses / bandwidth (no hits in L1)
    L1      the same, through a unit's 64 bytes a clock
    issue   vector instructions: 4 cycles, transcendental ones 16, on four SIMDs of each busy unit
    matrix  matrix instructions, on four SIMDs of each busy unit
    LDS     cycles with bank conflicts, of each busy unit
The course (timeline.py) is one unit with as many workgroups as it holds, one after the other, with its share of HBM,
fabric and L2: it has latencies, waits, barriers, and waves that are in each other's way. What it takes beyond the
longest part is "latency": loads not yet back, and too little in flight.

What a chiplet's L2 fetches is measured on workgroups that are in flight together (counting/sharing.py). Workgroups of
later rounds are taken to share alike, and to find in L2 what earlier ones left only where the whole launch fits there.
Workgroups without work (counting/idle.py) are taken for none: they take no time, and make room for others at once.
A line that a workgroup touches again, whichever bytes of it, comes from L2 where what all workgroups in flight touched
in the meantime fits there; else in part from the memory-side cache. Lines that stream (nt) push nothing out. Stores
take the chip's bandwidth, and not the share of it that one unit can draw. Waves wait for an LDS dword only where a loop
looks at it (schedule/polling.py).
Matrix units take power: `Chip.power` says by how much a launch that keeps them busy runs at a lower clock.
"""

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from simulator.counting.counters import CHIPLETS, HALF_LINE, SIMDS
from simulator.counting.profile import ACQUIRE, MEMORY

from .recording import Buffer, Recording
from .timeline import ACCESSES, Played, UnitRates, play

L2_SIZE = 4 << 20  # of a chiplet
CALIBRATION = Path(__file__).with_name("calibration.json")  # errors against measured times
TIMINGS = ("profiler", "graph", "events")


@dataclass(frozen=True)
class Chip:
    """Bandwidths that programs reach: of the whole chip in bytes a second, `unit_` of one unit in bytes a clock.
    Latencies, `issue`, `barrier` and `start` in cycles, as in UnitRates. `launch_` are seconds beyond the work, by how
    a time is taken (TIMINGS): the launch's own time on the device; one of many in a graph; between two events."""

    name: str
    units: int
    clock: float
    hbm: float
    fabric: float
    l2: float
    launch_profiler: float
    launch_graph: float
    launch_events: float
    unit_hbm: float = 32.0
    unit_l2: float = 64.0
    hbm_latency: float = 900.0
    fabric_latency: float = 500.0
    l2_latency: float = 288.0
    lds_latency: float = 51.0
    issue: float = 4.0
    barrier: float = 0.0
    start: float = 0.0
    matrix_gap: float = 0.0
    lds_cycle_latency: float = 0.0
    memset: float = 2e-6  # seconds of a memset of a few MB
    power: float = 0.0  # part by which the clock's period grows where the matrix units are never idle


# MI300X: fitted on half of the pairs of simulator/calibration, each constant within a range around what is published.
# The MI325X's own constants are fitted likewise, on fewer pairs. They hold what differs in software and in how times
# were taken, too, so they are for the calibration alone. No kernel's time on an MI350X has been compared: its
# bandwidths are published (L2's scaled by units and clock, the memory-side cache's taken as HBM's), all else is the
# MI300X's.
_MI300X = Chip(
    "MI300X", 304, 2.1e9, hbm=4.56e12, fabric=4.0e12, l2=11.96e12, launch_profiler=1.196e-6, launch_graph=0.72e-6,
    launch_events=7.2e-6, unit_hbm=28.16, unit_l2=57.3,
    hbm_latency=834, fabric_latency=501, l2_latency=450, issue=4.83, barrier=16.5, start=2972, matrix_gap=7.88,
    lds_cycle_latency=11.9, power=0.665,
)  # fmt: skip
MEASURED = {
    "MI300X": _MI300X,
    "MI325X": replace(_MI300X, name="MI325X", hbm=3.7e12, launch_profiler=1.416e-6, power=0.177, memset=5.2e-6),
}
CHIPS = {
    "gfx942": _MI300X,
    "gfx950": replace(_MI300X, name="MI350X", units=256, clock=2.4e9, hbm=6.9e12, fabric=6.9e12, l2=14.8e12),
}
LATENCY_BOUND = 0.5  # of the time: where no part takes that much, nothing is busy enough to be the bound


@dataclass
class Estimate:
    """Seconds. `parts` are the times alone, "latency" what the course takes beyond the longest of them."""

    seconds: float
    parts: dict[str, float]
    bytes: float  # of different lines
    bytes_floor: float  # seconds for these bytes, and nothing else
    rounds: float  # of workgroups on the fullest unit
    played: Played = field(repr=False)
    chip: Chip
    kind: str  # of the kernel: kind_of

    @property
    def bound(self) -> str:
        busy = {name: t for name, t in self.parts.items() if name not in ("launch", "latency")}
        largest = max(busy, key=busy.get)
        return largest if busy[largest] >= LATENCY_BOUND * (self.seconds - self.parts["launch"]) else "latency"


def distinct_bytes(buffer: Buffer, grid: int) -> float:
    """Of the whole grid. A buffer need not begin at a line's start: it may touch one more than its length asks for."""
    return min(HALF_LINE * buffer.own * grid, buffer.size + HALF_LINE)


@dataclass(frozen=True)
class Traffic:
    """Bytes: from or to HBM; that the L2 caches fetch, and that they take from stores. `table` is play's, of buffers;
    `reach` the half lines that a workgroup may touch until L2 has lost what it touched before."""

    hbm: float
    fetched: float
    stored: float
    table: np.ndarray
    reach: float


def reach_of(recording: Recording, chip: Chip) -> float:
    """Traffic.reach: a workgroup's share of a chiplet's L2, among those in flight together."""
    in_flight = min(recording.resident * chip.units, recording.busy) / CHIPLETS
    return L2_SIZE / HALF_LINE / max(1.0, in_flight)


def fetched_again(recording: Recording, reach: float) -> float:
    """Half lines of a workgroup, the mean, that L2 has lost when they are loaded again. They are shared as at first."""
    steps, groups = recording.courses.steps, len(recording.courses.waves)
    again = steps[(steps[:, 0] == MEMORY) & (steps[:, 3] > reach) & (steps[:, 4] == ACCESSES["load"])]
    fills = np.array([each.fills for each in recording.buffers] or [1.0])[again[:, 6].astype(np.int64)]
    lost = (again[:, 1] - again[:, 2]) * (1 - reach / again[:, 3])
    return float((lost * np.minimum(fills, 1.0)).sum()) / groups


def traffic(recording: Recording, chip: Chip, warm: bool) -> Traffic:
    grid, distinct, table = recording.busy, 0.0, []
    moved = {False: 0.0, True: 0.0}
    fits = sum(distinct_bytes(each, grid) for each in recording.buffers) <= L2_SIZE
    written = stored_buffers(recording)
    for number, each in enumerate(recording.buffers):
        once, own = distinct_bytes(each, grid), HALF_LINE * each.own * grid
        fills = max(once, own * each.fills)
        if fits:
            fills = min(fills, CHIPLETS * once)
        distinct += 0.0 if warm else once
        moved[number in written] += fills
        table.append((fills / own if own else 0.0, once / fills if fills and not warm else 0.0))
    reach = math.inf if fits else reach_of(recording, chip)
    again = HALF_LINE * fetched_again(recording, reach) * grid
    return Traffic(distinct, moved[False] + again, moved[True], np.array(table, np.float64).reshape(-1, 2), reach)


def stored_buffers(recording: Recording) -> set[int]:
    """Numbers of the buffers that are written."""
    steps = recording.courses.steps
    stores = steps[(steps[:, 0] == MEMORY) & (steps[:, 4] != ACCESSES["load"])]
    return set(stores[:, 6].tolist())


def play_unit(recording: Recording, chip: Chip, moved: Traffic, heavier: float = 1.0) -> tuple[Played, float, int]:
    """(what was played, cycles of the fullest unit, workgroups that it gets)."""
    most = -(-recording.busy // chip.units)
    # Units that have one workgroup less, or less in their workgroup, leave their share of the bandwidth to the others.
    sharing = recording.busy / most / heavier
    rates = UnitRates(
        hbm=min(chip.unit_hbm, chip.hbm / chip.clock / sharing),
        fabric=min(chip.unit_hbm, chip.fabric / chip.clock / sharing),
        store=chip.fabric / chip.clock / sharing,
        l2=min(chip.unit_l2, chip.l2 / chip.clock / sharing),
        hbm_latency=chip.hbm_latency, fabric_latency=chip.fabric_latency, l2_latency=chip.l2_latency,
        lds_latency=chip.lds_latency, issue=chip.issue, barrier=chip.barrier, start=chip.start,
        matrix_gap=chip.matrix_gap, lds_cycle_latency=chip.lds_cycle_latency, reach=moved.reach,
    )  # fmt: skip
    resident = min(recording.resident, most)

    def run(count: int) -> Played:
        return play(recording.courses, count, resident, rates, moved.table)

    if most <= 3 * resident:
        played = run(most)
        return played, played.cycles, most
    # Rounds after the first ones are alike.
    first, played = run(resident), run(3 * resident)
    a_group = (played.cycles - first.cycles) / (2 * resident)
    return played, played.cycles + (most - 3 * resident) * a_group, most


def estimate(
    recording: Recording, chip: Chip | None = None, warm: bool = False, timing: str = "graph", heavier: float = 1.0
) -> Estimate:
    """`warm`: all that the launch reads is in the memory-side cache. `timing`: of TIMINGS. heavier: how many times as
    much as the mean the recording's first workgroup loads, where persistent ones have different numbers of tiles."""
    chip = chip or CHIPS[recording.arch]
    grid = recording.busy
    busy_units = min(chip.units, grid)
    # The fullest unit has more than the mean.
    uneven = -(-grid // chip.units) * busy_units / grid
    unit_clock = chip.clock * busy_units / uneven
    moved = traffic(recording, chip, warm)
    touched = HALF_LINE * recording.half_lines * grid
    parts = {
        "HBM": moved.hbm / min(chip.hbm, chip.unit_hbm * unit_clock),
        "fabric": max((moved.fetched + moved.stored) / chip.fabric, moved.fetched / (chip.unit_hbm * unit_clock)),
        "L2": touched / min(chip.l2, chip.unit_l2 * unit_clock),
        "L1": touched / 64 / unit_clock,
        "issue": recording.vector * grid / SIMDS / unit_clock,
        "matrix": recording.matrix * grid / SIMDS / unit_clock,
        "LDS": recording.lds * grid / unit_clock,
    }
    played, cycles, most = play_unit(recording, chip, moved, heavier)
    longest = max(parts.values())
    total = max(cycles / chip.clock, longest) + chip.power * parts["matrix"]
    launch = getattr(chip, f"launch_{timing}")
    parts = {"launch": launch, **parts, "latency": total - longest}
    return Estimate(
        launch + total,
        parts,
        moved.hbm,
        moved.hbm / min(chip.hbm, chip.fabric),
        most / recording.resident,
        played,
        chip,
        kind_of(recording),
    )


def kind_of(recording: Recording) -> str:
    """Of a kernel, as calibration.json has errors for: "ring" hands data over by LDS flags, "GEMM" multiplies without,
    "rows" does neither."""
    if (recording.courses.steps[:, 0] == ACQUIRE).any():
        return "ring"
    return "GEMM" if recording.matrix else "rows"


def band(result: Estimate) -> str:
    """Where the measured time would be, by what is known of the clock's errors."""
    if result.chip.name not in MEASURED:
        return f"unknown on {result.chip.name}: no measured kernel has been compared"
    known = json.loads(CALIBRATION.read_text())["kinds"][result.kind]
    low, high = (1e6 * result.seconds / (1 + sign * known["nine in ten"]) for sign in (1, -1))
    return (
        f"{low:.2f} to {high:.2f} us, as nine in ten of {known['pairs']} measured kernels of its kind ({result.kind})"
    )


def of_fullest(recording: Recording, **options) -> Estimate:
    """Of the recorded workgroups, played from each one on, as many as a unit gets: the estimate of the last to end. One
    that loads more than the mean has the share of the bandwidth that others leave."""
    courses, steps = recording.courses, recording.courses.steps
    loads = np.where((steps[:, 0] == MEMORY) & (steps[:, 4] == ACCESSES["load"]), steps[:, 1], 0)
    ends = courses.ends[np.cumsum(courses.waves) - 1]
    each = np.add.reduceat(loads, np.r_[0, ends[:-1]])
    chip = options.get("chip") or CHIPS[recording.arch]
    count = -(-recording.busy // chip.units)
    of_unit = np.array([np.take(each, range(i, i + count), mode="wrap").mean() for i in range(len(each))])
    heavier = np.maximum(1.0, of_unit / max(1.0, each.mean())).tolist()
    turns = (replace(recording, courses=courses.from_kind(i)) for i in range(len(each)))
    found = (estimate(turn, heavier=share, **options) for turn, share in zip(turns, heavier))
    return max(found, key=lambda estimate: estimate.seconds)


def describe(result: Estimate) -> str:
    """One line a part, in microseconds."""
    lines = [f"{name:8} {1e6 * t:9.2f} us" for name, t in result.parts.items()]
    lines.append(f"estimate {1e6 * result.seconds:9.2f} us, bound by {result.bound}; no measurement")
    lines.append(f"error     {band(result)}")
    lines.append(
        f"bytes    {result.bytes / 1e6:9.2f} MB of different lines: {1e6 * result.bytes_floor:.2f} us at the chip's "
        f"bandwidth; {result.rounds:.2f} rounds of workgroups"
    )
    lines.append(f"loads    {result.played.loads_in_flight:9.2f} in flight, of a wave, on average")
    stalls = sorted(result.played.stalls.items(), key=lambda each: -each[1])
    whole = sum(result.played.stalls.values()) or 1.0
    lines.append("stalls   " + ", ".join(f"{what} {100 * cycles / whole:.0f} %" for what, cycles in stalls))
    return "\n".join(lines)
