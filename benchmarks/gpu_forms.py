#!/usr/bin/env python3
"""Every compiled form of the large GEMMs beside the one that their configuration picks, on a GPU.

    python -m benchmarks.gpu_forms [--only int8_gemm] [--random 40] [--json forms.json]

For each size of benchmarks/gpu_gemms.py, and random ones: microseconds of what is picked (a form, parts of K, and with
few rows pieces of the columns), the fastest of all, and their ratio. The costs in block_scaled_gemm/cuda/config.h and
int8_gemm/cuda/forms.h are fitted to the figures of --json. Each result is verified.
"""

import math
import os
import random
import statistics
import sys

import torch

from benchmarks.gpu_gemms import SERIES, Size
from benchmarks.harness import gpu_report
from benchmarks.harness.gpu_cases import Wrong
from benchmarks.harness.gpu_environment import Gpu, find_gpu
from benchmarks.harness.gpu_report import cell, note, table_header, table_row

VARIABLE = "ROCM_FP8_KERNELS_GEMM"
MOST_SPLITS = 8
LAUNCHES, REPLAYS = 16, 7
FAR = 1.3  # times the fastest's time: timed once
FEW_ROWS, HEIGHTS = 128, (16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112)  # columns of a piece, ascending
HOPELESS, HOPELESS_US = 4, 100  # times the fastest's time: a single launch says enough


def random_size(draw: random.Random) -> Size:
    """Rows up to 8192; columns and K in 16 bytes, up to 16384."""

    def evenly_by_logarithm(least: float, most: float) -> float:
        return math.exp(draw.uniform(math.log(least), math.log(most)))

    m = round(evenly_by_logarithm(1, 8192))
    return m, *(16 * round(evenly_by_logarithm(8, 1024)) for _ in "nk")


def forced(kernel, config: str) -> None:
    os.environ[VARIABLE] = config
    kernel.reread_environment()


def recorded(case) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(LAUNCHES):
            case.ours(i % case.count)
    return graph


def microseconds(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """The median of replays; of one, after one that is not timed."""
    times = []
    for _ in range(replays + (replays == 1)):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / LAUNCHES)
    return statistics.median(times[-replays:])


def once(case) -> float:
    """Microseconds of a single launch, with what starting it takes."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    case.ours(1 % case.count)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


class Sweep:
    """Microseconds by "FORM,SPLITS[,PIECES]" of one case. What is far from the fastest is timed once."""

    def __init__(self, case):
        self.case, self.times, self.graphs = case, {}, {}

    def fastest(self) -> float:
        return min(self.times.values(), default=math.inf)

    def time(self, config: str) -> None:
        """Raises RuntimeError or ValueError where the operator refuses the configuration."""
        forced(self.case.kernel, config)
        self.case.ours(0)
        try:
            self.case.verify()
        except Wrong as wrong:
            raise Wrong(f"{VARIABLE}={config}: {wrong}") from None
        us = once(self.case)
        if not us > max(HOPELESS_US, HOPELESS * self.fastest()):
            self.graphs[config] = recorded(self.case)
            us = microseconds(self.graphs[config], 1)
        self.times[config] = us

    def again(self) -> dict[str, float]:
        """All times, those near the fastest from more replays."""
        for near in [name for name, us in self.times.items() if us < FAR * self.fastest()]:
            self.times[near] = microseconds(self.graphs[near], REPLAYS)
        return self.times


def all_configs(case, size: Size) -> dict[str, float]:
    m, n, _ = size
    sweep = Sweep(case)
    form = -1
    while True:
        for splits in range(1, MOST_SPLITS + 1):
            config = f"{form},{splits}"
            try:
                sweep.time(config)
            except (RuntimeError, ValueError) as error:
                if "an index into" in str(error):
                    return sweep.again()
                if "names a form" not in str(error):
                    raise
                break
            if form < 0:
                break
            # Of few rows: pieces of fewer columns than the form has room for.
            if m > FEW_ROWS or sweep.times[config] > FAR * sweep.fastest():
                continue
            for height in HEIGHTS:
                try:
                    sweep.time(f"{config},{-(-n // height)}")
                except (RuntimeError, ValueError) as error:
                    if "names a form" not in str(error):
                        raise
                    break
        form += 1


def run(gpu: Gpu, args) -> dict:
    generator, figures = gpu_report.begin(gpu, args)
    draw = random.Random(generator.initial_seed())
    results = []
    for operator in args.only or SERIES:
        sizes = [(make, size) for _, make, sizes, _ in SERIES[operator] for size in sizes]
        sizes += [(sizes[0][0], random_size(draw)) for _ in range(args.random)]
        print(f"\n### {operator}: microseconds\n")
        print(table_header(["M, N x K", "picked", "fastest", "form, parts of K, pieces", "ratio"]))
        ratios = []
        for make, size in sizes:
            case = make(gpu.kernel, size, generator)
            forced(gpu.kernel, "")
            picked = recorded(case)
            times = all_configs(case, size)
            fastest = min(times, key=times.__getitem__)
            us = microseconds(picked, REPLAYS)
            ratios.append(us / times[fastest])
            shown = f"{size[0]}, {size[1]} x {size[2]}"
            print(table_row([shown, cell(us), cell(times[fastest]), fastest, cell(ratios[-1])]), flush=True)
            results.append({"operator": operator, "size": size, "picked": us, "times": times})
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"\nPicked by fastest: geometric mean {cell(mean, 3)}, largest {cell(max(ratios))}", flush=True)
    return figures | {"results": results}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, list(SERIES))
    parser.add_argument("--random", type=int, default=0, metavar="COUNT", help="random sizes for each operator")
    args = parser.parse_args(argv)
    before = os.environ.get(VARIABLE)
    if before:
        note(f"{VARIABLE} is not read: this sweep sets it")
    return 1 if gpu_report.figures_of("gpu_forms.py", lambda: run(find_gpu(), args), args) is None else 0


if __name__ == "__main__":
    sys.exit(main())
