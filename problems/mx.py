"""Problems of GEMMs with MX weights: kinds of operands, their values in float64, calls dense and grouped."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from problems import grouped_gemm
from problems.buffers import Guarded, same_bytes, same_codes
from problems.comparisons import assert_mx_close
from problems.gemm import placed
from problems.inputs import FLOATS, mx_codes, mx_exponents, normal, positive, short
from problems.pairwise import SAMPLE, pairwise

BLOCK = 32
NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
# Of A beside each kind of B: MXFP4 beside MXFP8 there is not.
KINDS = tuple(
    (a, b)
    for b in ("mxfp4", "mxfp8")
    for a in ("bf16", "f16", "row", "one", "mxfp8", "mxfp4")
    if (a, b) != ("mxfp4", "mxfp8")
)


def values(t: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """float64 of codes (uint8: two a byte) or numbers, times their blocks', their row's or the tensor's scale."""
    if t.dtype == torch.uint8:
        numbers = NUMBERS.to(t.device)
        t = torch.stack([numbers[(t & 15).long()], numbers[(t >> 4).long()]], -1).flatten(-2)
    t = t.float().double() if t.dtype != torch.float64 else t
    if scale is None:
        return t
    if scale.dtype != torch.float8_e8m0fnu:
        return t * scale.double().reshape(-1, 1)
    byte = scale.view(torch.uint8)
    factor = torch.where(byte == 255, torch.nan, torch.exp2(byte.double() - 127))
    return t * factor.repeat_interleave(BLOCK, -1)


@dataclass(frozen=True)
class Case:
    rows: int  # of the result
    experts: int
    n: int
    k: int
    kinds: tuple[str, str]
    fnuz: bool  # FP8's format, where the device has both
    routing: Callable
    slots: int  # 0: no gather
    biased: torch.dtype | None
    dtype: torch.dtype
    layout: str
    expected: int | None

    @property
    def id(self) -> str:
        biased = self.biased and short(self.biased)
        rest = self.routing.__name__, self.slots, biased, short(self.dtype), self.layout, self.expected
        return f"{self.rows}x{self.experts}x{self.n}x{self.k}-{'-'.join(map(str, (*self.kinds, self.fnuz, *rest)))}"


def cases(rows, experts, n, k, expected, layouts=("dense", "odd", "near")) -> tuple[Case, ...]:
    """FP8 by FP8 of one block is no MX: a scale a column is the same."""
    drawn = (
        Case(*each)
        for each in pairwise(
            *(
                rows,
                experts,
                n,
                k,
                KINDS,
                (False, True),
                grouped_gemm.ROUTINGS,
                (0, 1, 3),
                (None, *FLOATS),
                FLOATS,
                layouts,
                expected,
            ),
            seed=SAMPLE,
        )
    )
    return tuple(
        replace(c, k=64) if c.k == BLOCK and c.kinds[1] == "mxfp8" and not c.kinds[0].endswith("16") else c
        for c in drawn
    )


def plain(rows: int, n: int, k: int, kinds: tuple[str, str], experts: int = 1, **kwargs) -> Case:
    given = dict(fnuz=False, routing=grouped_gemm.random, slots=0, biased=None, dtype=torch.float32)
    return Case(rows, experts, n, k, kinds, **(given | dict(layout="dense", expected=None) | kwargs))


def drawn(kind: str, shape: tuple[int, ...], fp8: torch.dtype, g) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An operand [..., K] and its scales."""
    *rows, k = shape
    if kind in ("bf16", "f16"):
        return normal(shape, torch.bfloat16 if kind == "bf16" else torch.float16, g), None
    if kind in ("row", "one"):
        return mx_codes(shape, fp8, g), positive((*rows, 1) if kind == "row" else (1,), g)
    codes = mx_codes(shape, fp8, g) if kind == "mxfp8" else mx_codes((*rows, k // 2), torch.uint8, g)
    return codes, mx_exponents((*rows, k // BLOCK), g)


@dataclass
class Inputs(grouped_gemm.Inputs):
    def placed(self, device, how: str) -> tuple["Inputs", list[Guarded]]:
        """Operands and exponents among poison, which as an exponent is NaN."""
        names = [n for n in ("a", "b", "scale_a", "scale_b") if getattr(self, n) is not None]
        held = {n: placed(getattr(self, n), device, how if n in ("a", "b") else "dense") for n in names}
        moved = replace(self.to(device), **{name: each.t for name, each in held.items()})
        return moved, [each.buffer for each in held.values()]

    def dense(self, module, **kwargs) -> torch.Tensor:
        """All rows of A by the first matrix."""
        bias = None if self.bias is None else self.bias[0]
        return module.block_scaled_gemm(self.a, self.b[0], self.scale_a, self.scale_b[0], bias, **kwargs)

    def assert_right(self, out: torch.Tensor, what: str) -> None:
        """Each expert's rows."""
        cpu = self.to("cpu")
        a = values(cpu.a, cpu.scale_a)
        for e, (begin, end) in enumerate(zip(cpu.offsets[:-1].tolist(), cpu.offsets[1:].tolist())):
            if begin == end:
                continue
            sources = slice(begin, end) if cpu.rows is None else cpu.rows[begin:end].long() // self.slots
            bias = None if cpu.bias is None else cpu.bias[e]
            b = values(cpu.b[e], cpu.scale_b[e])
            assert_mx_close(out[begin:end].cpu(), a[sources], b, bias, f"{what}, expert {e}")


def draw(case: Case, fp8: torch.dtype, g) -> Inputs:
    counts = case.routing(case.rows, case.experts, g)
    tokens = case.rows if case.slots == 0 else max(1, -(-case.rows // case.slots))
    a, scale_a = drawn(case.kinds[0], (tokens, case.k), fp8, g)
    b, scale_b = drawn(case.kinds[1], (case.experts, case.n, case.k), fp8, g)
    rows = None
    if case.slots:
        slots = torch.randperm(tokens * case.slots, generator=g)[: case.rows]
        rows = torch.where(torch.arange(len(slots)) < sum(counts), slots, -1).int()
    bias = None if case.biased is None else normal((case.experts, case.n), case.biased, g, 5.0)
    return Inputs(a, b, scale_a, scale_b, grouped_gemm.offsets_of(counts), rows, max(case.slots, 1), bias)


# --- with a gate ---

GATES = (
    dict(gate="silu"),
    dict(gate="silu", interleaved=True, limit=2.0),
    dict(gate="oai", limit=3.0, interleaved=True),
    dict(gate="oai", alpha=1.5),
    dict(gate="situ", beta=4.0, linear_beta=25.0),
    dict(gate="situ", beta=0.5, limit=3.0, interleaved=True),
)


def assert_gates_the_product(
    kernel, inputs: Inputs, gate: dict, dtype: torch.dtype, device, expected: int | None
) -> None:
    """grouped_gemm_gate's bytes are those of two calls; -0 and infinities among them, NaN where they have it."""
    out = Guarded((inputs.count, inputs.b.shape[1] // 2), dtype, device, pad=3)
    by = dict(inputs.gather(), bias=inputs.bias, expected_rows=expected)
    assert kernel.grouped_gemm_gate(*inputs.operands(), **by, **gate, out=out.t) is out.t
    out.assert_guards_intact()
    live = inputs.live()
    product = inputs.call(kernel, out_dtype=torch.float32, expected_rows=expected)
    wanted = kernel.moe_gate(product, inputs.offsets, **gate, out_dtype=dtype)[:live]
    assert same_codes(out.t[:live], wanted)
    untouched = Guarded(tuple(out.t.shape), dtype, device, pad=3).t[live:]
    assert same_bytes(out.t[live:].contiguous(), untouched.contiguous()), "rows beyond the last were written"
