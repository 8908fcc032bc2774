"""What others have published for these operators on an MI300X (harness/published.py), as a markdown table.

    python -m benchmarks compare published [--all] [--write docs/performance.md]

Beside the times stand the simulator's estimates of the article's own kernels (from the recordings of
simulator/calibration) and of this package's, with one clock and the same way of timing. Needs the ROCm variant
(scripts/build.py --backend rocm). Estimates rank; they are no measurement (simulator/README.md).
"""

import argparse
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import simulate
from benchmarks.harness import gpu_environment, sections
from benchmarks.harness.published import ADD_RMS_NORM_FP8, ROWS, SKINNY_GEMM, SWIGLU_FP8, SWIGLU_WIDTH, Published
from benchmarks.harness.table import Table, cell
from simulator.calibration.store import load_all
from simulator.timing import cost


@dataclass(frozen=True)
class Case:
    """`arguments` are benchmarks/simulate.py's, `theirs` and `vllm` begin the names of stored recordings."""

    arguments: str
    published: Published
    theirs: str
    vllm: str = ""
    warm: bool = True

    @property
    def size(self) -> str:
        return self.theirs.rpartition(" ")[2]


def cases(everything: bool) -> Iterator[Case]:
    some = ROWS if everything else (1, 32, 256, 2048)
    for rows in some:
        yield Case(
            f"add_rms_norm_fp8 --rows {rows} --d 16384", ADD_RMS_NORM_FP8[rows],
            f"hf-rocm-kernels RMSNorm {rows}x16384", f"vLLM RMSNorm {rows}x16384",
        )  # fmt: skip
    for rows in some:
        yield Case(
            f"swiglu_fp8 --rows {rows} --d {SWIGLU_WIDTH}", SWIGLU_FP8[rows],
            f"hf-rocm-kernels SwiGLU {rows}x{SWIGLU_WIDTH}",
        )  # fmt: skip
    for (m, n, k), published in SKINNY_GEMM.items():
        if everything or m in (1, 32):
            name = f"hf-rocm-kernels GEMM {m}x{n}x{k}"
            yield Case(f"skinny_gemm --m {m} --n {n} --k {k}", published, name, warm=False)


TIMES = [*(f"measured: {name}" for name in ("theirs", "vLLM", "torch"))]
TIMES += [*(f"estimated: {name}" for name in ("theirs", "vLLM", "ours"))]


def cells_of(case: Case, theirs: float, vllm: float | None, ours: float) -> list[str]:
    """Of the table; estimates in seconds."""
    measured = [case.published.kernel_us, case.published.vllm_us, case.published.torch_us]
    estimated = [1e6 * theirs, vllm and 1e6 * vllm, 1e6 * ours]
    return [f"{case.arguments.split()[0]} {case.size}", *map(cell, measured + estimated), cell(ours / theirs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all sizes of the article")
    parser.add_argument("--sample", type=int, default=4, help="workgroups to run of each of ours (default: 4)")
    sections.add_options(parser)
    args = parser.parse_args()
    device = simulate.Device()
    stored = {each.name.partition(" of ")[0].partition(" in ")[0]: each.recording for each in load_all()}
    known = json.loads(cost.CALIBRATION.read_text())["kinds"]
    errors = ", ".join(f"{name} {100 * each['error']:.1f} %" for name, each in known.items())
    with sections.recorded("published_mi300x", args):
        print(f"- microseconds; commit {gpu_environment.commit()}, {datetime.date.today()}; mean errors: {errors}")
        print("- estimated: theirs is a ring (GEMM) and rows, ours a GEMM and rows\n")
        table = Table(["operator, size", *TIMES, "ours / theirs"], TIMES)
        for case in cases(args.all):
            command = [*case.arguments.split(), "--sample", str(args.sample)]
            _, _, recording = device.run(simulate.parse(command))
            estimates = [
                cost.estimate(each, warm=case.warm).seconds if each else None
                for each in (stored[case.theirs], stored.get(case.vllm), recording)
            ]
            table.row(*cells_of(case, *estimates))
