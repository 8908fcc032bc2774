"""The operators at the sizes of the GPU benchmarks: operands in rotation, what computes them, and what is right."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import torch

from benchmarks.harness.gpu_timing import copies

WIDTH = 16384
EPSILON = 1e-5
CONFIG_VARIABLE = "ROCM_FP8_KERNELS_CONFIG"
GEMM_ROWS = (1, 8, 16, 32)  # of the tables for NVIDIA GPUs
OVERLAP_VARIABLE = "ROCM_FP8_KERNELS_PDL"


class Wrong(Exception):
    """A result that must not be timed; one line."""


@contextlib.contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    """An environment variable that launches (and recordings) read is `value`, or absent."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    environment_changed()
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
        environment_changed()


def environment_changed() -> None:
    """Every loaded build of the package reads its variables anew; by itself it reads them once a process."""
    for module in list(sys.modules.values()):
        if again := getattr(module, "__dict__", {}).get("reread_environment"):
            again()


@contextlib.contextmanager
def forced(operator: str, config: object | None) -> Iterator[None]:
    """Launches (and recordings) of a GEMM take "FORM[,split=N][,pieces=P]"; None: its own choice."""
    entry = None if config is None else f"{operator}:{config}"
    with variable(CONFIG_VARIABLE, entry):
        yield


def without_overlap() -> contextlib.AbstractContextManager[None]:
    """CUDA launches (and recordings) begin only after the one before them has ended."""
    return variable(OVERLAP_VARIABLE, "0")


def order(fp8: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the FP8 numbers, neighbours one apart, both zeros 0."""
    codes = fp8.view(torch.uint8).short()
    return torch.where(codes < 128, codes, 128 - codes)


def check_fp8(got: torch.Tensor, want: torch.Tensor, share: float, what: str) -> None:
    """At most `share` of the values differ from the reference's, and those are its neighbours."""
    if bool(got.float().isnan().any()):
        raise Wrong(f"{what}: holds NaN")
    steps = (order(got) - order(want)).abs()
    differing = (steps != 0).float().mean().item()
    if differing > share or int(steps.max()) > 1:
        raise Wrong(f"{what}: {differing:.2%} of the values differ from the reference's, by up to {int(steps.max())}")


@functools.cache
def by_flashinfer() -> Callable:
    """flashinfer's fused addition, RMSNorm and quantisation, with add_rms_norm_fp8's signature."""
    from flashinfer.norm import fused_add_rmsnorm_quant

    def add_rms_norm_fp8(x, residual, weight, scale, epsilon, *, out):
        fused_add_rmsnorm_quant(out, x, residual, weight, scale.view(1), epsilon)
        return out

    return add_rms_norm_fp8


class RowCase:
    """add_rms_norm_fp8 or swiglu_fp8 of x float16 [rows, width]; 16384 wide where nothing else is asked for."""

    def __init__(
        self, kernel: ModuleType, operator: str, rows: int, generator: torch.Generator, width: int | None = None
    ):
        width = width or WIDTH
        self.name = f"{operator} [{rows}, {width}]"
        self.function, self.reference = getattr(kernel, operator), getattr(kernel.reference, operator)
        self.adds = operator == "add_rms_norm_fp8"
        # x, the residual read and written, and the result; gate, up and the result. Weights come from the caches.
        results = rows * (width if self.adds else width // 2)
        self.bytes = results * (7 if self.adds else 5)
        self.count = copies(self.bytes)

        def normal() -> torch.Tensor:
            shape = (self.count, rows, width)
            return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float16)

        self.x = normal()
        if self.adds:
            self.residual = normal()
            # Every launch adds x once more: small enough that thousands of launches stay within float16.
            self.x /= 8
            self.weight = torch.rand(width, generator=generator, device=generator.device).half()
        self.scale = torch.tensor(0.02, device=generator.device)
        # What is never written shows: NaN in e4m3fnuz, -0 where most numbers are not 0 in e4m3fn.
        out = torch.full((self.count, results), 0x80, dtype=torch.uint8, device=generator.device)
        self.out = out.view(kernel.fp8_dtype(generator.device)).view(self.count, rows, -1)

    def arguments(self, i: int) -> tuple:
        if self.adds:
            return self.x[i], self.residual[i], self.weight, self.scale, EPSILON
        return self.x[i], self.scale

    def ours(self, i: int) -> torch.Tensor:
        return self.function(*self.arguments(i), out=self.out[i])

    def eager(self, i: int) -> torch.Tensor:
        return self.reference(*self.arguments(i))

    def compiled(self, i: int) -> torch.Tensor:
        return self.by_inductor(*self.arguments(i))

    def flashinfer(self, i: int) -> torch.Tensor:
        return by_flashinfer()(*self.arguments(i), out=self.out[i])

    @functools.cached_property
    def by_inductor(self) -> Callable:
        torch._dynamo.reset()  # sizes are compiled in, and torch stops compiling a function after a few
        return torch.compile(self.reference, dynamic=False)

    def verify(self, function: Callable, what: str, share: float = 1e-3) -> None:
        """The operators promise 99.9 % of the reference's values (docs/numerics.md). What torch.compile makes of
        the reference may leave out two roundings to float16, 2^-10 together, where FP8 numbers lie 2^-4 apart:
        neighbours then, however many (share = 1)."""
        x, *others = self.arguments(0)
        if self.adds:
            residual, *others = others
            got_residual, want_residual = residual.clone(), residual.clone()
            got, want = function(x, got_residual, *others), self.reference(x, want_residual, *others)
            if not torch.equal(got_residual, want_residual):
                raise Wrong(f"{what}, {self.name}: the residual differs from the reference's")
        else:
            got, want = function(x, *others), self.reference(x, *others)
        check_fp8(got, want, share, f"{what}, {self.name}")

    def verify_ours(self, what: str = "ours") -> None:
        self.verify(lambda *arguments: self.function(*arguments, out=self.out[0]), what)

    def verify_flashinfer(self) -> None:
        # It keeps float32 where the reference rounds to float16 twice: as torch.compile.
        self.verify(lambda *arguments: by_flashinfer()(*arguments, out=self.out[0]), "flashinfer", share=1)


class GemmCase:
    """skinny_gemm of m rows and weights [n, k], result bfloat16 [m, n]."""

    def __init__(self, kernel: ModuleType, m: int, n: int, k: int, generator: torch.Generator):
        self.kernel, self.m, self.n, self.k = kernel, m, n, k
        self.name = f"skinny_gemm M={m} {n}x{k}"
        self.generator, self.fp8 = generator, kernel.fp8_dtype(generator.device)
        self.bytes = n * k + m * k + 2 * m * n
        self.count = copies(n * k)
        self.one = torch.ones(1, device=generator.device)
        self.a = self._normal(m)
        self.b = [self._normal(n) for _ in range(self.count)]
        self.out = torch.empty((self.count, m, n), dtype=torch.bfloat16, device=generator.device)

    def _normal(self, rows: int) -> torch.Tensor:
        device = self.generator.device
        values = torch.randn((rows, self.k), generator=self.generator, device=device, dtype=torch.bfloat16)
        return values.to(self.fp8)

    def _integers(self, rows: int) -> torch.Tensor:
        """-2, -1, 1 or 2: with a zero among them, a product left out could be one that adds nothing."""
        shape, device = (rows, self.k), self.generator.device
        sizes = torch.randint(1, 3, shape, generator=self.generator, device=device)
        signs = torch.randint(0, 2, shape, generator=self.generator, device=device) * 2 - 1
        return (sizes * signs).to(torch.bfloat16).to(self.fp8)

    def ours(self, i: int, constant_b: bool = True) -> torch.Tensor:
        """As a layer calls it: its weights do not change."""
        return self.kernel.skinny_gemm(self.a, self.b[i], self.one, self.one, out=self.out[i], constant_b=constant_b)

    def ours_changing(self, i: int) -> torch.Tensor:
        return self.ours(i, constant_b=False)

    def library(self) -> Callable[[int], torch.Tensor] | None:
        """torch._scaled_mm on these operands, its rows padded to a multiple of 16 where it wants that; None where it
        takes neither."""
        for rows in (self.m, -(-self.m // 16) * 16):

            def padded(a: torch.Tensor, rows: int = rows) -> torch.Tensor:
                more = a.view(torch.uint8).new_zeros(rows - self.m, self.k)
                return torch.cat([a.view(torch.uint8), more]).view(self.fp8)

            def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                return torch._scaled_mm(a, b.t(), scale_a=self.one, scale_b=self.one, out_dtype=torch.bfloat16)

            try:
                self.verify(lambda a, b, p=padded: product(p(a), b)[: self.m], "torch._scaled_mm")
            except RuntimeError:
                continue
            a = padded(self.a)
            return lambda i: product(a, self.b[i])
        return None

    def verify(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], what: str) -> None:
        """On integers up to 2, none of them 0, whose float32 sums are exact in any order: a bound on the error of a sum
        of thousands of random numbers would let one left out pass, this does not."""
        a, b = self._integers(self.m), self._integers(self.n)
        got = function(a, b)
        want = self.kernel.reference.skinny_gemm(a, b, self.one, self.one)
        differing = (got != want).float().mean().item()
        if differing:
            raise Wrong(f"{what}, {self.name}: {differing:.2%} of the results differ from the reference's")

    def verify_ours(self, what: str = "ours") -> None:
        for constant in (False, True):
            out = torch.full((self.m, self.n), float("nan"), dtype=torch.bfloat16, device=self.generator.device)

            def product(a: torch.Tensor, b: torch.Tensor, out=out, constant=constant) -> torch.Tensor:
                if constant and b.is_cuda:
                    torch.cuda.synchronize()  # b has just been made
                return self.kernel.skinny_gemm(a, b, self.one, self.one, out=out, constant_b=constant)

            self.verify(product, what)
