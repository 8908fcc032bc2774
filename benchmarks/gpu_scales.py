"""Computed scales on an NVIDIA GPU: every mode beside the static one and torch.compile of the same, as markdown.

    python -m benchmarks measure scales --write docs/performance.md

bfloat16, e4m3fn. Every line's cases were verified, then timed in turn in this process (harness/gpu_timing.py). In
brackets behind a mode: its time by the static one's. The floor is the bytes that must be moved, scales of groups
included, at the rate that the vendor publishes. "torch" is what torch.compile makes of the reference's computation.
"""

import time
from collections.abc import Callable, Iterator
from types import ModuleType

import torch

from benchmarks.harness import gpu_report, gpu_timing
from benchmarks.harness.gpu_cases import EPSILON, Wrong
from benchmarks.harness.gpu_environment import find_gpu
from benchmarks.harness.gpu_report import attempt, note
from benchmarks.harness.gpu_timing import record
from benchmarks.harness.table import Table, cell

ROWS = (1, 8, 32, 128, 512, 2048)
WIDTHS = (2048, 4096, 5120, 6144, 7168, 8192, 16384)
# Operands in rotation, at most: few rows come from L2, as they do behind another kernel.
MOST_COPIES = 512
# Compiling for torch takes seconds a case.
TORCH_ROWS, TORCH_WIDTHS = (1, 32, 128, 2048), (4096, 7168, 16384)
# Bytes an element of the result.
OPERATORS = {"quantize_fp8": 3, "add_rms_norm_dynamic_fp8": 7, "swiglu_dynamic_fp8": 5}
MODES = {
    "row": dict(scaling="row"),
    "1x128": dict(scaling="group"),
    "1x32 UE8M0": dict(scaling="group", group_size=32, scale_dtype=torch.float8_e8m0fnu),
    "tensor": dict(scaling="tensor"),
}
TORCH_MODES = ("row", "1x128", "tensor")


class Case:
    """Rotated operands of an operator at one size."""

    def __init__(self, kernel: ModuleType, operator: str, rows: int, d: int, generator: torch.Generator):
        self.kernel, self.operator, self.name = kernel, operator, f"{operator} [{rows}, {d}]"
        self.bytes = rows * d * OPERATORS[operator]
        self.count = min(gpu_timing.copies(self.bytes), MOST_COPIES)
        device = generator.device

        def normal(columns: int = d) -> list[torch.Tensor]:
            one = torch.randn((self.count, rows, columns), generator=generator, device=device, dtype=torch.bfloat16)
            return list(one.unbind())

        self.x = normal(2 * d if operator == "swiglu_dynamic_fp8" else d)
        # Every launch adds x once more.
        self.residual = normal() if operator == "add_rms_norm_dynamic_fp8" else None
        if self.residual:
            self.x = [x / 8 for x in self.x]
        self.weight = torch.rand(d, generator=generator, device=device).to(torch.bfloat16)
        self.scale = torch.tensor([0.02], device=device)
        out = torch.empty((self.count, rows, d), dtype=torch.uint8, device=device)
        self.out = list(out.view(torch.float8_e4m3fn).unbind())

    def inputs(self, i: int, residual: torch.Tensor | None = None) -> tuple:
        if self.residual:
            return self.x[i], self.residual[i] if residual is None else residual, self.weight, EPSILON
        return (self.x[i],)

    def static(self, i: int) -> None:
        if self.operator == "quantize_fp8":
            self.kernel.quantize_fp8(self.x[i], self.scale, out=self.out[i])
        elif self.residual:
            x, residual, weight, epsilon = self.inputs(i)
            self.kernel.add_rms_norm_fp8(x, residual, weight, self.scale, epsilon, out=self.out[i])
        else:
            self.kernel.swiglu_fp8(self.x[i], self.scale, out=self.out[i])

    def computed(self, mode: str) -> Callable[[int], None]:
        function, options = getattr(self.kernel, self.operator), MODES[mode]
        _, scale = function(*self.inputs(0), **options, out=self.out[0])
        return lambda i: function(*self.inputs(i), **options, out=self.out[i], scale_out=scale)

    def verify(self, mode: str, function: Callable | None = None) -> None:
        """What is timed gives the reference's values, but for what the order of a sum, silu's last bits and
        torch.compile's rounding points change: here and there a code, or a scale with all of its codes."""
        reference = getattr(self.kernel.reference, self.operator)
        ours = function is None
        function = function or getattr(self.kernel, self.operator)
        results = []
        for one in (function, reference):
            inputs = self.inputs(0, self.residual[0].clone() if self.residual else None)
            options = MODES[mode] if ours or one is reference else {}
            results.append(one(*inputs, **options))
        got, want = (self.values(*result) for result in results)
        error = ((got - want).abs().mean() / want.abs().mean()).item()
        if not error < 0.01:
            raise Wrong(f"{self.name}, {mode}: {error:.2%} from the reference on average")

    @staticmethod
    def values(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """What q and its scales stand for."""
        rows = q.float().unflatten(-1, (scale.shape[-1], -1))
        return rows * scale.float().reshape(*scale.shape, 1)

    def by_torch(self, mode: str) -> Callable:
        torch._dynamo.reset()
        reference, options = getattr(self.kernel.reference, self.operator), MODES[mode]
        return torch.compile(lambda *inputs: reference(*inputs, **options), dynamic=False)


def recorded_cases(case: Case, torchs: bool) -> Iterator[tuple[str, gpu_timing.Recorded]]:
    yield "static", record(case.static, case.count)
    for mode in MODES:
        case.verify(mode)
        yield mode, record(case.computed(mode), case.count)
    for mode in TORCH_MODES if torchs else ():

        def inductor(mode: str = mode) -> gpu_timing.Recorded:
            compiled = case.by_torch(mode)
            case.verify(mode, compiled)
            return record(lambda i: compiled(*case.inputs(i)), case.count)

        if (one := attempt(f"torch.compile, {case.name}, {mode}", inductor)) is not None:
            yield f"torch {mode}", one


def cells(case: Case, times: dict[str, gpu_timing.Times], memory_rate: float, size: str) -> list[str]:
    static = times["static"].median_us
    floor = gpu_timing.floor_us(case.bytes, times.values(), memory_rate)
    modes = [f"{cell(times[m].median_us)} ({times[m].median_us / static:.2f})" for m in MODES]
    torchs = [cell(times[f"torch {m}"].median_us) if f"torch {m}" in times else "" for m in TORCH_MODES]
    return [size, cell(floor), cell(static), *modes, *torchs]


def run(args) -> dict:
    gpu = find_gpu()
    began, results = time.monotonic(), []
    generator, figures = gpu_report.begin(gpu, args)
    for operator in args.only or OPERATORS:
        timed = ["floor", "static", *MODES, *(f"torch {m}" for m in TORCH_MODES)]
        table = Table(["rows x d", *timed], timed, f"{operator} of bfloat16: microseconds")
        for rows in ROWS:
            for d in WIDTHS:
                case = Case(gpu.kernel, operator, rows, d, generator)
                note(f"[{time.monotonic() - began:.0f} s] {case.name}")
                torchs = not args.without_torch and rows in TORCH_ROWS and d in TORCH_WIDTHS
                times = gpu_report.times_of(dict(recorded_cases(case, torchs)), args)
                table.row(*cells(case, times, figures["memory_bytes_per_us"], f"{rows} x {d}"))
                found = {"operator": operator, "size": [rows, d], "bytes": case.bytes, "times": gpu_report.raw(times)}
                results.append(found)
    return figures | {"results": results}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, OPERATORS)
    parser.add_argument("--without-torch", action="store_true", help="ours alone, in a minute")
    args = parser.parse_args(argv)
    return 1 if gpu_report.figures_of("gpu_scales", lambda: run(args), args) is None else 0
