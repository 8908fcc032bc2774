#!/usr/bin/env python3
"""block_scaled_gemm and int8_gemm beside what else computes the same on an NVIDIA GPU, as markdown.

    python -m benchmarks.gpu_gemms [--only block_scaled_gemm] [--check] [--write docs/performance.md]

The sizes are those of the AMD FP8 GEMM challenge, DeepSeek-V3's with few rows, and OPT's linears. Each row is timed in
turn in this process (harness/gpu_timing.py) and verified before. Peers: DeepGEMM where it can be imported, and
torch._scaled_mm with scales of rows, which computes less; torch.mm in float16, and torch._int_mm with an epilogue that
torch.compile makes.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import torch

from benchmarks.harness import gpu_report, gpu_timing
from benchmarks.harness.gpu_cases import Wrong
from benchmarks.harness.gpu_environment import Gpu, find_gpu
from benchmarks.harness.gpu_report import attempt, cell, note, table_header, table_row
from benchmarks.harness.gpu_timing import copies, record

Size = tuple[int, int, int]
BLOCK = 128
CHALLENGE = tuple(
    (m, n, k)
    for m in (1024, 6144)
    for n, k in (
        *((1536, 7168), (3072, 1536), (576, 7168), (7168, 256), (7168, 2048), (4608, 7168), (7168, 2304)),
        *((512, 7168), (4096, 512)),
    )
)
DECODE = tuple(
    (m, n, k)
    for n, k in ((2112, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048))
    for m in (1, 16, 64, 128)
)
# Of the 1.3B, 6.7B and 13B models: attention's projections, and both linears behind it.
OPT = tuple((m, n, k) for d in (2048, 4096, 5120) for m in (32, 512, 2048) for n, k in ((d, d), (4 * d, d), (d, 4 * d)))
OPT_DECODE = tuple((1, n, k) for n, k in ((4096, 16384), (16384, 4096), (5120, 20480), (20480, 5120)))


@dataclass(frozen=True)
class Bound:
    """Of a series: what the fastest peer's time by ours must be, in the geometric mean and at each size."""

    mean: float
    least: float


class BlockScaled:
    """FP8 [m, k] and [n, k], scales of 1x128 and 128x128, result bfloat16."""

    peers = {"deepgemm": "DeepGEMM", "scaled_mm": "torch._scaled_mm, rows"}

    def __init__(self, kernel: ModuleType, size: Size, generator: torch.Generator):
        (m, n, k), device = size, generator.device
        self.kernel, self.moved = kernel, m * k + n * k + 2 * m * n
        self.count = copies(self.moved)
        fp8 = kernel.fp8_dtype(device)

        def codes(rows: int) -> torch.Tensor:
            return torch.randn((rows, k), generator=generator, device=device, dtype=torch.bfloat16).to(fp8)

        def scales(*shape: int) -> torch.Tensor:
            return torch.rand(shape, generator=generator, device=device) / 16 + 0.01

        blocks, rows = -(-k // BLOCK), -(-m // 4) * 4
        self.a, self.b = ([codes(each) for _ in range(self.count)] for each in (m, n))
        # Column-major, as DeepGEMM wants them; ours takes either.
        self.scale_a, self.scale_b = scales(blocks, rows).t()[:m], scales(-(-n // BLOCK), blocks)
        self.row_scale, self.column_scale = scales(m, 1), scales(1, n)
        self.out = [torch.empty((m, n), dtype=torch.bfloat16, device=device) for _ in range(self.count)]

    def ours(self, i: int) -> torch.Tensor:
        return self.kernel.block_scaled_gemm(
            self.a[i], self.b[i], self.scale_a, self.scale_b, out=self.out[i], constant_b=True
        )

    def deepgemm(self, i: int) -> torch.Tensor:
        import deep_gemm

        deep_gemm.fp8_gemm_nt(
            (self.a[i], self.scale_a), (self.b[i], self.scale_b), self.out[i], disable_ue8m0_cast=True
        )
        return self.out[i]

    def scaled_mm(self, i: int) -> torch.Tensor:
        return torch._scaled_mm(
            self.a[i], self.b[i].t(), self.row_scale, self.column_scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    @cached_property
    def want(self) -> torch.Tensor:
        return self.kernel.reference.block_scaled_gemm(
            self.a[0], self.b[0], self.scale_a, self.scale_b, out_dtype=torch.float32
        )

    def verify(self) -> None:
        """Beside the reference, in float32: sums of FP8 products on Hopper keep 14 bits (docs/numerics.md)."""
        self.out[0].fill_(math.nan)
        got, want = self.ours(0).float(), self.want
        if not (got - want).abs().max() <= 0.01 * want.abs().max():
            raise Wrong("block_scaled_gemm: differs from the reference by more than 1 % of the largest result")


class Int8:
    """int8 [m, k] and [n, k], scales of rows and columns, a bias, result float16: a dynamic W8A8 linear."""

    peers = {"float16": "torch.mm, float16", "int_mm": "torch._int_mm, compiled epilogue"}

    def __init__(self, kernel: ModuleType, size: Size, generator: torch.Generator):
        (m, n, k), device = size, generator.device
        self.kernel, self.moved = kernel, m * k + n * k + 2 * m * n
        self.count = copies(self.moved)

        def codes(rows: int) -> torch.Tensor:
            return torch.randint(-128, 128, (rows, k), generator=generator, device=device).to(torch.int8)

        def numbers(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device)

        self.a, self.b = ([codes(each) for _ in range(self.count)] for each in (m, n))
        self.scale_a, self.scale_b = numbers(m, 1).abs() / k, numbers(1, n).abs() / 128
        self.bias = numbers(n).half()
        self.out = [torch.empty((m, n), dtype=torch.float16, device=device) for _ in range(self.count)]
        self.compiled = None

    def ours(self, i: int) -> torch.Tensor:
        return self.kernel.int8_gemm(
            self.a[i], self.b[i], self.scale_a, self.scale_b, self.bias, out=self.out[i], constant_b=True
        )

    def float16(self, i: int) -> torch.Tensor:
        # Operands of other values, of as many rows: it moves twice the bytes.
        if not hasattr(self, "halves"):
            self.halves = [(a.half(), b.half()) for a, b in zip(self.a, self.b)]
        a, b = self.halves[i]
        return torch.mm(a, b.t(), out=self.out[i])

    def int_mm(self, i: int) -> torch.Tensor:
        if self.compiled is None:
            torch._dynamo.reset()  # each size is compiled by itself

            def linear(a, b, scale_a, scale_b, bias):
                return (torch._int_mm(a, b.t()).float() * scale_a * scale_b + bias).half()

            self.compiled = torch.compile(linear, dynamic=False)
        return self.compiled(self.a[i], self.b[i], self.scale_a, self.scale_b, self.bias)

    @cached_property
    def want(self) -> torch.Tensor:
        operands = (self.a[0], self.b[0], self.scale_a, self.scale_b, self.bias)
        return self.kernel.reference.int8_gemm(*operands, out_dtype=torch.float16)

    def verify(self) -> None:
        """Every byte: sums are exact."""
        self.out[0].fill_(math.nan)
        if not torch.equal(self.ours(0).view(torch.int16), self.want.view(torch.int16)):
            raise Wrong("int8_gemm: other bytes than the reference's")


# Of --check: title, case, sizes, bound.
SERIES: dict[str, list[tuple[str, type, tuple[Size, ...], Bound]]] = {
    "block_scaled_gemm": [
        ("the challenge's sizes", BlockScaled, CHALLENGE, Bound(1.0, 1 / 1.1)),
        ("DeepSeek-V3, few rows", BlockScaled, DECODE, Bound(1.05, 1.0)),
    ],
    "int8_gemm": [
        ("OPT's linears", Int8, OPT, Bound(1.5, 1.0)),
        ("OPT's linears, one row", Int8, OPT_DECODE, Bound(1.0, 1.0)),
    ],
}


def run(gpu: Gpu, args) -> tuple[list[str], dict]:
    """The tables, each row as it comes; the bounds that are missed, and the figures for --json."""
    generator, figures = gpu_report.begin(gpu, args)
    rate, results, missed = figures["memory_bytes_per_us"], [], []
    for operator in args.only or SERIES:
        for title, make, sizes, bound in SERIES[operator]:
            print(f"\n### {operator}: {title}: microseconds\n")
            print(table_header(["M, N x K", "ours", "±", *make.peers.values(), "share of memory rate", "ratio"]))
            ratios = []
            for size in sizes:
                case = make(gpu.kernel, size, generator)
                case.verify()
                launches: dict[str, Callable] = {"ours": case.ours} | {name: getattr(case, name) for name in make.peers}
                recorded = {
                    name: attempt(f"{name}, {size}", lambda launch=launch: record(launch, case.count))
                    for name, launch in launches.items()
                }
                times = gpu_timing.measure(
                    {name: one for name, one in recorded.items() if one}, gpu_report.effort(args)
                )
                ours = times["ours"]
                others = [times[name].median_us for name in make.peers if name in times]
                ratios.append(min(others, default=math.nan) / ours.median_us)
                cells = [f"{size[0]}, {size[1]} x {size[2]}", cell(ours.median_us), cell(ours.spread_us)]
                cells += [cell(times[name].median_us if name in times else None) for name in make.peers]
                print(table_row([*cells, cell(case.moved / rate / ours.median_us), cell(ratios[-1])]), flush=True)
                results.append(
                    {"operator": operator, "size": size, "times": {name: one.raw() for name, one in times.items()}}
                )
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"\nGeometric mean of the ratios: {cell(mean)}; least {cell(min(ratios))}", flush=True)
            if not (mean >= bound.mean and min(ratios) >= bound.least):
                missed.append(
                    f"{operator}, {title}: mean {mean:.2f}, least {min(ratios):.2f};"
                    f" bounds {bound.mean:.2f}, {bound.least:.2f}"
                )
    return missed, figures | {"results": results}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, list(SERIES))
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is missed")
    args = parser.parse_args(argv)
    missed: list[str] = []

    def measure() -> dict:
        found, figures = run(find_gpu(), args)
        missed.extend(found)
        return figures

    if gpu_report.figures_of("gpu_gemms.py", measure, args) is None:
        return 1
    for line in missed:
        note(f"bound missed: {line}")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
