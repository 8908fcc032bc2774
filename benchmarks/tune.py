"""A GEMM's own choice beside its other configurations, on this GPU or by the simulator's clock, as markdown.

    python -m benchmarks tune forms skinny_gemm                                   # sizes of current models' layers
    python -m benchmarks tune forms skinny_gemm --size 5120x8192 --rows 1 --rows 16
    python -m benchmarks tune forms int8_gemm --random 40 --json forms.json       # those of gpu_gemms, and random ones
    python -m benchmarks tune forms block_scaled_gemm --clock gfx942 --size 512x7168 --rows 1024 --form t128x64

A configuration is what ROCM_FP8_KERNELS_CONFIG takes behind the operator: a form, parts of K, pieces of the columns.
On a GPU each is verified and timed alone; then the own choice and those near the fastest are timed in turn. Weights are
constant, as in decoding. `tune costs` fits what the choices go by to --json. By the clock nothing is
verified, and a configuration takes seconds.
"""

import itertools
import math
import random
import statistics

import torch

from benchmarks.harness import clock, gpu_report
from benchmarks.harness.forms import ARCHS, Size, candidates, form_names, picked
from benchmarks.harness.gemm_cases import CASES, CHALLENGE, DECODE, OPT, OPT_DECODE
from benchmarks.harness.gpu_cases import GEMM_ROWS, GemmCase
from benchmarks.harness.gpu_environment import Missing, find_gpu
from benchmarks.harness.gpu_report import shown
from benchmarks.harness.shapes import MODELS
from benchmarks.harness.simulated_rocm import SimulatedRocm
from benchmarks.harness.sweep import Choice, sweep, tried
from benchmarks.harness.table import Table, cell

ROW_CLASSES = (8, 16, 32)  # of skinny_gemm on ROCm, by their largest
OPERATORS = ("skinny_gemm", "block_scaled_gemm", "int8_gemm")
LARGE = {"block_scaled_gemm": (*CHALLENGE, *DECODE), "int8_gemm": (*OPT, *OPT_DECODE)}
# Of skinny_gemm on CUDA: N and K of current models' layers.
MODEL_SIZES = (
    *((1024, 4096), (1024, 8192), (2048, 4096), (2048, 8192), (2304, 16384), (3072, 4096), (3072, 8192), (4096, 4096)),
    *((4096, 14336), (5120, 5120), (5120, 8192), (5120, 13824), (6144, 4096), (6144, 16384), (7168, 8192)),
    *((8192, 8192), (10240, 8192), (12288, 4096), (13312, 16384), (14336, 4096), (16384, 6656), (28672, 4096)),
)
COLUMNS = ["M, N x K", "own choice", "own, us", "±", "best", "best, us", "±", "gain"]


def random_size(draw: random.Random) -> Size:
    """Rows up to 8192; columns and K in 16 bytes, up to 16384."""

    def evenly_by_logarithm(least: float, most: float) -> float:
        return math.exp(draw.uniform(math.log(least), math.log(most)))

    m = round(evenly_by_logarithm(1, 8192))
    return m, *(16 * round(evenly_by_logarithm(8, 1024)) for _ in "nk")


def sizes_of(args, backend: str, seed: int = 0) -> list[Size]:
    """What --size, --rows and --random ask for; Missing where they do not go together."""
    operator = args.operator
    if operator != "skinny_gemm":
        if bool(args.size) != bool(args.rows):
            raise Missing(f"--size and --rows of {operator} go together")
        draw = random.Random(seed)
        listed = [(m, *size) for size in args.size or () for m in args.rows] or list(LARGE[operator])
        return listed + [random_size(draw) for _ in range(args.random)]
    if args.random:
        raise Missing("--random: not of skinny_gemm")
    if backend == "cuda":
        weights, rows, allowed = MODEL_SIZES, GEMM_ROWS, range(1, 33)
    else:
        weights, rows, allowed = dict.fromkeys(s for m in MODELS for s in m.linears.values()), ROW_CLASSES, ROW_CLASSES
    if wrong := sorted({*(args.rows or ())} - {*allowed}):
        raise Missing(f"--rows {wrong[0]}: not one of {', '.join(map(str, allowed))}")
    return [(m, *size) for size in args.size or weights for m in args.rows or rows]


def choices_of(args, backend: str, size: Size, multiprocessors: int = 0):
    """us -> the configurations to try, of the forms that --form names."""
    found = candidates(args.operator, backend, size, multiprocessors)
    if unknown := {*(args.form or ())} - {"fallback", *form_names(args.operator, backend)}:
        raise Missing(f"--form {min(unknown)}: not one of {', '.join(form_names(args.operator, backend))}")
    return found if not args.form else lambda us: (config for config in found(us) if config.form in args.form)


class Tried:
    """A table of a row a size, and what --json gets."""

    def __init__(self, operator: str):
        self.operator, self.results, self.ratios = operator, [], []
        self.table = Table(COLUMNS, ["own, us", "best, us"], f"{operator}: microseconds")

    def add(self, size: Size, us: dict[Choice, float], own: Choice, best: Choice, spreads: dict[Choice, float]) -> None:
        name = str(own or "own")
        cells = [name, cell(us.get(own)), cell(spreads.get(own)), str(best or "own"), cell(us[best])]
        gain = us[own] / us[best] - 1 if own in us else None
        cells += [cell(spreads.get(best)), "-" if gain is None else f"{gain:.1%}"]
        self.table.row(shown(size), *cells)
        self.ratios += [us[own] / min(us.values())] if own in us else []
        times = {str(choice): value for choice, value in us.items() if choice}
        self.results.append({"operator": self.operator, "size": size, "picked": us.get(own), "times": times})

    def end(self) -> list[dict]:
        if self.ratios:
            mean = math.exp(statistics.fmean(map(math.log, self.ratios)))
            print(f"\nOwn choice by fastest: geometric mean {cell(mean, 3)}, largest {cell(max(self.ratios))}")
        return self.results


def by_clock(args) -> dict:
    """Estimates of the ROCm variant; the own choice is among the configurations."""
    table, rocm, all_right = Tried(args.operator), SimulatedRocm.built(), True
    for size in sizes_of(args, "rocm"):
        own, listed = picked(args.operator, size, args.clock), choices_of(args, "rocm", size)
        us, right = tried(
            shown(size),
            lambda us: itertools.chain([own], listed(us)),
            lambda config, fastest: 1e6 * clock.estimated(rocm, args.operator, size, args.clock, config).seconds,
            refuses=True,
        )
        all_right &= right
        if us:
            table.add(size, us, own, min(us, key=us.__getitem__), {})
    return {"clock": args.clock, "results": table.end(), "all right": all_right}


def on_gpu(args) -> dict:
    gpu = find_gpu()
    if gpu.backend == "rocm" and gpu.arch not in ARCHS:
        raise Missing(f"no ROCm variant on one of {', '.join(ARCHS)}: this is {gpu.backend} on {gpu.arch}")
    sizes_of(args, gpu.backend)  # what cannot be done fails before the measurement
    generator, figures = gpu_report.begin(gpu, args)
    sizes = sizes_of(args, gpu.backend, generator.initial_seed())
    make = CASES.get(args.operator, lambda kernel, size, generator: GemmCase(kernel, *size, generator))
    processors = torch.cuda.get_device_properties(gpu.device).multi_processor_count if gpu.backend == "cuda" else 0
    table, all_right = Tried(args.operator), True
    for size in sizes:
        choices, case = choices_of(args, gpu.backend, size, processors), make(gpu.kernel, size, generator)
        us, times, right = sweep(args.operator, case, choices, gpu_report.effort(args))
        all_right &= right
        if times:
            best = min(times, key=lambda choice: times[choice].median_us)
            table.add(size, us, None, best, {choice: one.spread_us for choice, one in times.items()})
    return figures | {"results": table.end(), "all right": all_right}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__)
    parser.add_argument("operator", choices=OPERATORS)
    gpu_report.add_sizes(parser)
    gpu_report.add_rows(parser)
    parser.add_argument("--random", type=int, default=0, metavar="COUNT", help="random sizes besides")
    parser.add_argument("--form", action="append", metavar="NAME", help="try this form alone; may be repeated")
    parser.add_argument("--clock", choices=ARCHS, help="estimates of the ROCm variant by the simulator; no GPU")
    args = parser.parse_args(argv)
    if args.clock:
        for name in ("quick", "warm_up", "iterations", "seed", "random"):
            if getattr(args, name) not in (None, False, 0):
                parser.error(f"--{name.replace('_', '-')} does not go with --clock")
        if args.operator not in clock.CALLS:
            parser.error(f"--clock: {args.operator} is estimated by python -m benchmarks simulate operator")
    figures = gpu_report.figures_of("tune", lambda: (by_clock if args.clock else on_gpu)(args), args)
    return 0 if figures and figures["all right"] else 1
