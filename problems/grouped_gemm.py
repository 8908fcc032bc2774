"""Problems of grouped_gemm and fused_moe: routings, operands, and the check against float64."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from problems.buffers import Guarded
from problems.comparisons import assert_block_scaled_gemm_close, assert_half_close
from problems.gemm import placed, powers_of_two
from problems.inputs import FLOATS, normal, positive, random_codes, random_fp8, short
from problems.pairwise import SAMPLE, pairwise

BLOCK = 128

# --- routings: rows an expert has ---


def even(rows: int, experts: int, g) -> list[int]:
    return [rows // experts + (e < rows % experts) for e in range(experts)]


def random(rows: int, experts: int, g) -> list[int]:
    return torch.bincount(torch.randint(experts, (rows,), generator=g), minlength=experts).tolist()


def all_to_one(rows: int, experts: int, g) -> list[int]:
    counts = [0] * experts
    counts[int(torch.randint(experts, (), generator=g))] = rows
    return counts


def none_to_most(rows: int, experts: int, g) -> list[int]:
    counts = [0] * experts
    counts[0], counts[-1] = rows - rows // 3, counts[-1] + rows // 3
    return counts if experts > 1 else [rows]


def edges(rows: int, experts: int, g) -> list[int]:
    """What tiles of 16 to 256 rows, and parts of them, just hold, and one more; an expert without rows behind each."""
    counts, bounds = [], (16, 17, 33, 1, 64, 65, 32, 129, 48, 256)
    while rows and len(counts) < experts - 1:
        own = min(rows, bounds[len(counts) // 2 % len(bounds)]) if len(counts) % 2 == 0 else 0
        rows -= own
        counts.append(own)
    return [*counts, rows, *[0] * (experts - len(counts) - 1)]


def some_dropped(rows: int, experts: int, g) -> list[int]:
    return random(rows - rows // 4, experts, g)


def all_dropped(rows: int, experts: int, g) -> list[int]:
    return [0] * experts


ROUTINGS = (even, random, all_to_one, none_to_most, edges, some_dropped, all_dropped)


def offsets_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


# --- scales ---

OF_A = {
    "one": lambda rows, blocks: (),
    "flat": lambda rows, blocks: (rows,),
    "row": lambda rows, blocks: (rows, 1),
    "group": lambda rows, blocks: (rows, blocks),
}
OF_B = {
    "one": lambda e, n, blocks: (1,),
    "tensor": lambda e, n, blocks: (e, 1, 1),
    "channel": lambda e, n, blocks: (e, n, 1),
    "block": lambda e, n, blocks: (e, -(-n // BLOCK), blocks),
}


@dataclass(frozen=True)
class Case:
    rows: int  # of the result
    experts: int
    n: int
    k: int
    which: int  # of the formats that the device multiplies, then bfloat16 and float16
    routing: Callable
    slots: int  # 0: no gather
    scale_a: str
    scale_b: str
    exponents: bool  # scales are float8_e8m0fnu
    biased: torch.dtype | None
    dtype: torch.dtype
    values: Callable
    layout: str
    expected: int | None

    @property
    def id(self) -> str:
        kinds = (self.routing.__name__, self.slots, self.scale_a, self.scale_b, "e8m0" if self.exponents else "f32")
        rest = (short(self.dtype), self.biased and short(self.biased), self.values.__name__, self.layout, self.expected)
        return f"{self.rows}x{self.experts}x{self.n}x{self.k}-{self.which}-{'-'.join(map(str, (*kinds, *rest)))}"


def cases(rows, experts, n, k, expected, layouts=("dense", "odd", "near")) -> tuple[Case, ...]:
    """Any two sizes or kinds meet in one of them."""
    return tuple(
        Case(*each)
        for each in pairwise(
            *(rows, experts, n, k, range(4), ROUTINGS, (0, 1, 3), tuple(OF_A), tuple(OF_B), (False, True)),
            *((None, *FLOATS), FLOATS, (random_fp8, random_codes), layouts, expected),
            seed=SAMPLE,
        )
    )


@dataclass
class Inputs:
    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor | None
    scale_b: torch.Tensor | None
    offsets: torch.Tensor
    rows: torch.Tensor | None
    slots: int
    bias: torch.Tensor | None

    def to(self, device) -> "Inputs":
        moved = {name: v.to(device) for name, v in vars(self).items() if isinstance(v, torch.Tensor)}
        return replace(self, **moved)

    def placed(self, device, how: str) -> tuple["Inputs", list[Guarded]]:
        """Operands and scales among poison."""
        held = {n: placed(getattr(self, n), device, how) for n in ("a", "b")}
        if self.scale_a is not None:
            held |= {n: placed(getattr(self, n), device, "dense") for n in ("scale_a", "scale_b")}
        moved = replace(self.to(device), **{name: each.t for name, each in held.items()})
        return moved, [each.buffer for each in held.values()]

    def call(self, module, **kwargs) -> torch.Tensor:
        return module.grouped_gemm(*self.operands(), **self.gather(), bias=self.bias, **kwargs)

    def operands(self) -> tuple:
        return self.a, self.b, self.scale_a, self.scale_b, self.offsets

    def gather(self) -> dict:
        return {} if self.rows is None else dict(rows=self.rows, slots=self.slots)

    @property
    def count(self) -> int:
        return len(self.a) if self.rows is None else len(self.rows)

    def live(self) -> int:
        return int(self.offsets[-1])

    def assert_right(self, out: torch.Tensor, what: str) -> None:
        """Each expert's rows, within a bound of the exact sums."""
        cpu = self.to("cpu")
        blocks = -(-self.a.shape[1] // BLOCK)
        for e, (begin, end) in enumerate(zip(cpu.offsets[:-1].tolist(), cpu.offsets[1:].tolist())):
            if begin == end:
                continue
            sources = slice(begin, end) if cpu.rows is None else cpu.rows[begin:end].long() // self.slots
            a = cpu.a.view(torch.uint8 if cpu.a.itemsize == 1 else torch.int16)[sources].view(cpu.a.dtype)
            bias = None if cpu.bias is None else cpu.bias[e]
            got, name = out[begin:end], f"{what}, expert {e}"
            a, b = a.to(out.device), cpu.b[e].to(out.device)
            bias = None if bias is None else bias.to(out.device)
            if cpu.scale_a is None:
                assert_half_close(got, a, b, bias, name)
                continue
            of_a = cpu.scale_a if cpu.scale_a.numel() == 1 else cpu.scale_a[sources]
            of_b = cpu.scale_b if cpu.scale_b.numel() == 1 else cpu.scale_b[e]
            scales = by_block(of_a, len(a), blocks), by_block(of_b, len(b), blocks)
            assert_block_scaled_gemm_close(got, a, b, *(s.to(out.device) for s in scales), bias, name)


def by_block(scale: torch.Tensor, rows: int, blocks: int) -> torch.Tensor:
    """float64 [rows, blocks] of an expert's scales."""
    scale = scale.float().double()
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(rows, blocks)
    scale = scale.reshape(len(scale), -1)
    if len(scale) != rows:
        scale = scale.repeat_interleave(BLOCK, 0)[:rows]
    return scale.expand(rows, blocks)


def draw(case: Case, formats, g) -> Inputs:
    kinds = (*formats, torch.bfloat16, torch.float16)
    format = kinds[case.which % len(kinds)]
    counts = case.routing(case.rows, case.experts, g)
    tokens = case.rows if case.slots == 0 else max(1, -(-case.rows // case.slots))
    shapes = (tokens, case.k), (case.experts, case.n, case.k)
    blocks = -(-case.k // BLOCK)
    if format.itemsize == 2:
        a, b = (normal(shape, format, g) for shape in shapes)
        scale_a = scale_b = None
    else:
        a, b = (case.values(shape, format, g) for shape in shapes)
        make = powers_of_two if case.exponents else positive
        scale_a = make(OF_A[case.scale_a](tokens, blocks), g)
        scale_b = make(OF_B[case.scale_b](case.experts, case.n, blocks), g)
    rows = None
    if case.slots:
        slots = torch.randperm(tokens * case.slots, generator=g)[: case.rows]
        live = sum(counts)
        rows = torch.where(torch.arange(len(slots)) < live, slots, -1).int()
    bias = None if case.biased is None else normal((case.experts, case.n), case.biased, g, 5.0)
    return Inputs(a, b, scale_a, scale_b, offsets_of(counts), rows, max(case.slots, 1), bias)


# --- the whole ---


@dataclass(frozen=True)
class Moe:
    tokens: int
    experts: int
    chosen: int
    d: int
    hidden: int
    inputs: str  # of fused_moe; "none": 16-bit experts
    dtype: torch.dtype

    @property
    def id(self) -> str:
        sizes = (self.tokens, self.experts, self.chosen, self.d, self.hidden)
        return f"{'x'.join(map(str, sizes))}-{self.inputs}-{short(self.dtype)}"


def draw_moe(p: Moe, fp8: torch.dtype, g) -> tuple[tuple, dict]:
    """Arguments and keywords of fused_moe. Weights have the size that keeps hidden values near 1."""
    x = normal((p.tokens, p.d), p.dtype, g)
    experts = torch.rand(p.tokens, p.experts, generator=g).argsort(1)[:, : p.chosen].int()
    weights = torch.rand(p.tokens, p.chosen, generator=g)
    w13 = normal((p.experts, 2 * p.hidden, p.d), torch.float32, g, p.d**-0.5)
    w2 = normal((p.experts, p.d, p.hidden), torch.float32, g, p.hidden**-0.5)
    if p.inputs == "none":
        return (x, w13.to(p.dtype), w2.to(p.dtype), weights, experts), {}
    scaled = {}
    for name, w in (("w13", w13), ("w2", w2)):
        shape = OF_B["block" if p.inputs == "group" else "channel"](p.experts, w.shape[1], -(-w.shape[2] // BLOCK))
        scaled[f"scale_{name}"] = positive(shape, g, 0.001, 0.01)
    if p.inputs == "static":
        scaled |= dict(input_scale=torch.tensor([0.02]), hidden_scale=torch.tensor([0.05]))
    quantized = [(w / 0.005).clamp(-240, 240).to(fp8) for w in (w13, w2)]
    return (x, *quantized, weights, experts), dict(inputs=p.inputs, **scaled)
