"""moe_route by float64, moe_sort exactly, moe_combine to the byte: routings of every kind."""

import pytest
import torch

from problems.buffers import LAYOUTS, Guarded, guarded, same_bytes, threads
from problems.inputs import FLOATS, normal, short
from problems.moe_routing import (
    ROUTINGS,
    SCORINGS,
    Combine,
    Operands,
    assert_route,
    combined,
    combines,
    draw_combine,
    draw_route,
    draw_sort,
    routes,
    sorts,
)
from problems.pairwise import SAMPLE


def same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """To the byte, but for the payloads of NaN."""
    a, b = a.cpu(), b.cpu()
    one = torch.zeros((), dtype=a.dtype)
    return torch.equal(a.isnan(), b.isnan()) and same_bytes(
        torch.where(a.isnan(), one, a), torch.where(b.isnan(), one, b)
    )


def on(device, tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


# --- route ---


@pytest.mark.parametrize("problem", routes(SAMPLE), ids=lambda p: p.id)
def test_route(kernel, device, generator, problem):
    logits, bias = draw_route(problem, generator)
    read = guarded(logits, device, **LAYOUTS[problem.layout])
    shape = problem.tokens, problem.chosen
    weights, experts = Guarded(shape, torch.float32, device), Guarded(shape, torch.int32, device)
    options = problem.options(on(device, bias))
    best, scoring = options["group_score"] == "max", SCORINGS.index(options["scoring"])
    of_groups = problem.groups, problem.top_groups, best, problem.renormalize, problem.factor
    kernel._ops.ops.moe_route(weights.t, experts.t, read.t, options["bias"], None, problem.chosen, scoring, *of_groups)
    for buffer in (weights, experts):
        buffer.assert_guards_intact(problem.id)
    read.assert_unchanged(problem.id)
    assert_route(problem, logits, bias, weights.t.cpu(), experts.t.cpu())
    got = kernel.moe_route(read.t, problem.chosen, **options)
    assert same_bytes(got[0], weights.t) and same_bytes(got[1], experts.t)


def spread_logits(tokens: int, experts: int, generator) -> torch.Tensor:
    """Of each token all different, and far enough apart for float32 to know their order after any scoring."""
    return torch.stack(
        [torch.linspace(-3, 3, experts)[torch.randperm(experts, generator=generator)] for _ in range(tokens)]
    )


@pytest.mark.parametrize("renormalize", (False, True))
@pytest.mark.parametrize("scoring", SCORINGS)
def test_experts_that_are_given_are_weighed(kernel, device, generator, scoring, renormalize):
    """None are chosen; twice the same, and those that there are not, may be among them."""
    logits = normal((9, 32), torch.float32, generator, 3.0).to(device)
    given = torch.randint(-3, 36, (9, 5), generator=generator).int()
    given[0], given[1] = -1, 31
    options = dict(scoring=scoring, renormalize=renormalize, factor=1.5)
    weights, experts = kernel.moe_route(logits, 5, experts=given.to(device), **options)
    assert torch.equal(experts.cpu(), given)
    every, by_choice = kernel.moe_route(logits, 32, scoring=scoring)
    scores = torch.zeros_like(every).scatter(1, by_choice.long(), every)
    known = ((given >= 0) & (given < 32)).to(device)
    wanted = torch.where(known, scores.gather(1, given.clamp(0, 31).long().to(device)), 0)
    if renormalize:
        wanted = wanted / (wanted.sum(-1, keepdim=True) + 1e-20)
    torch.testing.assert_close(weights, wanted * 1.5, rtol=1e-6, atol=0)
    reference = kernel.reference.moe_route(logits, 5, experts=given.to(device), **options)[0]
    torch.testing.assert_close(weights, reference, rtol=2e-6, atol=1e-20)
    assert bool((weights[~known] == 0).all())


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("groups, top_groups, group_score", [(1, 1, "max"), (5, 2, "top2"), (5, 3, "max")])
def test_route_of_special_values(kernel, device, generator, scoring, groups, top_groups, group_score):
    """NaN and infinities, some and all, beside ordinary tokens: distinct experts in range, of the definition."""
    nan, infinity = torch.nan, torch.inf
    logits = spread_logits(12, 40, generator)
    ordinary = logits.clone()
    logits[1, 7], logits[2, ::3], logits[3] = nan, nan, nan
    logits[4, 9], logits[5, ::4], logits[6] = infinity, infinity, infinity
    logits[7, 11], logits[8, 1::2], logits[9] = -infinity, -infinity, -infinity
    logits[10, 3:30], logits[10, 31] = -infinity, nan
    options = dict(scoring=scoring, groups=groups, top_groups=top_groups, group_score=group_score)
    for dtype in FLOATS[:1] if groups > 1 else FLOATS:
        values, plain = logits.to(dtype), ordinary.to(dtype)
        weights, experts = (t.cpu() for t in kernel.moe_route(values.to(device), 6, **options))
        wanted, of_reference = kernel.reference.moe_route(values, 6, **options)
        assert torch.equal(experts, of_reference)
        assert (experts.sort(-1).values.diff(dim=-1) > 0).all() and (experts >= 0).all() and (experts < 40).all()
        assert torch.equal(weights.isnan(), wanted.isnan())
        # 64 roundings: more than there are on the way to a weight.
        assert ((weights - wanted).abs().nan_to_num() <= wanted.abs().nan_to_num() * 2.0**-18 + 2.0**-100).all()
        alone = kernel.moe_route(plain.to(device), 6, **options)
        assert same_bytes(alone[0][[0, 11]], weights[[0, 11]]) and same_bytes(alone[1][[0, 11]], experts[[0, 11]])


@pytest.mark.parametrize("groups, top_groups, group_score", [(1, 1, "max"), (5, 3, "top2"), (5, 2, "max")])
def test_route_of_special_biases(kernel, device, generator, groups, top_groups, group_score):
    logits, bias = spread_logits(4, 40, generator), torch.zeros(40)
    bias[3], bias[9:12], bias[16:24], bias[30] = torch.nan, torch.inf, -torch.inf, torch.nan
    options = dict(scoring="sigmoid", groups=groups, top_groups=top_groups, group_score=group_score, renormalize=True)
    weights, experts = kernel.moe_route(logits.to(device), 8, bias=bias.to(device), **options)
    wanted, of_reference = kernel.reference.moe_route(logits, 8, bias=bias, **options)
    assert torch.equal(experts.cpu(), of_reference)
    assert ((weights.cpu() - wanted).abs() <= wanted * 2.0**-18).all()


@pytest.mark.parametrize("experts", [1, 8, 64, 200, 1024])
def test_route_of_equal_logits(kernel, device, experts):
    """Ties go to the lower index, of groups to the lower group."""
    top, logits = min(experts, 32), torch.full((3, experts), 0.25, device=device)
    for scoring in SCORINGS:
        weights, chosen = kernel.moe_route(logits, top, scoring=scoring, renormalize=True, factor=2.0)
        assert torch.equal(chosen.cpu(), torch.arange(top).int().expand(3, -1))
        assert ((weights - 2 / top).abs() <= 2 / top * (top + 4) * 2.0**-24).all()
    if experts >= 8:
        logits[1, experts // 2] = 1.0  # of the third of four groups, which now is before the others
        for score in ("max", "top2"):
            options = dict(groups=4, top_groups=2, group_score=score)
            _, chosen = kernel.moe_route(logits, min(32, experts // 2), **options)
            _, wanted = kernel.reference.moe_route(logits.cpu(), min(32, experts // 2), **options)
            assert torch.equal(chosen.cpu(), wanted)


def test_route_of_a_token_among_others(kernel, device, generator):
    """Its bits do not depend on how many there are, nor on how rows lie."""
    logits = normal((700, 128), torch.bfloat16, generator, 2.0)
    options = dict(scoring="softmax", groups=8, top_groups=3, renormalize=True)
    together = kernel.moe_route(logits.to(device), 6, **options)
    for row in (0, 1, 333, 699):
        alone = kernel.moe_route(logits[row : row + 1].to(device), 6, **options)
        assert all(same_bytes(a, b[row : row + 1]) for a, b in zip(alone, together))
    with threads(1):
        again = kernel.moe_route(guarded(logits, device, **LAYOUTS["padded"]).t, 6, **options)
    assert all(same_bytes(a, b) for a, b in zip(again, together))


# --- sort ---


def check_sort(kernel, device, ids: torch.Tensor, experts: int, of_map: torch.Tensor | None, what: str) -> None:
    read = guarded(ids, device)
    rows, offsets = (Guarded((n,), torch.int32, device) for n in (ids.numel(), experts + 1))
    positions = Guarded(ids.shape, torch.int32, device)
    kernel._ops.ops.moe_sort(rows.t, offsets.t, positions.t, read.t, on(device, of_map), experts)
    wanted = kernel.reference.moe_sort(ids, experts, expert_map=of_map)
    for name, got, of_reference in zip(("rows", "offsets", "positions"), (rows, offsets, positions), wanted):
        got.assert_guards_intact(what)
        assert same_bytes(got.t, of_reference), f"{what} {name}"
    read.assert_unchanged(what)


@pytest.mark.parametrize("problem", sorts(SAMPLE), ids=lambda p: p.id)
def test_sort(kernel, device, generator, problem):
    ids, of_map = draw_sort(problem, generator)
    check_sort(kernel, device, ids, problem.experts, of_map, problem.id)


def test_sort_is_what_it_says(kernel, device, generator):
    """By the definition, not the reference."""
    ids = ROUTINGS["some-dropped"](90, 7, 20, generator)
    rows, offsets, positions = (t.cpu() for t in kernel.moe_sort(ids.to(device), 20))
    flat = ids.flatten().tolist()
    slots = sorted((s for s in range(len(flat)) if 0 <= flat[s] < 20), key=lambda s: (flat[s], s))
    assert rows.tolist() == slots + [-1] * (len(flat) - len(slots))
    assert offsets.tolist() == [sum(0 <= e < limit for e in flat) for limit in range(21)]
    assert all(rows[p] == s if p >= 0 else not 0 <= flat[s] < 20 for s, p in enumerate(positions.flatten().tolist()))


def test_sort_of_a_routing(kernel, device, generator):
    """The experts that moe_route has chosen, as they come."""
    logits = normal((40, 64), torch.bfloat16, generator).to(device)
    _, experts = kernel.moe_route(logits, 6)
    got, wanted = kernel.moe_sort(experts, 64), kernel.reference.moe_sort(experts.cpu(), 64)
    assert all(same_bytes(a, b) for a, b in zip(got, wanted))


@pytest.mark.full
@pytest.mark.parametrize("tokens, slots, experts", [(65536, 32, 256), (65536, 8, 1024), (4097 * 1024 + 1, 1, 7)])
def test_sort_of_many_slots(kernel, device, generator, tokens, slots, experts):
    """The last: parts of several tiles."""
    for name in ("any", "all-to-one", "most-dropped"):
        ids = ROUTINGS[name](tokens, slots, experts, generator).int()
        check_sort(kernel, device, ids, experts, None, name)


# --- combine ---


def run_combine(
    kernel, device, o: Operands, dtype: torch.dtype, layout: str = "dense", out: str = "dense", what=""
) -> torch.Tensor:
    y = guarded(o.y, device, **LAYOUTS[layout])
    shared = None if o.shared is None else guarded(o.shared, device, **LAYOUTS[layout])
    written = Guarded((len(o.weights), o.y.shape[1]), dtype, device, **LAYOUTS[out])
    got = kernel.moe_combine(
        *(y.t, o.weights.to(device), o.positions.to(device)), shared=None if shared is None else shared.t, out=written.t
    )
    assert got is written.t
    written.assert_guards_intact(what)
    y.assert_unchanged(what)
    return written.t


@pytest.mark.parametrize("problem", combines(SAMPLE), ids=lambda p: p.id)
def test_combine(kernel, device, generator, problem):
    o = draw_combine(problem, generator)
    got = run_combine(kernel, device, o, problem.out, problem.layout, problem.layout_out, problem.id)
    assert same_bytes(got, combined(o, problem.out))


def test_combine_is_the_references(kernel, device, generator):
    for dtype in FLOATS:
        o = draw_combine(Combine(20, 6, 136, dtype, None, dtype, "some-dropped", "dense", "dense"), generator)
        given = o.y, o.weights, o.positions
        got = kernel.moe_combine(*(t.to(device) for t in given))
        assert got.dtype == dtype and same_bytes(got, kernel.reference.moe_combine(*given))


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
@pytest.mark.parametrize("d", [8, 33])
def test_combine_of_special_values(kernel, device, generator, dtype, d):
    """NaN, infinities and overflow in y, weights and shared: in their tokens and nowhere else."""
    o = draw_combine(Combine(9, 4, d, dtype, torch.float32, dtype, "some-dropped", "dense", "dense"), generator)
    o.positions[0, :3] = torch.tensor([0, 1, 2])
    o.y[0, 3], o.y[1, 5], o.y[2, 5] = torch.nan, torch.inf, -torch.inf
    o.weights[4, 1], o.weights[5, 0], o.weights[6, 2] = torch.nan, torch.inf, 3e38
    o.weights[7, 1], o.shared[8, 2], o.shared[3, 1] = -0.0, torch.nan, -torch.inf
    o.weights.view(torch.int32)[2, 1] = 0x7F800001  # NaN whose upper half is an infinity's
    for out in FLOATS:
        assert same_numbers(run_combine(kernel, device, o, out), combined(o, out))


def test_combine_without_rows_slots_or_columns(kernel, device):
    for tokens, slots, rows, d in ((0, 2, 3, 8), (3, 0, 2, 8), (3, 2, 0, 8), (3, 2, 3, 0)):
        y, positions = torch.ones(rows, d, device=device), torch.zeros(tokens, slots, dtype=torch.int32, device=device)
        shared = torch.full((tokens, d), 2.0, device=device)
        weights = torch.ones(tokens, slots, device=device)
        assert torch.equal(kernel.moe_combine(y, weights, positions), torch.full_like(shared, min(rows, 1) * slots))
        both = kernel.moe_combine(y, weights, positions, shared=shared)
        assert torch.equal(both, torch.full_like(shared, 2 + min(rows, 1) * slots))


def test_one_after_the_other(kernel, device, generator):
    """Sorted rows that are the tokens themselves, by weights whose sum is 1, give the tokens."""
    x = normal((30, 96), torch.float32, generator)
    weights, experts = kernel.moe_route(normal((30, 16), torch.float32, generator).to(device), 4, renormalize=True)
    rows, offsets, positions = kernel.moe_sort(experts, 16)
    assert int(offsets[-1]) == 120
    y = x.to(device)[rows.long() // 4]
    got = kernel.moe_combine(y, weights, positions).cpu()
    assert ((got - x).abs() <= x.abs() * 12 * 2.0**-24).all()
