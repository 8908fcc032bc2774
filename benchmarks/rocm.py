#!/usr/bin/env python3
"""The GPU operators beside what others have published for an MI300X, as markdown.

    make bench-rocm VENV=/path/to/an/environment/with/torch/for/ROCm
    python benchmarks/rocm.py --json figures.json      # with a build of the variant at hand

Everything in one table row was timed in turn in this process (benchmarks/gpu_timing.py), and verified before. A floor
is the bytes that must be moved at the rate at which this GPU reads memory, measured here, and at 4.2 TB/s, which is
what gfx942 reaches of its 5.3 TB/s; it leaves out the launch, whose own floor stands above the tables.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import gpu_timing, published_mi300x  # noqa: E402
from benchmarks.gpu_cases import GemmCase, RowCase, Wrong, gemm_config  # noqa: E402
from benchmarks.gpu_environment import Gpu, Missing, find_gpu, random_numbers  # noqa: E402
from benchmarks.gpu_timing import Recorded, Times, record  # noqa: E402

PUBLISHED = {
    "add_rms_norm_fp8": published_mi300x.ADD_RMS_NORM_FP8,
    "swiglu_fp8": published_mi300x.SWIGLU_FP8,
    "skinny_gemm": published_mi300x.SKINNY_GEMM,
}
# Bytes a microsecond that a GPU's memory reaches at best, where that is known.
NOMINAL_RATES = {"gfx942": 4.2e6}
DIRECT_KERNEL = (-1, 1)
TITLES = {"direct": "direct kernel", "compiled": "torch.compile"}


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def attempt(what: str, make: Callable[[], Recorded | None]) -> Recorded | None:
    """A competitor, or None: one that is wrong, or fails, must not take the other figures with it."""
    try:
        return make()
    except Exception as error:
        note(f"left out: {what}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
        return None


def record_rows(case: RowCase, compiled: bool) -> dict[str, Recorded | None]:
    case.verify_ours()

    def inductor() -> Recorded:
        case.verify(case.by_inductor, "torch.compile", share=1)
        return record(case.compiled, case.count)

    cases = {"ours": record(case.ours, case.count), "torch": record(case.eager, case.count)}
    return cases | ({"compiled": attempt(f"torch.compile, {case.name}", inductor)} if compiled else {})


def record_gemm(case: GemmCase, backend: str) -> dict[str, Recorded | None]:
    with gemm_config(None):
        case.verify_ours()
        cases = {"ours": record(case.ours, case.count)}
    if backend == "rocm":

        def direct() -> Recorded:
            with gemm_config(DIRECT_KERNEL):
                case.verify_ours("the direct kernel")
                return record(case.ours, case.count)

        cases["direct"] = attempt(f"the direct kernel, {case.name}", direct)

    def library() -> Recorded | None:
        launch = case.library()
        return record(launch, case.count) if launch else None

    return cases | {"torch": attempt(f"torch._scaled_mm, {case.name}", library)}


def floors_us(moved: int, read_rate: float, arch: str) -> tuple[float, float | None]:
    """The bytes at the measured rate, and at the nominal one."""
    nominal = NOMINAL_RATES.get(arch)
    return moved / read_rate, moved / nominal if nominal else None


def cell(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def header(size: str, competitors: list[str]) -> str:
    columns = [size, "floor, measured rate", "floor, 4.2 TB/s", "ours", "±", "GB/s"]
    columns += [TITLES.get(name, name) for name in competitors if name != "ours"] + ["published", "ours / published"]
    return f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"


def line(size: str, moved: int, times: dict[str, Times | None], floors: tuple, published_us: float, same: bool) -> str:
    """A row of a table. `same`: this is the GPU that the published figure is of, else there is no ratio to give."""
    ours = times["ours"]
    cells = [
        size,
        *map(cell, floors),
        cell(ours.median_us),
        cell(ours.spread_us),
        cell(moved / ours.median_us / 1e3, 0),
    ]
    cells += [cell(other and other.median_us) for name, other in times.items() if name != "ours"]
    cells += [cell(published_us), cell(ours.median_us / published_us if same else None)]
    return f"| {' | '.join(cells)} |"


def table(gpu: Gpu, operator: str, args, generator: torch.Generator, read_rate: float) -> list[dict]:
    """Times an operator at every published size; prints each row as it comes. Returns the raw figures."""
    gemm = operator == "skinny_gemm"
    results = []
    print(f"\n### {operator}{'' if gemm else ' of float16 [rows, 16384]'}: microseconds\n")
    for size, published in PUBLISHED[operator].items():
        if gemm:
            case = GemmCase(gpu.kernel, *size, generator)
            cases = record_gemm(case, gpu.backend)
        else:
            case = RowCase(gpu.kernel, operator, size, generator)
            cases = record_rows(case, args.compile)
        measured = gpu_timing.measure({name: one for name, one in cases.items() if one}, args.effort)
        times = {name: measured.get(name) for name in cases}
        if not results:
            print(header("M, N x K" if gemm else "rows", list(times)))
        shown = f"{size[0]}, {size[1]} x {size[2]}" if gemm else str(size)
        floors = floors_us(case.bytes, read_rate, gpu.arch)
        print(line(shown, case.bytes, times, floors, published.kernel_us, gpu.arch == "gfx942"), flush=True)
        results.append(
            {
                "operator": operator,
                "size": size,
                "bytes": case.bytes,
                "copies": case.count,
                "times": {name: one and one.raw() for name, one in times.items()},
                "published": vars(published),
            }
        )
    return results


def run(gpu: Gpu, args) -> dict:
    generator = random_numbers(gpu.device, args.seed)
    environment = gpu.environment | {
        "seed": generator.initial_seed(),
        "launches": f"{args.effort.warm_up} to warm up, {args.effort.iterations} timed",
    }
    for name, value in environment.items():
        print(f"- {name}: {value}")
    read_rate, floor = gpu_timing.read_rate(args.effort), gpu_timing.launch_floor(args.effort)
    print(f"- memory reads (torch.sum): {read_rate / 1e6:.2f} TB/s; a kernel that does nothing: {floor:.2f} us")
    print(f"- published: {published_mi300x.SOURCE}, on an MI300X")
    print("- ±: half of what lies between the first and the last tenth of the samples")
    results = []
    for operator in args.only or PUBLISHED:
        results += table(gpu, operator, args, generator, read_rate)
    return {
        "environment": environment,
        "read_bytes_per_us": read_rate,
        "launch_floor_us": floor,
        "published": published_mi300x.SOURCE,
        "results": results,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", choices=list(PUBLISHED), metavar="OPERATOR", help=", ".join(PUBLISHED)
    )
    parser.add_argument("--compile", action="store_true", help="time torch.compile's row operators too (slow to start)")
    parser.add_argument("--quick", action="store_true", help="fewer launches: to see whether it runs")
    parser.add_argument("--warm-up", type=int, help="launches before the timed ones (default: 500)")
    parser.add_argument("--iterations", type=int, help="timed launches, at least (default: 2000)")
    parser.add_argument("--seed", type=int, help="of the random operands (default: a new one, printed)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all samples, with the environment")
    args = parser.parse_args(argv)
    effort = gpu_timing.QUICK if args.quick else gpu_timing.Effort()
    args.effort = gpu_timing.Effort(args.warm_up or effort.warm_up, args.iterations or effort.iterations)
    try:
        figures = run(find_gpu(), args)
    except (Missing, Wrong) as error:
        print(f"rocm.py: {error}", file=sys.stderr)
        return 1
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
