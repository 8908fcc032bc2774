"""Counters of a launch, and a table of the chip, as an estimated time. It ranks versions of a kernel and names what
binds them; it is no measurement.

    estimate = launch + max(one compute unit's course, each chip-wide part alone)

Parts alone, as if nothing else took time:
    HBM     different 64-byte lines of the launch / bandwidth (caches cold, and large enough to read nothing twice)
    L2      64-byte lines of all accesses / bandwidth (no hits in L1)
    L1      the same, through a unit's 64 bytes a clock
    issue   vector instructions: 4 cycles, transcendental ones 16, on four SIMDs of each busy unit
    matrix  matrix instructions, on four SIMDs of each busy unit
    LDS     cycles with bank conflicts, of each busy unit
The course (timeline.py) is one unit with as many workgroups as it holds, one after the other, with its share of HBM and
L2: it has latencies, waits, barriers, and waves that are in each other's way. What it takes beyond the longest part is
"latency": loads not yet back, and too little in flight.

A launch may be a sample: workgroups are taken to be alike. Lines that several workgroups touched count once, all others
are scaled by the grid, and no buffer has more lines than it is long.

Constants are facts of the chips (published measurements) but for one, the launch: the least that a kernel takes in a
graph. It is set from the smallest published kernel time, see the README.
"""

from dataclasses import dataclass, field

from .counters import HALF_LINE, SIMDS, Counters
from .profile import VECTOR_CYCLES, Profile
from .timeline import Played, UnitRates, play


@dataclass(frozen=True)
class Chip:
    """Bandwidths that programs reach: of the whole chip in bytes a second, `unit_hbm` of one unit in bytes a clock."""

    name: str
    units: int
    clock: float
    hbm: float
    l2: float
    launch: float  # seconds
    unit_hbm: float = 32.0


# MI350X: L2's bandwidth is not published; scaled by units and clock.
CHIPS = {
    "gfx942": Chip("MI300X", 304, 2.1e9, 4.2e12, 15.4e12, 0.8e-6),
    "gfx950": Chip("MI350X", 256, 2.4e9, 6.9e12, 14.8e12, 0.8e-6),
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
    played: Played = field(repr=False, default_factory=Played)

    @property
    def bound(self) -> str:
        busy = {name: t for name, t in self.parts.items() if name not in ("launch", "latency")}
        largest = max(busy, key=busy.get)
        return largest if busy[largest] >= LATENCY_BOUND * (self.seconds - self.parts["launch"]) else "latency"


def distinct_bytes(counters: Counters) -> float:
    """Of the whole grid, from the workgroups that ran."""
    total = 0.0
    for each in counters.footprints:
        own = (each.half_lines - each.shared) / counters.workgroups * counters.grid
        # A buffer need not begin at a line's start: it may touch one more than its length asks for.
        total += min(HALF_LINE * (own + each.shared), each.size + HALF_LINE)
    return total


def play_unit(counters: Counters, profile: Profile, chip: Chip) -> tuple[Played, float, float]:
    """(what was played, seconds of the fullest unit, workgroups that it gets)."""
    most = -(-counters.grid // chip.units)
    # Units that have one workgroup less leave their share of the bandwidth to the others.
    sharing = counters.grid / most
    rates = UnitRates(
        hbm=min(chip.unit_hbm, chip.hbm / chip.clock / sharing), l2=min(64.0, chip.l2 / chip.clock / sharing)
    )
    courses = list(profile.courses.values())
    if len(courses) > 1 and counters.grid > counters.workgroups:
        courses = courses[1:]  # of a sample the first one alone found nothing in the caches
    resident = min(counters.occupancy.workgroups, most)

    def run(count: int) -> Played:
        return play([courses[i % len(courses)] for i in range(count)], resident, rates)

    if most <= 3 * resident:
        played = run(most)
        return played, played.cycles / chip.clock, most
    # Rounds after the first ones are alike.
    first, played = run(resident), run(3 * resident)
    a_group = (played.cycles - first.cycles) / (2 * resident)
    return played, (played.cycles + (most - 3 * resident) * a_group) / chip.clock, most


def estimate(counters: Counters, profile: Profile, chip: Chip | None = None) -> Estimate:
    """`profile` has watched the launch that `counters` are of."""
    chip = chip or CHIPS[counters.arch]
    scale = counters.grid / counters.workgroups
    busy_units = min(chip.units, counters.grid)
    # The fullest unit has more than the mean.
    uneven = -(-counters.grid // chip.units) * busy_units / counters.grid
    unit_clock = chip.clock * busy_units / uneven
    size = distinct_bytes(counters)
    touched = HALF_LINE * (counters.half_lines_loaded + counters.half_lines_stored) * scale
    vector = sum(cycles * counters.instructions.get(name, 0) for name, cycles in VECTOR_CYCLES.items())
    parts = {
        "HBM": size / min(chip.hbm, chip.unit_hbm * unit_clock),
        "L2": touched / chip.l2,
        "L1": touched / 64 / unit_clock,
        "issue": vector * scale / SIMDS / unit_clock,
        "matrix": counters.matrix_cycles * scale / SIMDS / unit_clock,
        "LDS": counters.lds_cycles * scale / unit_clock,
    }
    played, seconds, most = play_unit(counters, profile, chip)
    longest = max(parts.values())
    total = max(seconds, longest)
    parts = {"launch": chip.launch, **parts, "latency": total - longest}
    resident = counters.occupancy.workgroups
    return Estimate(chip.launch + total, parts, size, size / chip.hbm, most / resident, played)


def describe(result: Estimate) -> str:
    """One line a part, in microseconds."""
    lines = [f"{name:8} {1e6 * t:9.2f} us" for name, t in result.parts.items()]
    lines.append(f"estimate {1e6 * result.seconds:9.2f} us, bound by {result.bound}; no measurement")
    lines.append(
        f"bytes    {result.bytes / 1e6:9.2f} MB of different lines: {1e6 * result.bytes_floor:.2f} us at the chip's "
        f"bandwidth; {result.rounds:.2f} rounds of workgroups"
    )
    lines.append(f"loads    {result.played.loads_in_flight:9.2f} in flight, of a wave, on average")
    stalls = sorted(result.played.stalls.items(), key=lambda each: -each[1])
    whole = sum(result.played.stalls.values()) or 1.0
    lines.append("stalls   " + ", ".join(f"{what} {100 * cycles / whole:.0f} %" for what, cycles in stalls))
    return "\n".join(lines)
