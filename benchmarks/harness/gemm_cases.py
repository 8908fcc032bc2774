"""block_scaled_gemm and int8_gemm at the sizes of the GPU benchmarks: operands in rotation, peers, what is right."""

import math
from collections.abc import Callable
from functools import cached_property
from types import ModuleType

import torch

from benchmarks.harness.gpu_cases import Wrong
from benchmarks.harness.gpu_timing import copies
from benchmarks.harness.mx_cases import TOKENS, mxfp4

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

# An expert of gpt-oss-120b, a square one, and Down of Llama 3 70B.
MX = tuple((m, n, k) for n, k in ((5760, 2880), (4096, 4096), (8192, 28672)) for m in TOKENS)


def random_sizes(count: int, generator: torch.Generator) -> tuple[Size, ...]:
    """M to 8192 evenly by its logarithm, N of 64s and K of 128s to 14,000: what DeepGEMM takes."""

    def one() -> Size:
        at = torch.rand(3, generator=generator, device=generator.device).tolist()
        return int(2 ** (13 * at[0])), 64 * (1 + int(218 * at[1])), BLOCK * (1 + int(109 * at[2]))

    return tuple(one() for _ in range(count))


class _Gemm:
    """a [m, k], b [n, k] and the result in as many copies as none of them comes from a cache of."""

    operator: str
    out_dtype: torch.dtype
    bits: tuple[float, float] = (8, 8)  # of a number of a and of b

    def __init__(self, kernel: ModuleType, size: Size, generator: torch.Generator):
        (m, n, k), self.device, self.generator = size, generator.device, generator
        self.kernel, self.name = kernel, f"{self.operator} M={m} {n}x{k}"
        self.moved = int(m * k * self.bits[0] + n * k * self.bits[1]) // 8 + 2 * m * n
        self.count = copies(self.moved)
        self.a, self.b = (
            [make(rows, k) for _ in range(self.count)] for make, rows in ((self.rows, m), (self.codes, n))
        )
        self.out = [torch.empty((m, n), dtype=self.out_dtype, device=self.device) for _ in range(self.count)]

    def codes(self, rows: int, k: int) -> torch.Tensor:
        raise NotImplementedError

    def rows(self, m: int, k: int) -> torch.Tensor:
        return self.codes(m, k)

    def random(self, make: Callable, *shape: int) -> torch.Tensor:
        return make(shape, generator=self.generator, device=self.device)

    def operands(self, i: int) -> tuple:
        raise NotImplementedError

    def ours(self, i: int) -> torch.Tensor:
        return getattr(self.kernel, self.operator)(*self.operands(i), out=self.out[i], constant_b=True)

    @cached_property
    def want(self) -> torch.Tensor:
        return getattr(self.kernel.reference, self.operator)(*self.operands(0), out_dtype=self.reference_dtype)


class BlockScaled(_Gemm):
    """FP8 [m, k] and [n, k], scales of 1x128 and 128x128, result bfloat16."""

    operator, out_dtype, reference_dtype = "block_scaled_gemm", torch.bfloat16, torch.float32
    peers = {
        "deepgemm": "DeepGEMM",
        "scaled_mm_blocks": "torch._scaled_mm, blocks",
        "scaled_mm": "torch._scaled_mm, rows",
    }
    computes_less = ("scaled_mm",)

    def __init__(self, kernel: ModuleType, size: Size, generator: torch.Generator):
        super().__init__(kernel, size, generator)
        m, n, k = size
        blocks, rows = -(-k // BLOCK), -(-m // 4) * 4
        # Column-major, as DeepGEMM wants them; ours takes either.
        self.scale_a, self.scale_b = self.scales(blocks, rows).t()[:m], self.scales(-(-n // BLOCK), blocks)
        self.row_scale, self.column_scale = self.scales(m, 1), self.scales(1, n)

    def codes(self, rows: int, k: int) -> torch.Tensor:
        values = torch.randn((rows, k), generator=self.generator, device=self.device, dtype=torch.bfloat16)
        return values.to(self.kernel.fp8_dtype(self.device))

    def scales(self, *shape: int) -> torch.Tensor:
        return self.random(torch.rand, *shape) / 16 + 0.01

    def operands(self, i: int) -> tuple:
        return self.a[i], self.b[i], self.scale_a, self.scale_b

    def deepgemm(self, i: int) -> torch.Tensor:
        import deep_gemm

        deep_gemm.fp8_gemm_nt(
            (self.a[i], self.scale_a), (self.b[i], self.scale_b), self.out[i], disable_ue8m0_cast=True
        )
        return self.out[i]

    def scaled_mm_blocks(self, i: int) -> torch.Tensor:
        """Not of every size: it refuses some."""
        return torch._scaled_mm(
            self.a[i], self.b[i].t(), self.scale_a, self.scale_b.t(), out_dtype=torch.bfloat16, use_fast_accum=False
        )

    def scaled_mm(self, i: int) -> torch.Tensor:
        return torch._scaled_mm(
            self.a[i], self.b[i].t(), self.row_scale, self.column_scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    def verify_ours(self, what: str = "ours") -> None:
        """Beside the reference, in float32: sums of FP8 products on Hopper keep 14 bits (docs/numerics.md)."""
        self.out[0].fill_(math.nan)
        got, want = self.ours(0).float(), self.want
        if not (got - want).abs().max() <= 0.01 * want.abs().max():
            raise Wrong(f"block_scaled_gemm, {what}: differs from the reference by more than 1 % of the largest result")


class Mxfp4(BlockScaled):
    """bfloat16 [m, k] and MXFP4 [n, k], result bfloat16."""

    bits, peers, computes_less = (16, 4 + 8 / 32), {"bfloat16": "torch.mm, bfloat16"}, ()

    def __init__(self, kernel: ModuleType, size: Size, generator: torch.Generator):
        _Gemm.__init__(self, kernel, size, generator)

    def codes(self, rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        return mxfp4((rows, k), self.generator)

    def rows(self, m: int, k: int) -> torch.Tensor:
        return self.random(torch.randn, m, k).bfloat16()

    def operands(self, i: int) -> tuple:
        codes, exponents = self.b[i]
        return self.a[i], codes, None, exponents

    @cached_property
    def wide(self) -> list[torch.Tensor]:
        """Weights of other values, of as many rows: they have four times the bytes."""
        return [self.rows(len(codes), self.a[0].shape[1]) for codes, _ in self.b]

    def bfloat16(self, i: int) -> torch.Tensor:
        return torch.mm(self.a[i], self.wide[i].t(), out=self.out[i])


class Int8(_Gemm):
    """int8 [m, k] and [n, k], scales of rows and columns, a bias, result float16: a dynamic W8A8 linear."""

    operator, out_dtype, reference_dtype = "int8_gemm", torch.float16, torch.float16
    peers = {"float16": "torch.mm, float16", "int_mm": "torch._int_mm, compiled epilogue"}
    computes_less = ()

    def __init__(self, kernel: ModuleType, size: Size, generator: torch.Generator):
        super().__init__(kernel, size, generator)
        m, n, k = size
        self.scale_a = self.random(torch.randn, m, 1).abs() / k
        self.scale_b = self.random(torch.randn, 1, n).abs() / 128
        self.bias, self.compiled = self.random(torch.randn, n).half(), None

    def codes(self, rows: int, k: int) -> torch.Tensor:
        return torch.randint(-128, 128, (rows, k), generator=self.generator, device=self.device).to(torch.int8)

    def operands(self, i: int) -> tuple:
        return self.a[i], self.b[i], self.scale_a, self.scale_b, self.bias

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
        return self.compiled(*self.operands(i))

    def verify_ours(self, what: str = "ours") -> None:
        """Every byte: sums are exact."""
        self.out[0].fill_(math.nan)
        if not torch.equal(self.ours(0).view(torch.int16), self.want.view(torch.int16)):
            raise Wrong(f"int8_gemm, {what}: other bytes than the reference's")


CASES = {case.operator: case for case in (BlockScaled, Int8)}
