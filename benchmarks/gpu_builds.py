#!/usr/bin/env python3
"""This checkout's build beside those of other checkouts, on this GPU, as markdown: what a change gains or costs.

    git worktree add ../before HEAD~1
    python scripts/build.py --backend cuda --source ../before
    python -m benchmarks.gpu_builds ../before --only skinny_gemm --size 4096x4096 --rows 1 --rows 32

All builds get the same operands; each is verified before it is timed, and all of a table row are timed in turn. The
gain is the other build's time by this one's, less one; "same bits" says whether their results are. Builds are told
apart by the trees they were made of: each by another commit, or with changes of its own.
"""

import copy
import sys
from pathlib import Path
from types import ModuleType

import torch
from kernels import get_local_kernel

from benchmarks.cuda import BOUNDS, Size
from benchmarks.harness import gpu_report, gpu_timing
from benchmarks.harness.gpu_cases import GEMM_ROWS, GemmCase, RowCase
from benchmarks.harness.gpu_environment import Gpu, Missing, find_gpu, random_numbers
from benchmarks.harness.gpu_report import attempt, cell, note, table_header, table_row
from benchmarks.tune_skinny_gemm import sweep_parser

Case = GemmCase | RowCase
NOW = "now"


def load_build(folder: Path, backend: str) -> ModuleType:
    """The package from folder/build."""
    try:
        return get_local_kernel(folder.resolve(), backend=backend)
    except (FileNotFoundError, ImportError, RuntimeError, ValueError) as error:
        raise Missing(f"{folder}: {' '.join(str(error).split())}") from None


def load_builds(folders: list[Path], backend: str, taken: set[str]) -> dict[str, ModuleType]:
    """Them by the folders' names, which are to be the columns of a table beside those that are taken."""
    builds = {folder.resolve().name: load_build(folder, backend) for folder in folders}
    if len(builds) < len(folders) or builds.keys() & taken:
        raise Missing(f"folders of one name, or called {' or '.join(sorted(taken))}: a table could not tell them apart")
    return builds


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


def row(
    case: Case, others: dict[str, ModuleType], now: ModuleType, effort: gpu_timing.Effort
) -> tuple[list[str], bool]:
    """The cells of this build and of the others, "-" for what is not right; whether all are."""

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
        return ["-"] * (2 + 4 * len(others)), False
    times = gpu_timing.measure(right, effort)
    cells = [cell(times[NOW].median_us), cell(times[NOW].spread_us)]
    for name in others:
        if name in times:
            gain = times[name].median_us / times[NOW].median_us - 1
            same = "yes" if torch.equal(bits[name], bits[NOW]) else "no"
            cells += [cell(times[name].median_us), cell(times[name].spread_us), f"{gain:.1%}", same]
        else:
            cells += ["-"] * 4
    return cells, len(right) == len(builds)


def compare(gpu: Gpu, others: dict[str, ModuleType], args) -> bool:
    """The tables, a row as it comes; whether every build was right."""
    generator = random_numbers(gpu.device, args.seed)
    print(gpu_report.heading(gpu, generator))
    all_right = True
    for operator in args.only or BOUNDS:
        print(f"\n### {gpu_report.title(operator)}\n")
        columns = [column for name in others for column in (name, "±", "gain", "same bits")]
        print(table_header([gpu_report.size_title(operator), NOW, "±", *columns]))
        for size in sizes_of(operator, args):
            cells, right = row(gpu_report.make_case(gpu, operator, size, generator), others, gpu.kernel, args.effort)
            print(table_row([gpu_report.shown(size), *cells]), flush=True)
            all_right &= right
    return all_right


def main(argv: list[str] | None = None) -> int:
    parser = sweep_parser(__doc__)
    parser.add_argument("builds", type=Path, nargs="+", metavar="FOLDER", help="another checkout, with a build")
    parser.add_argument("--only", action="append", choices=BOUNDS, metavar="OPERATOR", help=", ".join(BOUNDS))
    parser.add_argument("--rows", type=int, action="append", metavar="M", help="may be repeated")
    args = parser.parse_args(argv)
    try:
        gpu = find_gpu()
        others = load_builds(args.builds, gpu.backend, {NOW})
        return 0 if compare(gpu, others, args) else 1
    except Missing as error:
        note(f"gpu_builds.py: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
