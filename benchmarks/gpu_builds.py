"""This checkout's build beside those of other checkouts, on this GPU, as markdown: what a change gains or costs.

    git worktree add ../before HEAD~1
    python scripts/build.py --backend cuda --source ../before
    python -m benchmarks compare builds ../before --only skinny_gemm --size 4096x4096 --rows 1 --rows 32

All builds get the same operands; each is verified before it is timed, and all of a table row are timed in turn. The
gain is the other build's time by this one's, less one; "same bits" says whether their results are. Builds are told
apart by the trees they were made of: each by another commit, or with changes of its own.
"""

import copy
from pathlib import Path
from types import ModuleType

import torch

from benchmarks.cuda import BOUNDS, Size
from benchmarks.harness import gpu_report, gpu_timing
from benchmarks.harness.gpu_cases import GEMM_ROWS, GemmCase, RowCase
from benchmarks.harness.gpu_environment import Gpu, find_gpu, load_builds
from benchmarks.harness.gpu_report import attempt
from benchmarks.harness.table import Table, cell

Case = GemmCase | RowCase
NOW = "now"


def with_build(case: Case, kernel: ModuleType) -> Case:
    """The same operands for another build."""
    other = copy.copy(case)
    if isinstance(case, GemmCase):
        other.kernel = kernel
    else:
        other.function = getattr(kernel, case.function.__name__)
    return other


def result(case: Case) -> torch.Tensor:
    """The bytes that the case's build makes of its first operands."""
    if isinstance(case, GemmCase):
        got = case.ours(0)
    else:
        x, second, *others = case.arguments(0)
        got = case.function(x, second.clone(), *others)  # the residual is updated in place
    return got.view(torch.uint8).clone()


def sizes_of(operator: str, args) -> list[Size]:
    if operator != "skinny_gemm":
        return args.rows or list(BOUNDS[operator])
    weights = args.size or list(dict.fromkeys(size[1:] for size in BOUNDS[operator]))
    return [(m, n, k) for n, k in weights for m in args.rows or GEMM_ROWS if m <= max(GEMM_ROWS)]


def row(case: Case, others: dict[str, ModuleType], now: ModuleType, args) -> tuple[list[str], bool, dict]:
    """The cells of this build and of the others, "-" for what is not right; whether all are; the samples."""

    def verified(name: str, kernel: ModuleType) -> tuple[Case, torch.Tensor]:
        one = with_build(case, kernel)
        one.verify_ours(name)
        return one, result(one)

    builds = {NOW: now, **others}
    tried = {
        name: attempt(f"{case.name}, {name}", lambda n=name, k=kernel: verified(n, k))
        for name, kernel in builds.items()
    }
    bits = {name: found[1] for name, found in tried.items() if found}
    # Not before all have run on the same residual: launches to be recorded run first, and update it.
    right: dict[str, gpu_timing.Recorded] = {}
    for name, found in tried.items():
        if found and (one := attempt(f"{case.name}, {name}", lambda c=found[0]: gpu_timing.record(c.ours, c.count))):
            right[name] = one
    if NOW not in right:
        return ["-"] * (2 + 4 * len(others)), False, {}
    times = gpu_report.times_of(right, args)
    cells = [cell(times[NOW].median_us), cell(times[NOW].spread_us)]
    for name in others:
        if name in times:
            gain = times[name].median_us / times[NOW].median_us - 1
            same = "yes" if torch.equal(bits[name], bits[NOW]) else "no"
            cells += [cell(times[name].median_us), cell(times[name].spread_us), f"{gain:.1%}", same]
        else:
            cells += ["-"] * 4
    return cells, len(right) == len(builds), gpu_report.raw(times)


def run(gpu: Gpu, args) -> dict:
    """The tables, a row as it comes; the figures for --json, and whether every build was right."""
    others = load_builds(args.builds, gpu.backend, {NOW})
    generator, figures = gpu_report.begin(gpu, args)
    results, all_right = [], True
    for operator in args.only or BOUNDS:
        columns = [column for name in others for column in (name, "±", "gain", "same bits")]
        columns = [gpu_report.size_title(operator), NOW, "±", *columns]
        table = Table(columns, [NOW, *others], gpu_report.title(operator))
        for size in sizes_of(operator, args):
            case = gpu_report.make_case(gpu, operator, size, generator)
            cells, right, samples = row(case, others, gpu.kernel, args)
            table.row(gpu_report.shown(size), *cells)
            all_right &= right
            results.append({"operator": operator, "size": size, "times": samples})
    return figures | {"results": results, "all right": all_right}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, BOUNDS)
    parser.add_argument("builds", type=Path, nargs="+", metavar="FOLDER", help="another checkout, with a build")
    gpu_report.add_sizes(parser)
    gpu_report.add_rows(parser)
    args = parser.parse_args(argv)
    figures = gpu_report.figures_of("gpu_builds", lambda: run(find_gpu(), args), args)
    return 0 if figures and figures["all right"] else 1
