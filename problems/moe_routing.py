"""Problems of moe_route, moe_sort and moe_combine; what a routing may be, by float64 and derived bounds."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from problems.inputs import FLOATS, normal, short
from problems.pairwise import pairwise

MOST_EXPERTS, MOST_CHOSEN = 1024, 32
SCORINGS = ("softmax", "sigmoid", "sqrtsoftplus")
ULP = 2.0**-24  # half of float32's, relative: one rounding
LEAST = 2.0**-100  # far above what exponentials lose that become 0

# --- route ---

# (experts, groups, top_groups): around a lane's share, a wave, the kernels' sizes; groups of powers of two and others.
EXPERTS = (
    *((1, 1, 1), (2, 1, 1), (8, 1, 1), (33, 1, 1), (64, 1, 1), (65, 1, 1), (128, 1, 1), (256, 1, 1), (257, 1, 1)),
    *((1000, 1, 1), (1024, 1, 1), (8, 2, 1), (60, 3, 2), (256, 8, 4), (100, 20, 7), (160, 8, 3), (72, 72, 40)),
    *((1024, 16, 16), (1024, 64, 5), (1022, 2, 1)),
)


@dataclass(frozen=True)
class Route:
    tokens: int
    experts: int
    groups: int
    top_groups: int
    chosen: int
    dtype: torch.dtype
    scoring: str
    with_bias: bool
    group_score: str
    renormalize: bool
    factor: float
    layout: str

    @property
    def id(self) -> str:
        parts = [f"{self.tokens}x{self.experts}-top{self.chosen}", short(self.dtype), self.scoring]
        parts += ["bias"] * self.with_bias + ["renorm"] * self.renormalize + [f"{self.factor}", self.layout]
        return "-".join([*parts, f"{self.top_groups}of{self.groups}-{self.group_score}"])

    @property
    def size(self) -> int:
        return self.experts // self.groups

    def options(self, bias: torch.Tensor | None) -> dict:
        return dict(
            scoring=self.scoring,
            bias=bias,
            groups=self.groups,
            top_groups=self.top_groups,
            group_score=self.group_score,
            renormalize=self.renormalize,
            factor=self.factor,
        )


def routes(seed: int) -> list[Route]:
    axes = ((0, 1, 3, 17), EXPERTS, (1, 2, 6, 8, MOST_CHOSEN), FLOATS, SCORINGS, (False, True))
    cases = pairwise(*axes, ("top2", "max"), (False, True), (1.0, 2.5), ("dense", "padded"), seed=seed)
    return [
        Route(tokens, *experts, min(chosen, experts[2] * (experts[0] // experts[1])), *rest)
        for tokens, experts, chosen, *rest in cases
    ]


def draw_route(problem: Route, generator) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(logits, bias); some logits are equal, as 16-bit ones are."""
    logits = normal((problem.tokens, problem.experts), torch.float32, generator, 3.0)
    logits[::2] = (logits[::2] * 4).round() / 4
    bias = normal((problem.experts,), torch.float32, generator, 0.3) if problem.with_bias else None
    return logits.to(problem.dtype), bias


@dataclass
class Exact:
    """Scores and choices in float64; how far float32's may be from them."""

    scores: torch.Tensor
    of_scores: torch.Tensor
    choices: torch.Tensor
    of_choices: torch.Tensor


def exact(problem: Route, logits: torch.Tensor, bias: torch.Tensor | None) -> Exact:
    wide = logits.double()
    if problem.scoring == "softmax":
        scores = wide.softmax(-1)
        below = (wide.amax(-1, keepdim=True) - wide).clamp(max=100)
        # Of an exponential: its argument's rounding and 4 of its own. Of the sum: those of its terms, weighted, and one
        # an addition. Of the quotient: one.
        of_exp = below + 4
        relative = of_exp + (scores * of_exp).sum(-1, keepdim=True) + problem.experts + 1
    elif problem.scoring == "sqrtsoftplus":
        # Half of what is under the root: the exponential, the series' argument and its dozen terms; the root's own.
        scores = torch.nn.functional.softplus(wide, threshold=1e3).sqrt()
        relative = torch.full_like(scores, 16)
    else:
        scores = wide.sigmoid()
        relative = torch.full_like(scores, 4 + 4 + 2)  # the exponential, twice; the sum; the quotient
    # What exponentials lose that become 0 is under the root, too.
    of_scores = scores * relative * ULP * 1.01 + (LEAST if problem.scoring != "sqrtsoftplus" else 2.0**-62)
    choices = scores if bias is None else scores + bias.double()
    return Exact(scores, of_scores, choices, of_scores + (choices.abs() * ULP if bias is not None else 0))


def assert_route(problem: Route, logits, bias, weights: torch.Tensor, experts: torch.Tensor) -> None:
    """Experts have the exact order, but where exact choices are too near. Of equal logits the lower comes first."""
    e, chosen = exact(problem, logits, bias), experts.long()
    assert weights.shape == experts.shape == (problem.tokens, problem.chosen)
    assert weights.dtype == torch.float32 and experts.dtype == torch.int32
    if problem.tokens == 0:
        return
    assert (chosen >= 0).all() and (chosen < problem.experts).all()
    assert (chosen.sort(-1).values.diff(dim=-1) > 0).all(), "an expert twice"
    candidates = _of_certain_groups(problem, e, chosen)
    low, high = e.choices - e.of_choices, e.choices + e.of_choices
    same = (logits[:, :, None] == logits[:, None, :]) & (torch.tensor(True) if bias is None else bias[:, None] == bias)
    numbers = torch.arange(problem.experts)
    for j in range(problem.chosen):
        this = chosen[:, j, None]
        candidates = candidates.scatter(-1, this, False)
        better = candidates & (low > high.gather(-1, this))
        assert not better.any(), f"choice {j}: {better.nonzero()[:4].tolist()}"
        lower = candidates & same.gather(1, this[..., None].expand(-1, 1, problem.experts))[:, 0] & (numbers < this)
        assert not lower.any(), f"choice {j}: not the lower of equals: {lower.nonzero()[:4].tolist()}"
    s, of_s = e.scores.gather(-1, chosen), e.of_scores.gather(-1, chosen)
    wanted, near = s, of_s
    if problem.renormalize:
        total = s.sum(-1, keepdim=True) + 1e-20
        wanted = s / total
        near = of_s / total + wanted * (of_s.sum(-1, keepdim=True) / total + (problem.chosen + 2) * ULP)
    wanted, near = wanted * problem.factor, (near + wanted * 2 * ULP) * problem.factor * 1.01
    assert ((weights.double() - wanted).abs() <= near).all()


def _of_certain_groups(problem: Route, e: Exact, chosen: torch.Tensor) -> torch.Tensor:
    """Experts of groups that stay whatever the roundings; all chosen ones are of groups that may stay."""
    if problem.groups == 1:
        return torch.ones_like(e.choices, dtype=torch.bool)
    parts, bounds = (t.unflatten(-1, (problem.groups, -1)) for t in (e.choices, e.of_choices))
    count = 1 if problem.group_score == "max" or problem.size == 1 else 2
    scores = parts.topk(count, dim=-1).values.sum(-1)
    near = count * bounds.amax(-1) + scores.abs() * ULP
    before = torch.ones(problem.groups, problem.groups).tril(-1).bool()  # [g, other]: ties go to the lower group
    above = (scores - near)[:, None, :] > (scores + near)[:, :, None]
    equal = (parts[:, None] == parts[:, :, None]).all(-1) & before
    possible = (above | equal).sum(-1) < problem.top_groups
    at_least = (scores + near)[:, None, :] >= (scores - near)[:, :, None]
    certain = at_least.sum(-1) - 1 < problem.top_groups
    groups = chosen // problem.size
    assert possible.gather(-1, groups).all(), "an expert of a group that cannot stay"
    for of_token in groups.tolist():
        assert len(set(of_token)) <= problem.top_groups
    return certain.repeat_interleave(problem.size, -1)


# --- sort ---

Routing = Callable[[int, int, int, torch.Generator], torch.Tensor]


def _numbers(low: int, high: int, tokens: int, slots: int, generator) -> torch.Tensor:
    return torch.randint(low, high, (tokens, slots), generator=generator)


def _far(tokens: int, slots: int, experts: int, generator) -> torch.Tensor:
    """Beside experts numbers beyond the range, in 32 and in 64 bits: cut to 32 bits some would be experts."""
    ids = _numbers(0, experts, tokens, slots, generator)
    limits = [-1, experts, 2**31 - 1, -(2**31), 2**31, 2**32, 2**32 + 1, -(2**32), 2**63 - 1, -(2**63), -(2**63) + 1]
    drawn = torch.tensor(limits)[_numbers(0, len(limits), tokens, slots, generator)]
    return torch.where(torch.rand(ids.shape, generator=generator) < 0.5, ids, drawn)


# (tokens, slots of a token, experts, generator) -> int64 ids, some of which no expert has.
ROUTINGS: dict[str, Routing] = {
    "any": lambda t, k, e, g: _numbers(0, e, t, k, g),
    "all-to-one": lambda t, k, e, g: torch.full((t, k), e // 2),
    "all-to-the-last": lambda t, k, e, g: torch.full((t, k), e - 1),
    "in-turn": lambda t, k, e, g: (torch.arange(t * k) % e).reshape(t, k),
    "falling": lambda t, k, e, g: (torch.arange(t * k).flip(0) * e // max(t * k, 1)).reshape(t, k),
    "some-dropped": lambda t, k, e, g: _numbers(-1, e + 1, t, k, g),
    "most-dropped": lambda t, k, e, g: _numbers(-4 * e, 3 * e, t, k, g),
    "none": lambda t, k, e, g: torch.full((t, k), -1),
    "far": _far,
}

# experts, generator -> expert_map of more experts than are here: half of them; several that are one; numbers beyond.
MAPS: dict[str, Callable[[int, torch.Generator], torch.Tensor | None]] = {
    "no-map": lambda e, g: None,
    "half": lambda e, g: torch.cat([torch.randperm(e, generator=g), torch.full((e,), -1)]).int(),
    "several-are-one": lambda e, g: (torch.arange(3 * e) % e).int(),
    "beyond": lambda e, g: torch.randint(-3, e + 3, (2 * e,), generator=g).int(),
    "short": lambda e, g: torch.arange(max(e // 2, 1)).int(),
    "empty": lambda e, g: torch.empty(0, dtype=torch.int32),
}


@dataclass(frozen=True)
class Sort:
    tokens: int
    slots: int  # of a token
    experts: int
    routing: str
    map: str
    dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.tokens}x{self.slots}-of{self.experts}-{self.routing}-{self.map}-{self.dtype}".replace(
            "torch.", ""
        )


# In one launch up to 4096 slots; a wave and what surrounds it; several parts with a rest.
SLOTS = ((0, 4), (1, 1), (1, 32), (7, 9), (64, 8), (65, 1), (511, 8), (512, 8), (513, 8), (1100, 8))


def sorts(seed: int) -> list[Sort]:
    axes = (SLOTS, (1, 2, 31, 64, 255, 256, MOST_EXPERTS), tuple(ROUTINGS), tuple(MAPS), (torch.int32, torch.int64))
    return [Sort(*size, *rest) for size, *rest in pairwise(*axes, seed=seed)]


def draw_sort(problem: Sort, generator) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(ids, expert_map)."""
    of_map = MAPS[problem.map](problem.experts, generator)
    known = problem.experts if of_map is None else max(of_map.numel(), 1)
    ids = ROUTINGS[problem.routing](problem.tokens, problem.slots, known, generator)
    if problem.dtype == torch.int32:
        ids = ids.clamp(-(2**31), 2**31 - 1)
    return ids.to(problem.dtype), of_map


# --- combine ---


@dataclass(frozen=True)
class Combine:
    tokens: int
    slots: int
    d: int
    dtype: torch.dtype
    shared: torch.dtype | None
    out: torch.dtype
    routing: str  # which slots are dropped
    layout: str
    layout_out: str

    @property
    def id(self) -> str:
        types = short(self.dtype), "none" if self.shared is None else short(self.shared), short(self.out)
        return f"{self.tokens}x{self.slots}x{self.d}-{'-'.join(types)}-{self.routing}-{self.layout}-{self.layout_out}"


# Less than a vector; vectors; a workgroup's columns and what surrounds them.
WIDTHS = (1, 7, 8, 33, 96, 1023, 1024, 1032, 2056)
# Of a slot: whether it is dropped.
DROPPED = {"no-drops": 0.0, "some-dropped": 0.4, "none": 1.0}


def combines(seed: int) -> list[Combine]:
    axes = ((0, 1, 3, 9), (1, 2, 7, 8, 9, MOST_CHOSEN), WIDTHS, FLOATS, (None, *FLOATS), FLOATS, tuple(DROPPED))
    return [Combine(*case) for case in pairwise(*axes, ("dense", "padded"), ("dense", "padded"), seed=seed)]


@dataclass
class Operands:
    y: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor
    shared: torch.Tensor | None


def draw_combine(problem: Combine, generator) -> Operands:
    """Positions of a sort: each row of y once; what is dropped is -1, or beyond y."""
    slots = problem.tokens * problem.slots
    dropped = torch.rand(slots, generator=generator) < DROPPED[problem.routing]
    live = int((~dropped).sum())
    beyond = torch.tensor([-1, live, 2**31 - 1, -(2**31)])[torch.randint(0, 4, (slots,), generator=generator)]
    positions = beyond.clone()
    positions[~dropped] = torch.randperm(live, generator=generator)
    shape = problem.tokens, problem.d
    return Operands(
        normal((live, problem.d), problem.dtype, generator),
        torch.rand(problem.tokens, problem.slots, generator=generator),
        positions.int().reshape(problem.tokens, problem.slots),
        None if problem.shared is None else normal(shape, problem.shared, generator),
    )


def combined(o: Operands, dtype: torch.dtype) -> torch.Tensor:
    """One slot after the other, in float32: by its definition."""
    total = torch.zeros(len(o.weights), o.y.shape[1])
    for token, (weights, places) in enumerate(zip(o.weights, o.positions.tolist())):
        for weight, place in zip(weights, places):
            if 0 <= place < len(o.y):
                total[token] += weight * o.y[place].float()
    return (total if o.shared is None else total + o.shared.float()).to(dtype)
