"""The GPU operators beside what else computes the same on an NVIDIA GPU, as markdown.

    make bench-cuda
    python -m benchmarks measure cuda --json figures.json --plot figures.png    # with a build of the variant at hand
    python -m benchmarks measure cuda --size 10240x8192 --size 8192x28672    # skinny_gemm alone, other sizes

Everything in one table row was timed in turn in this process (harness/gpu_timing.py), and verified before. The
floor is the bytes that must be moved, at the rate that the vendor publishes for this GPU's memory; for another GPU at
torch.sum's rate, or at that of the row's fastest case where it is higher. The share is the floor by our time, the
ratio the fastest competitor's time by ours. A launch of ours may begin while the one before it ends, and skinny_gemm
is told that its weights do not change, so that it reads them meanwhile; "b may change" is without that promise,
"alone" without any overlap.
"""

import math
import statistics
import time
from dataclasses import dataclass
from functools import cached_property

import torch

from benchmarks.harness import gpu_cases, gpu_report, gpu_timing
from benchmarks.harness.gpu_cases import GEMM_ROWS, GemmCase, RowCase, by_flashinfer, without_overlap
from benchmarks.harness.gpu_environment import Gpu, find_gpu
from benchmarks.harness.gpu_report import Cases, attempt, note
from benchmarks.harness.gpu_timing import Recorded, Times, record
from benchmarks.harness.table import Table, cell


@dataclass(frozen=True)
class Bound:
    """What --check asks for, at least: the fastest competitor's time by ours, and our share of the memory rate.

    The shares are those of an H200's 4.8 TB/s."""

    ratio: float
    share: float = 0.0


Size = int | tuple[int, int, int]

# What is timed, and what it must reach.
BOUNDS: dict[str, dict[Size, Bound]] = {
    "add_rms_norm_fp8": {1: Bound(1.6), 8: Bound(1.6), 32: Bound(1.4), 128: Bound(1.3)}
    | {512: Bound(1.1, 0.84), 2048: Bound(1.1, 0.84)},
    "swiglu_fp8": {1: Bound(1.0), 32: Bound(1.0), 128: Bound(1.2), 512: Bound(1.2), 2048: Bound(1.2, 0.79)},
    "skinny_gemm": {
        (m, n, k): bound
        for sizes, bound in (
            (((2304, 16384), (4096, 4096)), Bound(1.35)),
            (((13312, 16384), (16384, 6656), (28672, 4096)), Bound(1.05, 0.86)),
        )
        for n, k in sizes
        for m in GEMM_ROWS
    },
}
# Of all of an operator's ratios, the geometric mean.
LEAST_MEANS = {"skinny_gemm": 1.2}
# Columns of ours; every other is a competitor.
OURS = ("ours", "changing", "alone")
TITLES = gpu_report.TITLES | {"scaled_mm": "torch._scaled_mm", "changing": "b may change"}


def record_ours(case: RowCase | GemmCase) -> Cases:
    case.verify_ours()
    cases: Cases = {"ours": record(case.ours, case.count)}
    if isinstance(case, GemmCase):
        cases["changing"] = record(case.ours_changing, case.count)
    with without_overlap():
        case.verify_ours("ours, alone")
        return cases | {"alone": record(case.ours, case.count)}


def record_rows(case: RowCase, flashinfer: bool) -> Cases:
    cases = record_ours(case) | gpu_report.torchs_rows(case, compiled=True)

    def others() -> Recorded:
        case.verify_flashinfer()
        return record(case.flashinfer, case.count)

    if case.adds:
        cases["flashinfer"] = attempt(f"flashinfer, {case.name}", others) if flashinfer else None
    return cases


def record_gemm(case: GemmCase) -> Cases:
    return record_ours(case) | {"scaled_mm": gpu_report.torchs_gemm(case)["torch"]}


def flashinfer_there(gpu: Gpu) -> bool:
    """It can be imported, and its kernels compile, which it does on first use: tried once, not at each size."""
    try:
        x = torch.zeros((1, gpu_cases.WIDTH), dtype=torch.float16, device=gpu.device)
        out = x.to(gpu.kernel.fp8_dtype(gpu.device))
        by_flashinfer()(x, x.clone(), x[0], torch.ones((), device=gpu.device), gpu_cases.EPSILON, out=out)
    except Exception as error:
        note(f"left out: flashinfer: {type(error).__name__}: {error}".splitlines()[0])
        return False
    return True


@dataclass(frozen=True)
class Line:
    """A row of a table: the medians of one operator at one size."""

    operator: str
    size: Size
    moved: int  # bytes
    times: dict[str, Times | None]
    memory_rate: float  # bytes a microsecond

    def us(self, name: str) -> float | None:
        times = self.times[name]
        return times and times.median_us

    @cached_property
    def floor_us(self) -> float:
        return gpu_timing.floor_us(self.moved, self.times.values(), self.memory_rate)

    @property
    def share(self) -> float:
        return self.floor_us / self.us("ours")

    @cached_property
    def ratio(self) -> float | None:
        """None: there is nobody to compare with."""
        others = [self.us(name) for name in self.times if name not in OURS and self.times[name]]
        return min(others) / self.us("ours") if others else None

    @property
    def cells(self) -> list[str]:
        times = [cell(self.us(name)) for name in self.times if name != "ours"]
        ours = [cell(self.us("ours")), cell(self.times["ours"].spread_us)]
        return [gpu_report.shown(self.size), cell(self.floor_us), *ours, *times, cell(self.share), cell(self.ratio)]

    @property
    def timed(self) -> list[str]:
        return ["floor", "ours", *(TITLES.get(name, name) for name in self.times if name != "ours")]

    @property
    def columns(self) -> list[str]:
        floor, ours, *names = self.timed
        return [gpu_report.size_title(self.operator), floor, ours, "±", *names, "share of memory rate", "ratio"]

    @classmethod
    def of_raw(cls, raw: dict, memory_rate: float) -> "Line":
        """From what `raw` returned, by way of a JSON file or not."""
        size = raw["size"] if isinstance(raw["size"], int) else tuple(raw["size"])
        times = {name: one and Times(one["samples_us"]) for name, one in raw["times"].items()}
        return cls(raw["operator"], size, raw["bytes"], times, memory_rate)

    def missed(self, bound: Bound) -> list[str]:
        what = f"{self.operator} {gpu_report.shown(self.size)}"
        lines = []
        if self.ratio is None or self.ratio < bound.ratio:
            lines.append(f"{what}: ratio {cell(self.ratio)}, bound {bound.ratio:.2f}")
        if self.share < bound.share:
            lines.append(f"{what}: share of the memory rate {self.share:.2f}, bound {bound.share:.2f}")
        return lines

    def raw(self) -> dict:
        return {
            "operator": self.operator,
            "size": self.size,
            "bytes": self.moved,
            "times": gpu_report.raw(self.times),
            "share": self.share,
            "ratio": self.ratio,
        }


def mean(lines: list[Line]) -> float | None:
    """The geometric mean of the ratios that there are."""
    logs = [math.log(line.ratio) for line in lines if line.ratio is not None]
    return math.exp(statistics.fmean(logs)) if logs else None


def missed(lines: list[Line]) -> list[str]:
    """Every bound that is not met."""
    found = [text for line in lines for text in line.missed(BOUNDS[line.operator][line.size])]
    for operator, least in LEAST_MEANS.items():
        of_it = [line for line in lines if line.operator == operator]
        if of_it and (mean(of_it) or 0.0) < least:
            found.append(f"{operator}: geometric mean of the ratios {cell(mean(of_it))}, bound {least:.2f}")
    return found


def run(gpu: Gpu, args) -> dict:
    """The tables, each row as it comes, with progress on stderr; the figures for --json."""
    began = time.monotonic()
    generator, figures = gpu_report.begin(gpu, args)
    sizes: dict[str, list[Size]] = {operator: list(BOUNDS[operator]) for operator in args.only or BOUNDS}
    if args.size:
        sizes = {"skinny_gemm": [(m, n, k) for n, k in args.size for m in GEMM_ROWS]}
    count = sum(map(len, sizes.values()))
    flashinfer = "add_rms_norm_fp8" in sizes and flashinfer_there(gpu)
    lines: list[Line] = []
    for operator in sizes:
        begun, table = len(lines), None
        for size in sizes[operator]:
            case = gpu_report.make_case(gpu, operator, size, generator)
            note(f"[{len(lines) + 1}/{count}, {time.monotonic() - began:.0f} s] {case.name}")
            cases = record_gemm(case) if operator == "skinny_gemm" else record_rows(case, flashinfer)
            times = gpu_report.times_of(cases, args)
            lines.append(Line(operator, size, case.bytes, times, figures["memory_bytes_per_us"]))
            table = table or Table(lines[-1].columns, lines[-1].timed, gpu_report.title(operator))
            table.row(*lines[-1].cells)
        print(f"\nGeometric mean of the ratios: {cell(mean(lines[begun:]))}", flush=True)
    return figures | {"results": [line.raw() for line in lines]}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, BOUNDS)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="exit with 1 where a bound is missed")
    gpu_report.add_sizes(what, "skinny_gemm alone, with such weights; may be repeated")
    args = parser.parse_args(argv)
    if (figures := gpu_report.figures_of("cuda", lambda: run(find_gpu(), args), args)) is None:
        return 1
    lines = [Line.of_raw(raw, figures["memory_bytes_per_us"]) for raw in figures["results"]]
    if not args.check:
        return 0
    failures = missed(lines)
    for text in failures:
        note(f"missed: {text}")
    return 1 if failures else 0
