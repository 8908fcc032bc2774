"""block_scaled_gemm and int8_gemm beside what else computes the same on an NVIDIA GPU, as markdown.

    python -m benchmarks measure gemms [--only block_scaled_gemm] [--check] [--write docs/performance.md]
    python -m benchmarks measure gemms --random 60 --check

The sizes are those of the AMD FP8 GEMM challenge, DeepSeek-V3's with few rows, and OPT's linears; of MXFP4 weights
those of models that have them; or random ones of block_scaled_gemm. Each row is timed in turn in this process
(harness/gpu_timing.py) and verified before. Peers: DeepGEMM where it can be imported, and torch._scaled_mm with the
same scales; with scales of rows it computes less, which does not count at random sizes; torch.mm in float16, and
torch._int_mm with an epilogue that torch.compile makes; of MXFP4 torch.mm with bfloat16 weights.
"""

import math
from dataclasses import dataclass

from benchmarks.harness import gpu_report
from benchmarks.harness.gemm_cases import (
    CHALLENGE,
    DECODE,
    MX,
    OPT,
    OPT_DECODE,
    BlockScaled,
    Int8,
    Mxfp4,
    Size,
    random_sizes,
)
from benchmarks.harness.gpu_environment import Gpu, find_gpu
from benchmarks.harness.gpu_report import attempt, note
from benchmarks.harness.gpu_timing import record
from benchmarks.harness.table import Table, cell


@dataclass(frozen=True)
class Bound:
    """Of a series: what the fastest peer's time by ours must be, in the geometric mean and at each size. same: of the
    peers that compute the same."""

    mean: float
    least: float
    same: bool = False


# Of --check: title, case, sizes, bound.
SERIES: dict[str, list[tuple[str, type, tuple[Size, ...], Bound]]] = {
    "block_scaled_gemm": [
        ("the challenge's sizes", BlockScaled, CHALLENGE, Bound(1.0, 1 / 1.1)),
        ("DeepSeek-V3, few rows", BlockScaled, DECODE, Bound(1.05, 1.0)),
        ("MXFP4 weights, bfloat16 rows", Mxfp4, MX, Bound(0.0, 0.0)),  # nothing is promised yet
    ],
    "int8_gemm": [
        ("OPT's linears", Int8, OPT, Bound(1.5, 1.0)),
        ("OPT's linears, one row", Int8, OPT_DECODE, Bound(1.0, 1.0)),
    ],
}


def run(gpu: Gpu, args) -> dict:
    """The tables, each row as it comes; the figures for --json, with the bounds that are missed."""
    generator, figures = gpu_report.begin(gpu, args)
    rate, results, missed = figures["memory_bytes_per_us"], [], []
    series = SERIES
    if args.random:
        sizes = random_sizes(args.random, generator)
        series = {
            "block_scaled_gemm": [(f"{args.random} random sizes", BlockScaled, sizes, Bound(1.05, 0.85, same=True))]
        }
    for operator in args.only or series:
        for title, make, sizes, bound in series[operator]:
            columns = ["M, N x K", "ours", "±", *make.peers.values(), "share of memory rate", "ratio"]
            table = Table(columns, ["ours", *make.peers.values()], f"{operator}: {title}: microseconds")
            ratios = []
            for size in sizes:
                case = make(gpu.kernel, size, generator)
                case.verify_ours()
                cases = {
                    name: attempt(f"{name}, {size}", lambda launch=launch: record(launch, case.count))
                    for name, launch in [("ours", case.ours), *((name, getattr(case, name)) for name in make.peers)]
                }
                times = gpu_report.times_of(cases, args)
                ours = times["ours"]
                others = [times[name] and times[name].median_us for name in make.peers]
                counted = [
                    us for name, us in zip(make.peers, others) if us and not (bound.same and name in make.computes_less)
                ]
                ratios.append(min(counted, default=math.nan) / ours.median_us)
                cells = [f"{size[0]}, {size[1]} x {size[2]}", cell(ours.median_us), cell(ours.spread_us)]
                cells += map(cell, others)
                table.row(*cells, cell(case.moved / rate / ours.median_us), cell(ratios[-1]))
                results.append({"operator": operator, "size": size, "times": gpu_report.raw(times)})
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"\nGeometric mean of the ratios: {cell(mean)}; least {cell(min(ratios))}", flush=True)
            if not (mean >= bound.mean and min(ratios) >= bound.least):
                missed.append(
                    f"{operator}, {title}: mean {mean:.2f}, least {min(ratios):.2f};"
                    f" bounds {bound.mean:.2f}, {bound.least:.2f}"
                )
    return figures | {"results": results, "missed": missed}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, SERIES)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is missed")
    parser.add_argument("--random", type=int, metavar="COUNT", help="so many random sizes of block_scaled_gemm instead")
    args = parser.parse_args(argv)
    if args.random and args.only not in (None, ["block_scaled_gemm"]):
        parser.error("--random: sizes are those of block_scaled_gemm alone")
    figures = gpu_report.figures_of("gpu_gemms", lambda: run(find_gpu(), args), args)
    if figures is None:
        return 1
    for line in figures["missed"]:
        note(f"bound missed: {line}")
    return 1 if args.check and figures["missed"] else 0
