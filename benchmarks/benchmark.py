"""The operators at the shapes of Llama 3.1, for `kernels benchmark`.

    kernels benchmark rocm-fp8-kernels/rocm-fp8-kernels --version 1    # from the Hub
    python -m benchmarks measure hub                               # this repository's build, on the CPU

Each workload is verified before it is timed: the row operators byte by byte against the package's reference,
the GEMMs within the bound of a float32 sum. Before each one stands what its bytes take at the rate of torch.sum
(the GEMMs) or Tensor.copy_ (the others), which a better kernel can beat. Buffers rotate, so nothing is served from
a cache that a model would not find there.

The Hub gets this file alone of its folder, so it uses none of the others.
"""

import argparse
import sys
import time

import torch
from kernels.benchmark import Benchmark

BUFFERS_BYTES = 256 << 20  # of one rotated argument, all copies together


def copies(bytes_each: int) -> int:
    return min(64, max(2, -(-BUFFERS_BYTES // bytes_each)))


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_a_byte(device: str, kind: str) -> float:
    """Of reading ("read") or of copying ("copy", both directions counted) a large buffer; the best of several."""
    source = torch.randn(BUFFERS_BYTES // 4, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(6):
        synchronize(device)
        begin = time.perf_counter()
        source.sum() if kind == "read" else target.copy_(source)
        synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return best / (source.nbytes * (1 if kind == "read" else 2))


class Rotating(Benchmark):
    """A workload whose arguments come from `self.sets`, one after the other."""

    seed = 0
    _rates: dict[tuple[str, str], float] = {}

    def prepare(self, name: str, moved: int, kind: str, make_set) -> None:
        key = (self.device, kind)
        if key not in self._rates:
            self._rates[key] = seconds_a_byte(*key)
        ms, function = moved * self._rates[key] * 1e3, "sum" if kind == "read" else "Tensor.copy_"
        print(f"  {name}: {moved} bytes, {ms:.4f} ms at the rate of torch.{function}", file=sys.stderr)
        self.sets = [make_set() for _ in range(copies(moved))]
        self.turn = -1

    def next_set(self):
        self.turn = (self.turn + 1) % len(self.sets)
        return self.sets[self.turn]

    def fp8_out(self, rows: int, d: int) -> torch.Tensor:
        out = torch.full((rows, d), 7, dtype=torch.uint8, device=self.device)
        return out.view(self.kernel.fp8_dtype(self.device))

    def run(self) -> None:
        self.launch(*self.next_set())

    def check_bytes(self, got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        """Raises where the FP8 results differ by more than the order of a sum explains; returns `self.out`, which the
        runner compares: allclose knows no FP8, and its tolerance would say nothing here."""
        differing = (got.view(torch.uint8) != want.view(torch.uint8)).float().mean().item()
        if differing > 1e-3:
            raise AssertionError(f"{differing:.2%} of the bytes differ from the reference's")
        self.out = got.float()
        return self.out


class AddRmsNormFp8(Rotating):
    """bfloat16 [rows, 16384], residual in place."""

    def make(self, rows: int, d: int = 16384) -> None:
        def make_set():
            x = torch.randn(rows, d, device=self.device).bfloat16()
            return x, torch.randn_like(x), self.fp8_out(rows, d)

        self.weight = torch.rand(d, device=self.device).bfloat16()
        self.scale = torch.tensor(0.02, device=self.device)
        self.prepare(f"add_rms_norm_fp8 [{rows}, {d}]", 7 * rows * d, "copy", make_set)

    def launch(self, x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor) -> None:
        self.kernel.add_rms_norm_fp8(x, residual, self.weight, self.scale, 1e-5, out=out)

    def verify(self) -> torch.Tensor:
        x, residual, out = self.next_set()
        other = residual.clone()
        self.launch(x, residual, out)
        want = self.kernel.reference.add_rms_norm_fp8(x, other, self.weight, self.scale, 1e-5, out_dtype=out.dtype)
        if not torch.equal(residual, other):
            raise AssertionError("the residual differs from the reference's")
        return self.check_bytes(out, want)


class SwigluFp8(Rotating):
    """bfloat16 [rows, 2 x 16384]."""

    def make(self, rows: int, d: int = 16384) -> None:
        def make_set():
            return torch.randn(rows, 2 * d, device=self.device).bfloat16(), self.fp8_out(rows, d)

        self.scale = torch.tensor(0.02, device=self.device)
        self.prepare(f"swiglu_fp8 [{rows}, {d}]", 5 * rows * d, "copy", make_set)

    def launch(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self.kernel.swiglu_fp8(x, self.scale, out=out)

    def verify(self) -> torch.Tensor:
        x, out = self.next_set()
        self.launch(x, out)
        return self.check_bytes(out, self.kernel.reference.swiglu_fp8(x, self.scale, out_dtype=out.dtype))


class QuantizeFp8(Rotating):
    """bfloat16 [rows, 16384], a computed float32 scale for each row or for each 128 of a row."""

    def make(self, rows: int, scaling: str, d: int = 16384) -> None:
        groups = 1 if scaling == "row" else -(-d // 128)

        def make_set():
            scales = torch.full((rows, groups), float("nan"), device=self.device)
            return torch.randn(rows, d, device=self.device).bfloat16(), self.fp8_out(rows, d), scales

        self.scaling = scaling
        self.prepare(f"quantize_fp8 [{rows}, {d}] by {scaling}", rows * (3 * d + 4 * groups), "copy", make_set)

    def launch(self, x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> None:
        self.kernel.quantize_fp8(x, scaling=self.scaling, out=out, scale_out=scales)

    def verify(self) -> torch.Tensor:
        x, out, scales = self.next_set()
        self.launch(x, out, scales)
        want, want_scales = self.kernel.reference.quantize_fp8(x, scaling=self.scaling, out_dtype=out.dtype)
        if not torch.equal(scales, want_scales):
            raise AssertionError("a scale differs from the reference's")
        return self.check_bytes(out, want)


class Gemm(Rotating):
    """M rows of activations, weights [N, K], bfloat16 result."""

    operator: str

    def make(self, m: int, n: int, k: int) -> None:
        fp8 = self.kernel.fp8_dtype(self.device)
        self.a = torch.randn(m, k, device=self.device).to(fp8)
        self.scales = self.make_scales(m, n, k)

        def make_set():
            out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=self.device)
            return torch.randn(n, k, device=self.device).to(fp8), out

        moved = n * k + m * (k + 2 * n) + sum(each.nbytes for each in self.scales if each.numel() > 1)
        self.prepare(f"{self.operator} M={m} {n}x{k}", moved, "read", make_set)

    def launch(self, b: torch.Tensor, out: torch.Tensor) -> None:
        getattr(self.kernel, self.operator)(self.a, b, *self.scales, out=out)

    def verify(self) -> torch.Tensor:
        b, out = self.next_set()
        self.launch(b, out)
        a, wide, roundings = self.exact(b)
        want = a @ wide.t()
        sum_bound = roundings * 2**-24 * (a.abs() @ wide.abs().t())
        if bool(((out - want).abs() > sum_bound + 2**-8 * want.abs()).any()) or bool(out.isnan().any()):
            raise AssertionError("a result lies outside the bound of a float32 sum")
        self.out = out
        return out


class SkinnyGemm(Gemm):
    """By scales of 1."""

    operator = "skinny_gemm"

    def make_scales(self, m: int, n: int, k: int) -> list[torch.Tensor]:
        return [torch.ones(1, device=self.device)] * 2

    def exact(self, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.a.double(), b.double(), b.shape[1]


class BlockScaledGemm(Gemm):
    """Activations by scales of 128 k, weights by scales of 128 x 128."""

    operator = "block_scaled_gemm"

    def make_scales(self, m: int, n: int, k: int) -> list[torch.Tensor]:
        return [torch.rand(rows, -(-k // 128), device=self.device) for rows in (m, -(-n // 128))]

    def exact(self, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        k, (scale_a, scale_b) = b.shape[1], (scale.double().repeat_interleave(128, 1) for scale in self.scales)
        wide = b.double() * scale_b.repeat_interleave(128, 0)[: len(b), :k]
        return self.a.double() * scale_a[:, :k], wide, k + self.scales[0].shape[1] + 2


ROWS = (1, 8, 32, 128, 256)
GEMMS = [(m, n, k) for n, k in ((2304, 16384), (13312, 16384), (16384, 6656), (4096, 4096)) for m in (1, 8, 16, 32)]
# DeepSeek-V3's on 8 devices: queries down, gate and up, down.
BLOCK_SCALED_GEMMS = [(m, n, k) for n, k in ((1536, 7168), (4608, 7168), (7168, 2304)) for m in (1, 32, 128, 1024)]


def add_workload(cls: type[Rotating], name: str, sizes: tuple[int | str, ...]) -> None:
    setattr(cls, f"setup_{name}", lambda self: self.make(*sizes))
    setattr(cls, f"benchmark_{name}", lambda self: self.run())
    setattr(cls, f"verify_{name}", lambda self: self.verify())


for _rows in ROWS:
    add_workload(AddRmsNormFp8, f"rows{_rows:03}", (_rows,))
    add_workload(SwigluFp8, f"rows{_rows:03}", (_rows,))
    for _scaling in ("row", "group"):
        add_workload(QuantizeFp8, f"{_scaling}_rows{_rows:03}", (_rows, _scaling))
for _m, _n, _k in GEMMS:
    add_workload(SkinnyGemm, f"{_n}x{_k}_m{_m:02}", (_m, _n, _k))
for _m, _n, _k in BLOCK_SCALED_GEMMS:
    add_workload(BlockScaledGemm, f"{_n}x{_k}_m{_m:04}", (_m, _n, _k))
# The runner takes every subclass of Benchmark in this module that has workloads; these have none.
del Rotating, Gemm


def main() -> None:
    """All workloads on this repository's CPU build. `kernels benchmark` picks the variant by torch's own build, so
    with a CUDA or ROCm build of torch it looks for a GPU."""
    from benchmarks.harness import sections

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections.add_options(parser)
    args = parser.parse_args()
    with sections.recorded("benchmark", args):
        print_medians()


def print_medians() -> None:
    from benchmarks.harness.table import Table
    from scripts.load import load_kernel

    kernel, table = load_kernel("cpu"), Table(["operator", "workload", "median, ms"], ["median, ms"])
    for cls in (AddRmsNormFp8, SwigluFp8, QuantizeFp8, SkinnyGemm, BlockScaledGemm):
        for method in [name for name in dir(cls) if name.startswith("benchmark_")]:
            workload = cls()
            workload.kernel = kernel
            torch.manual_seed(cls.seed)
            getattr(workload, method.replace("benchmark_", "setup_"))()
            workload.verify()
            times = []
            for _ in range(15):
                begin = time.perf_counter()
                workload.run()
                times.append(time.perf_counter() - begin)
            table.row(cls.__name__, method.removeprefix("benchmark_"), f"{sorted(times)[7] * 1e3:.4f}")
