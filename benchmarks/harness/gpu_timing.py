"""Microseconds of a launch on a GPU, from graphs that are replayed in turn in one process.

A decoding step is one graph replay, and a launch from Python takes longer than most of these kernels: so launches are
recorded, and the gaps between them are the device's own. Needs torch only; torch.cuda is what HIP is called there too.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

import torch

from benchmarks.harness import timing

# The largest last-level cache at hand: MI300X's and MI350's (an H200 has 50 MiB of L2).
LAST_LEVEL_CACHE = 256 << 20
# Launches of a graph. Fewer, and the gap between two replays would count (of 32 launches it was 0.13 us each on an
# H200, of 256 it is 0.02; a decoding step has hundreds); more, and recording them takes its time.
FEWEST, MOST = 256, 512
# Event pairs a case. The launches are divided among them, whole replays each, so that an event's resolution (about a
# microsecond) is little of what a pair measures.
SAMPLES = 20
READ_BYTES = 8 << 30
# What the vendors publish of their memories, in bytes a microsecond, by the beginning of the device's name.
PEAK_RATES = {
    "NVIDIA H100 80GB HBM3": 3.35e6,
    "NVIDIA H200": 4.8e6,
    "AMD Instinct MI300X": 5.3e6,
    "AMD Instinct MI325X": 6.0e6,
    "AMD Instinct MI350X": 8.0e6,
    "AMD Instinct MI355X": 8.0e6,
}


@dataclass(frozen=True)
class Effort:
    """Launches of each case, at least: to warm up, and timed; and the event pairs that they are divided among."""

    warm_up: int = 500
    iterations: int = 2000
    samples: int = SAMPLES


QUICK = Effort(warm_up=50, iterations=640)


@dataclass(frozen=True)
class Times:
    """Of one case: microseconds a launch, sample by sample."""

    samples_us: list[float]
    median_us: float = field(init=False)
    spread_us: float = field(init=False)  # half of what lies between the first and the last tenth

    def __post_init__(self):
        tenths = statistics.quantiles(self.samples_us, n=10)
        object.__setattr__(self, "median_us", statistics.median(self.samples_us))
        object.__setattr__(self, "spread_us", (tenths[-1] - tenths[0]) / 2)

    def raw(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Recorded:
    """Graphs that hold `launches` launches together."""

    graphs: list
    launches: int

    def replay(self) -> None:
        for graph in self.graphs:
            graph.replay()


def copies(bytes_each: int) -> int:
    """How many rotated copies of the operands a workload needs, so that none comes from a cache: whatever order a
    cache evicts in, twice its size passes through it before an operand's turn comes again."""
    return timing.copies(bytes_each, 2 * LAST_LEVEL_CACHE)


def record(launch: Callable[[int], object], count: int, launches: int | None = None) -> Recorded:
    """`launch(i)` for i in range(count), over and over until there are enough for a graph, or `launches` of them.

    Environment variables that a launch reads are read here, not at a replay.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # What a first launch allocates or compiles must not happen while recording; it may belong to the stream.
    with torch.cuda.stream(stream):
        for i in range(min(count, 3)):
            launch(i)
    torch.cuda.current_stream().wait_stream(stream)
    total = launches or count * -(-FEWEST // count)
    graphs = []
    for first in range(0, total, MOST):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            for i in range(first, min(first + MOST, total)):
                launch(i % count)
    return Recorded(graphs, total)


def measure(cases: dict[str, Recorded], effort: Effort) -> dict[str, Times]:
    """Every case in turn, in an order that rotates. Waits for the device at the end alone, so that it never idles."""
    names = list(cases)
    repeats = {name: -(-effort.iterations // (effort.samples * case.launches)) for name, case in cases.items()}
    for case in cases.values():
        for _ in range(-(-effort.warm_up // case.launches)):
            case.replay()
    events: dict[str, list[tuple]] = {name: [] for name in names}
    for round_ in range(effort.samples):
        for name in timing.rotated(names, round_):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(repeats[name]):
                cases[name].replay()
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    return {
        name: Times([b.elapsed_time(e) * 1e3 / (repeats[name] * cases[name].launches) for b, e in events[name]])
        for name in names
    }


def once(launch: Callable[[int], object], i: int) -> float:
    """Microseconds of a single launch, with what starting it takes."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launch(i)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def read_rate(effort: Effort) -> float:
    """Bytes a microsecond that torch.sum reaches at best. A better kernel reads faster."""
    free, _ = torch.cuda.mem_get_info()
    source = torch.randn(min(READ_BYTES, free // 4) // 4, device="cuda")
    # Milliseconds each: fewer launches say as much.
    few = Effort(effort.warm_up // 16, effort.iterations // 16)
    return source.nbytes / min(measure({"read": record(lambda i: source.sum(), 1)}, few)["read"].samples_us)


def peak_rate(device_name: str) -> float | None:
    """Bytes a microsecond that the vendor publishes; None for a device that is not listed."""
    return next((rate for name, rate in PEAK_RATES.items() if device_name.startswith(name)), None)


def floor_us(moved: int, times: Iterable[Times | None], memory_rate: float) -> float:
    """Of a table row whose cases all move as many bytes (timing.floor). `memory_rate`: bytes a microsecond."""
    return timing.floor(moved, [(moved, one.samples_us) for one in times if one], memory_rate)


def launch_floor(effort: Effort) -> float:
    """Microseconds of a kernel that does nothing to speak of: below it no launch in a graph can get."""
    one = torch.zeros(1, device="cuda")
    return measure({"floor": record(lambda i: one.add_(1), MOST)}, effort)["floor"].median_us
