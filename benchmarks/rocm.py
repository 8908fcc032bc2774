"""The GPU operators beside what others have published for an MI300X, as markdown.

    make bench-rocm VENV=/path/to/an/environment/with/torch/for/ROCm
    python -m benchmarks measure rocm --json figures.json      # with a build of the variant at hand

Everything in one table row was timed in turn in this process (harness/gpu_timing.py), and verified before. The
floor is the bytes that must be moved at the memory's rate, as in benchmarks/cuda.py; it leaves out the launch, whose
own floor stands above the tables.
"""

import torch

from benchmarks.harness import gpu_report, gpu_timing, published
from benchmarks.harness.gpu_cases import GemmCase, RowCase, forced
from benchmarks.harness.gpu_environment import Gpu, find_gpu
from benchmarks.harness.gpu_report import Cases, attempt
from benchmarks.harness.gpu_timing import Recorded, Times, record
from benchmarks.harness.table import Table, cell

PUBLISHED = {
    "add_rms_norm_fp8": published.ADD_RMS_NORM_FP8,
    "swiglu_fp8": published.SWIGLU_FP8,
    "skinny_gemm": published.SKINNY_GEMM,
}
WIDTHS = {"swiglu_fp8": 2 * published.SWIGLU_WIDTH}  # of rows, where it is not 16384
TITLES = gpu_report.TITLES | {"direct": "direct kernel"}


def record_rows(case: RowCase, compiled: bool) -> Cases:
    case.verify_ours()
    return {"ours": record(case.ours, case.count)} | gpu_report.torchs_rows(case, compiled)


def record_gemm(case: GemmCase, backend: str) -> Cases:
    with forced("skinny_gemm", None):
        case.verify_ours()
        cases = {"ours": record(case.ours, case.count)}
    if backend == "rocm":

        def direct() -> Recorded:
            with forced("skinny_gemm", "fallback"):
                case.verify_ours("the direct kernel")
                return record(case.ours, case.count)

        cases["direct"] = attempt(f"the direct kernel, {case.name}", direct)
    return cases | gpu_report.torchs_gemm(case)


def begun(operator: str, competitors: list[str]) -> Table:
    others = [TITLES.get(name, name) for name in competitors if name != "ours"] + ["published"]
    columns = [gpu_report.size_title(operator), "floor", "ours", "±", "GB/s", *others, "ours / published"]
    return Table(columns, ["floor", "ours", *others], gpu_report.title(operator, WIDTHS.get(operator)))


def cells_of(
    size: str, moved: int, times: dict[str, Times | None], floor: float, published_us: float, same: bool
) -> list[str]:
    """A row of a table. `same`: this is the GPU that the published figure is of, else there is no ratio to give."""
    ours = times["ours"]
    cells = [size, cell(floor), cell(ours.median_us), cell(ours.spread_us), cell(moved / ours.median_us / 1e3, 0)]
    cells += [cell(other and other.median_us) for name, other in times.items() if name != "ours"]
    return [*cells, cell(published_us), cell(ours.median_us / published_us if same else None)]


def table(gpu: Gpu, operator: str, args, generator: torch.Generator, memory_rate: float) -> list[dict]:
    """Times an operator at every published size; prints each row as it comes. Returns the raw figures."""
    results, shown = [], None
    for size, others in PUBLISHED[operator].items():
        case = gpu_report.make_case(gpu, operator, size, generator, WIDTHS.get(operator))
        cases = record_gemm(case, gpu.backend) if operator == "skinny_gemm" else record_rows(case, args.compile)
        times = gpu_report.times_of(cases, args)
        shown = shown or begun(operator, list(times))
        floor = gpu_timing.floor_us(case.bytes, times.values(), memory_rate)
        same = gpu.arch == "gfx942"
        shown.row(*cells_of(gpu_report.shown(size), case.bytes, times, floor, others.kernel_us, same))
        results.append(
            {
                "operator": operator,
                "size": size,
                "bytes": case.bytes,
                "copies": case.count,
                "times": gpu_report.raw(times),
                "published": vars(others),
            }
        )
    return results


def run(gpu: Gpu, args) -> dict:
    generator, figures = gpu_report.begin(gpu, args)
    print(f"- published: {published.SOURCE}, on an MI300X")
    results = []
    for operator in args.only or PUBLISHED:
        results += table(gpu, operator, args, generator, figures["memory_bytes_per_us"])
    return figures | {"published": published.SOURCE, "results": results}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, PUBLISHED)
    parser.add_argument("--compile", action="store_true", help="time torch.compile's row operators too (slow to start)")
    args = parser.parse_args(argv)
    return 1 if gpu_report.figures_of("rocm", lambda: run(find_gpu(), args), args) is None else 0
