"""A decoder layer's kernels one after the other, beside torch's, on this GPU, as markdown.

    python -m benchmarks model kernels
    python -m benchmarks model kernels ../before --only "Llama 3.1 8B" --rows 1      # and another checkout's build

An operator timed in a series of itself always follows, and is followed by, its own kind; in a model each begins while
another kernel ends. Here are the FP8 parts of a layer in their order, weights of several layers in rotation: addition,
norm and quantisation; QKV; O; again a norm; gate and up; SwiGLU; down. Attention is not this package's: in its place
stands a small addition of torch's, which overlaps nothing. torch's layer is torch.compile's norm and SwiGLU and
torch._scaled_mm; "alone" is ours without overlap. The floor is the weights' bytes at the memory's rate (as in
benchmarks/cuda.py), the share the floor by our time, the ratio torch's time by ours. All of a table row are timed
in turn, after a layer's results were compared with the reference's.
"""

import functools
from pathlib import Path
from types import ModuleType

import torch

from benchmarks.gpu_builds import NOW
from benchmarks.harness import gpu_report, gpu_timing
from benchmarks.harness.gpu_cases import EPSILON, GEMM_ROWS, Wrong, without_overlap
from benchmarks.harness.gpu_environment import Gpu, find_gpu, load_builds
from benchmarks.harness.gpu_report import attempt, note
from benchmarks.harness.shapes import LLAMA_8B, LLAMA_70B_TP8, LLAMA_405B_TP8, LlamaShapes
from benchmarks.harness.table import Table, cell

QWEN_14B = LlamaShapes("Qwen2.5 14B", hidden=5120, heads=40, kv_heads=8, intermediate=13824)
LAYERS = {shapes.name: shapes for shapes in (LLAMA_8B, QWEN_14B, LLAMA_70B_TP8, LLAMA_405B_TP8)}
DTYPE = torch.bfloat16
# Of a result's root mean square, that of its error. Sums in another order may make another FP8 number of one value in a
# thousand, 2^-4 of it away; the results are rounded at 2^-9.
TOLERANCE = 2**-6
# What torch.compile makes of the reference leaves out roundings at 2^-9, and so takes the neighbour of many an FP8
# number, twice in a layer; torch._scaled_mm keeps fewer bits of its sums. 7 % were seen.
TORCHS_TOLERANCE = 2**-3


class Layer:
    """A decoder layer's operands for `rows` tokens; `run(kernel, i)` launches its i-th copy's kernels."""

    def __init__(
        self, reference: ModuleType, shapes: LlamaShapes, rows: int, fp8: torch.dtype, generator: torch.Generator
    ):
        self.name, self.reference = f"{shapes.name}, {rows} rows", reference
        linears = shapes.linears
        self.bytes = sum(n * k for n, k in linears.values())
        self.count = gpu_timing.copies(self.bytes)
        self.inputs = {name: k for name, (_, k) in linears.items()}
        new = functools.partial(torch.randn, generator=generator, device=generator.device, dtype=DTYPE)
        self.weights = [{name: new(n, k).to(fp8) for name, (n, k) in linears.items()} for _ in range(self.count)]
        self.attended = new(rows, self.inputs["O"]).to(fp8)
        # What a layer adds to the residual is small: it does so thousands of times.
        self.x, self.residual_before = new(rows, shapes.hidden) / 64, new(rows, shapes.hidden)
        self.residual = self.residual_before.clone()
        self.norm_weight = new(shapes.hidden).abs()
        self.scale = torch.tensor(0.02, device=generator.device)
        self.scales_b = {name: torch.tensor(k**-0.5 / 64, device=generator.device) for name, k in self.inputs.items()}
        self.attention = torch.zeros(rows, self.inputs["O"], device=generator.device, dtype=DTYPE)
        if generator.device.type == "cuda":
            torch.cuda.synchronize()  # the weights are constants from here on

    def run(self, kernel: ModuleType, i: int) -> torch.Tensor:
        def linear(a: torch.Tensor, name: str) -> torch.Tensor:
            b = self.weights[i][name]
            return kernel.skinny_gemm(a, b, self.scale, self.scales_b[name], out_dtype=DTYPE, constant_b=True)

        def norm(x: torch.Tensor) -> torch.Tensor:
            return kernel.add_rms_norm_fp8(x, self.residual, self.norm_weight, self.scale, EPSILON)

        linear(norm(self.x), "QKV")
        self.attention.add_(1)
        gate_up = linear(norm(linear(self.attended, "O")), "Gate/Up")
        return linear(kernel.swiglu_fp8(gate_up, self.scale), "Down")

    def results(self, kernel: ModuleType) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's result, and what it leaves in the residual."""
        self.residual.copy_(self.residual_before)
        return self.run(kernel, 0).float(), self.residual.float()

    @functools.cached_property
    def wanted(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.results(self.reference)

    def verify(self, kernel: ModuleType, what: str, tolerance: float) -> None:
        for got, want in zip(self.results(kernel), self.wanted, strict=True):
            error = ((got - want).square().mean() / want.square().mean()).sqrt().item()
            if not error <= tolerance:
                raise Wrong(f"{what}, {self.name}: {error:.2%} of the reference's layer away from it")

    def recorded(self, kernel: ModuleType, what: str, tolerance: float = TOLERANCE) -> gpu_timing.Recorded:
        self.verify(kernel, what, tolerance)
        return gpu_timing.record(lambda i: self.run(kernel, i), self.count)


class Torchs:
    """The operators as torch alone has them."""

    def __init__(self, reference: ModuleType):
        torch._dynamo.reset()  # sizes are compiled in, and torch stops compiling a function after a few
        self.add_rms_norm_fp8 = torch.compile(reference.add_rms_norm_fp8, dynamic=False)
        self.swiglu_fp8 = torch.compile(reference.swiglu_fp8, dynamic=False)

    @staticmethod
    def skinny_gemm(a, b, scale_a, scale_b, *, out_dtype, constant_b):
        return torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype)


def row(layer: Layer, kernels: dict[str, ModuleType], args, memory_rate: float) -> tuple[list[str], bool, dict]:
    """The cells, "-" for what is not there or not right; whether all builds are; the samples."""
    cases = {name: attempt(name, lambda n=name, k=k: layer.recorded(k, n)) for name, k in kernels.items()}
    with without_overlap():
        cases["alone"] = attempt("alone", lambda: layer.recorded(kernels[NOW], "alone"))
    right = all(cases.values())
    cases["torch"] = attempt("torch", lambda: layer.recorded(Torchs(layer.reference), "torch", TORCHS_TOLERANCE))
    times = gpu_report.times_of(cases, args)
    us = {name: one and one.median_us for name, one in times.items()}
    floor, ours = gpu_timing.floor_us(layer.bytes, times.values(), memory_rate), us[NOW]
    cells = [
        cell(floor),
        cell(ours),
        cell(times[NOW].spread_us if ours else None),
        *(cell(us[name]) for name in us if name != NOW),
    ]
    compared = [cell(floor / ours if ours else None), cell(us["torch"] / ours if ours and us["torch"] else None)]
    return [*cells, *compared], right, gpu_report.raw(times)


def run(gpu: Gpu, args) -> dict:
    """The table, a row as it comes; the figures for --json, and whether every build was right."""
    builds = load_builds(args.builds, gpu.backend, {NOW, "alone", "torch"})
    generator, figures = gpu_report.begin(gpu, args)
    kernels, results, all_right = {NOW: gpu.kernel, **builds}, [], True
    columns = ["floor", "ours", "±", *builds, "alone", "torch", "share of memory rate", "ratio"]
    timed = ["floor", "ours", *builds, "alone", "torch"]
    table = Table(["layer", "rows", *columns], timed, "A decoder layer's FP8 kernels: microseconds")
    for name in args.only or LAYERS:
        for rows in args.rows or GEMM_ROWS:
            layer = Layer(gpu.kernel.reference, LAYERS[name], rows, gpu.kernel.fp8_dtype(gpu.device), generator)
            note(layer.name)
            cells, right, samples = row(layer, kernels, args, figures["memory_bytes_per_us"])
            table.row(name, str(rows), *cells)
            all_right &= right
            results.append({"layer": name, "rows": rows, "bytes": layer.bytes, "times": samples})
    return figures | {"results": results, "all right": all_right}


def main(argv: list[str] | None = None) -> int:
    parser = gpu_report.parser(__doc__, LAYERS, metavar="LAYER")
    parser.add_argument("builds", type=Path, nargs="*", metavar="FOLDER", help="another checkout, with a build")
    gpu_report.add_rows(parser, 32)
    args = parser.parse_args(argv)
    figures = gpu_report.figures_of("gpu_layer", lambda: run(find_gpu(), args), args)
    return 0 if figures and figures["all right"] else 1
