"""Problems of mla_decode and mla_append; attention in float64 and how far a kernel may be from it."""

from dataclasses import dataclass, replace

import torch

from problems.comparisons import U32, half_ulp
from problems.inputs import HALF, normal, positive, short
from problems.pairwise import pairwise

WIDTH, LATENT, ROPE, MIXED, GROUP = 576, 512, 64, 656, 128
SCALE = 192**-0.5


@dataclass(frozen=True)
class Mla:
    batch: int
    queries: int
    heads: int
    page: int  # 0: dense
    most: int  # tokens of a sequence, rounded up to whole pages
    dtype: torch.dtype
    format: str  # "wide", "fp8" or "mixed"
    causal: bool
    layout: str  # of q and of the cache's rows: "dense" or "padded"

    @property
    def id(self) -> str:
        parts = [f"{self.batch}x{self.queries}x{self.heads}-page{self.page}-{self.most}", short(self.dtype)]
        return "-".join([*parts, self.format, *["causal"] * self.causal, self.layout])

    @property
    def width(self) -> int:
        return MIXED if self.format == "mixed" else WIDTH


def problems(seed: int, **changed) -> list[Mla]:
    axes = ((1, 3), (1, 2, 8), (1, 3, 16, 24, 96, 128), (0, 1, 7, 16, 64, 256), (1, 40, 200, 900), HALF)
    cases = pairwise(*axes, ("wide", "fp8", "mixed"), (False, True), ("dense", "padded"), seed=seed)
    return [replace(Mla(*case), **changed) for case in cases]


@dataclass
class Operands:
    q: torch.Tensor
    cache: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor | None
    scale: torch.Tensor | None
    values: list[torch.Tensor]  # float64 [length, 576] of each sequence: what its tokens mean

    def call(self, device="cpu") -> tuple[tuple, dict]:
        """Arguments of mla_decode."""
        arguments = (self.q, self.cache, self.lengths)
        options = dict(block_table=self.table, cache_scale=self.scale)
        on = [t.to(device) for t in arguments]
        return (*on, SCALE), {name: None if t is None else t.to(device) for name, t in options.items()}


def mixed_rows(codes: torch.Tensor, scales: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    return torch.cat([t.contiguous().view(torch.uint8) for t in (codes, scales, rope)], dim=-1)


def drawn_tokens(count: int, problem: Mla, fp8: torch.dtype, generator, scale) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows of the cache, what they mean in float64)."""
    if problem.format == "wide":
        rows = normal((count, WIDTH), problem.dtype, generator)
        return rows, rows.double()
    if problem.format == "fp8":
        rows = (normal((count, WIDTH), torch.float32, generator) / 0.05).clamp(-240, 240).to(fp8)
        return rows, rows.double() * scale.double()
    codes = normal((count, LATENT), torch.float32, generator, 90.0).clamp(-448, 448).to(torch.float8_e4m3fn)
    scales = positive((count, LATENT // GROUP), generator, 0.002, 0.02)
    rope = normal((count, ROPE), torch.bfloat16, generator)
    latent = (codes.float().unflatten(-1, (-1, GROUP)) * scales[..., None]).flatten(-2)
    means = torch.cat([latent, rope.float()], dim=-1).to(problem.dtype)
    return mixed_rows(codes, scales, rope), means.double()


def poison(shape, problem: Mla, fp8: torch.dtype) -> torch.Tensor:
    """A cache of NaN, whatever it is read as."""
    dtype = {"wide": problem.dtype, "fp8": fp8, "mixed": torch.uint8}[problem.format]
    byte = 0x80 if dtype == torch.float8_e4m3fnuz else 0xFF
    return torch.full((*shape, problem.width * dtype.itemsize), byte, dtype=torch.uint8).view(dtype)


def draw(problem: Mla, generator, fp8: torch.dtype, lengths: list[int] | None = None) -> Operands:
    """Permuted pages, NaN wherever no token lies, table entries behind a length that no page has."""
    p = problem
    page = p.page or p.most
    per_sequence = -(-p.most // page)
    most = per_sequence * page
    if lengths is None:
        special = [most, 0, 1, p.queries - 1]
        drawn = torch.randint(0, most + 1, (p.batch,), generator=generator).tolist()
        lengths = [min(most, special[i]) if i < len(special) and p.batch > 1 else n for i, n in enumerate(drawn)]
        lengths[-1] = max(drawn[-1], min(most, 1))
    scale = positive((1,), generator) if p.format == "fp8" else None
    pages = p.batch * per_sequence + 3 if p.page else p.batch
    cache = poison((pages, page), p, fp8)
    table, values = None, []
    if p.page:
        beyond = torch.randint(-(2**31), 2**31, (p.batch, per_sequence), generator=generator)
        order = torch.randperm(pages, generator=generator)
        table = beyond.int()
    for b, length in enumerate(lengths):
        rows, meaning = drawn_tokens(length, p, fp8, generator, scale)
        values.append(meaning)
        for n in range(0, length, page):
            at = b
            if p.page:
                at = int(order[b * per_sequence + n // page])
                table[b, n // page] = at
            part = rows[n : n + page]
            cache.view(torch.uint8)[at, : len(part)] = part.view(torch.uint8)
    q = normal((p.batch, p.queries, p.heads, WIDTH), p.dtype, generator)
    return Operands(q, cache, torch.tensor(lengths, dtype=torch.int32), table, scale, values)


def assert_attended(problem: Mla, o: Operands, out: torch.Tensor, lse: torch.Tensor | None, what: str) -> None:
    """By float64.

    A score is a sum of 576 products, each addition rounded (twice the error, where matrix units cut off), times a
    scale. Its error moves p by as much, relatively; so does the exponential (its argument's rounding and 4 of its own).
    p is rounded to q's type, of float16 also by half of its least number; on CUDA, of codes and bfloat16, to a sum of
    two FP8 numbers. Sums over tokens round once an addition.
    """
    unit, least = (2.0**-8, 0.0) if problem.dtype == torch.bfloat16 else (2.0**-11, 2.0**-25)
    if out.is_cuda and problem.format == "fp8" and problem.dtype == torch.bfloat16:
        least = 2.0**-20
    for b, c in enumerate(o.values):
        q, length = o.q[b].double(), len(c)
        scores = torch.einsum("shk,nk->shn", q, c) * SCALE
        size = torch.einsum("shk,nk->shn", q.abs(), c.abs()) * SCALE
        if problem.causal:
            last = length - problem.queries + torch.arange(problem.queries)
            scores = scores.masked_fill((torch.arange(length) > last[:, None])[:, None], -torch.inf)
        exact_lse = scores.logsumexp(-1)
        seen = exact_lse > -torch.inf
        p = torch.where(seen[..., None], (scores - exact_lse[..., None]).exp(), 0.0)
        values = c[:, :LATENT]
        exact = torch.einsum("shn,nk->shk", p, values)
        of_score = size.amax(-1) * (2 * (WIDTH + 2)) * U32 if length else torch.zeros_like(exact_lse)
        below = (
            (scores.amax(-1) - scores.amin(-1)).nan_to_num(0).clamp(0, 100) if length else torch.zeros_like(exact_lse)
        )
        relative = 2 * of_score + (below + 8) * U32 + length * 2 * U32
        near = (2 * relative + unit)[..., None] * torch.einsum("shn,nk->shk", p, values.abs())
        near = near + (least * values.abs().sum(0) if length else 0.0)
        bound = near + half_ulp(exact.abs() + near, out.dtype) + 2.0**-100
        got = out[b].double().cpu()
        wrong = ~((got - exact).abs() <= bound)
        assert not wrong.any(), f"{what}: sequence {b}: {int(wrong.sum())}, {wrong.nonzero()[:3].tolist()}"
        if lse is not None:
            got_lse = lse[b].double().cpu()
            assert torch.equal(got_lse == -torch.inf, ~seen), f"{what}: -infinity"
            close = (got_lse - exact_lse).abs()[seen] <= (relative + exact_lse.abs() * 4 * U32 + 1e-6)[seen]
            assert close.all(), f"{what}: lse of sequence {b}"
