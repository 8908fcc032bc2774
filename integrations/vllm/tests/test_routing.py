"""The router of mixtures beside an engine: what it computes, and which of vLLM's routers stay."""

import inspect
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from rocm_fp8_vllm import routing
from vllm.model_executor.layers.fused_moe.router import router_factory
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

from .settings import of_cpus_alone

pytestmark = of_cpus_alone

COUNT, TOP = 16, 4
GROUPS = {
    "no groups": dict(use_grouped_topk=False),
    "4 groups": dict(use_grouped_topk=True, num_expert_group=4, topk_group=2),
    "one group": dict(use_grouped_topk=True, num_expert_group=1, topk_group=1),
    "n_group null": dict(use_grouped_topk=True, num_expert_group=None, topk_group=None),
}


def made(**settings) -> CPURouter:
    return CPURouter(**dict(top_k=TOP, global_num_experts=COUNT) | settings)


def ours(router: CPURouter) -> CPURouter:
    assert routing._can_route(router)
    router.__class__ = routing.MoeRouteRouter
    return router


def shuffled(generator, dtype: torch.dtype) -> torch.Tensor:
    """Logits [50, COUNT], no two of a row equal, in bfloat16 either."""
    return torch.stack([torch.randperm(COUNT, generator=generator) for _ in range(50)]).to(dtype) / 8


def spread(weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """float64 [T, COUNT]: an expert's weight at its place, and 0 where it was not chosen."""
    assert chosen.dtype == torch.int32 and weights.dtype == torch.float32
    return torch.zeros(len(chosen), COUNT, dtype=torch.float64).scatter_(1, chosen.long(), weights.double())


def defined(router: CPURouter, logits: torch.Tensor) -> torch.Tensor:
    """What a model means by such a router, in float64: score, bias for the choice alone, renormalisation, factor."""
    logits, bias = logits.double(), router.e_score_correction_bias
    scores = logits.softmax(-1) if router.scoring_func == "softmax" else logits.sigmoid()
    choice = scores if bias is None else scores + bias.double()
    groups = (router.num_expert_group or 1) if router.use_grouped_topk else 1
    if groups > 1:
        of_groups = choice.unflatten(1, (groups, -1))
        best = of_groups.amax(-1) if bias is None else of_groups.topk(2).values.sum(-1)
        kept = torch.zeros_like(best).scatter_(1, best.topk(router.topk_group).indices, 1).bool()
        choice = of_groups.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(1)
    chosen = choice.topk(router.top_k).indices
    weights = scores.gather(1, chosen)
    if router.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(1, chosen, weights * router.routed_scaling_factor)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_all_that_a_router_has_is_computed(groups, scoring, bias, generator):
    """A bias of deviation 1 decides alone which experts are chosen; without it others are."""
    logits = shuffled(generator, torch.float32)
    for renormalize, factor, dtype in product((False, True), (1.0, 2.5), (torch.float32, torch.bfloat16)):
        settings = GROUPS[groups] | dict(scoring_func=scoring, renormalize=renormalize, routed_scaling_factor=factor)
        if bias:
            settings["e_score_correction_bias"] = torch.randn(COUNT, generator=generator).to(dtype)
        router = ours(made(**settings))
        expected = defined(router, logits)
        got = spread(*router._compute_routing(logits, logits, None))
        assert torch.equal(got > 0, expected > 0)
        # Float32: the exponential's 2 ulp, and sums of 16.
        torch.testing.assert_close(got, expected, rtol=2.0**-19, atol=0)
        if bias and dtype == torch.float32:
            router.e_score_correction_bias = None
            assert not torch.equal(defined(router, logits) > 0, expected > 0)


THEIRS = {
    "softmax": dict(renormalize=False),
    "softmax, renormalised": dict(renormalize=True),
    "groups": dict(use_grouped_topk=True, num_expert_group=4, topk_group=2, renormalize=False),
    "DeepSeek-V3": dict(
        use_grouped_topk=True,
        num_expert_group=4,
        topk_group=2,
        renormalize=True,
        scoring_func="sigmoid",
        routed_scaling_factor=2.5,
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", THEIRS)
def test_the_router_chooses_as_vllms_does(name, dtype, generator):
    """Where vLLM's router for CPUs computes all that it has."""
    settings = dict(THEIRS[name])
    if name == "DeepSeek-V3":
        settings["e_score_correction_bias"] = 0.1 * torch.randn(COUNT, generator=generator)
    logits = shuffled(generator, dtype)
    expected, got = (
        spread(*each._compute_routing(logits, logits, None)) for each in (made(**settings), ours(made(**settings)))
    )
    # vLLM's softmax of bfloat16 logits is rounded to that.
    near = 2.0**-7 if dtype == torch.bfloat16 else 2.0**-20
    torch.testing.assert_close(got, expected, rtol=near, atol=0)


# --- which stay ---

KEPT = {
    "custom_routing_function": dict(custom_routing_function=lambda **_: None),
    "hash_indices_table": dict(hash_indices_table=torch.zeros(256, TOP, dtype=torch.int32)),
    "eplb_state": dict(eplb_state=SimpleNamespace()),
    "scoring_func": dict(scoring_func="sqrtsoftplus", e_score_correction_bias=torch.zeros(COUNT)),
    "top_k": dict(top_k=33, global_num_experts=64),
    "global_num_experts": dict(global_num_experts=1025),
    "routed_scaling_factor": dict(routed_scaling_factor=None),
    "e_score_correction_bias": dict(e_score_correction_bias=torch.zeros(COUNT - 1)),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_moe_route_lacks_stays_vllms(what):
    assert not routing._can_route(made(**KEPT[what]))


# bias_vl, image_sentinel_lo: of vLLM's base class, which images' tokens have experts by. Others may come.
@pytest.mark.parametrize("name", ["bias_vl", "image_sentinel_lo", "of_a_later_vllm", "_compute_routing"])
@pytest.mark.parametrize(
    "value", [torch.zeros(COUNT), 5, "other", lambda *_: None], ids=lambda each: type(each).__name__
)
def test_an_attribute_that_is_not_known_stays_vllms(name, value):
    router = made()
    for unset in (None, 0, False, "", ()):
        setattr(router, name, unset)
        assert routing._can_route(router)
    setattr(router, name, value)
    assert not routing._can_route(router)


def test_each_argument_of_vllms_router_is_handed_on_or_keeps_it():
    names = set(inspect.signature(CPURouter.__init__).parameters) - {"self"}
    assert names == routing._HANDED_ON | {"custom_routing_function", "hash_indices_table", "eplb_state"}
    assert set(vars(made())) >= routing._HANDED_ON | routing._SERVED


def test_other_classes_stay(monkeypatch):
    sizes = dict(top_k=TOP, global_num_experts=COUNT)
    make = router_factory.create_fused_moe_router
    assert routing._can_route(make(**sizes))
    assert not routing._can_route(ours(make(**sizes)))  # is one already
    assert not routing._can_route(type("Derived", (CPURouter,), {})(**sizes))
    zero = dict(zero_expert_type="identity", num_logical_experts=12, e_score_correction_bias=torch.zeros(COUNT))
    assert not routing._can_route(make(**sizes, **zero))
    monkeypatch.setenv("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "uniform_random")
    assert not routing._can_route(make(**sizes))


def test_what_vllm_hangs_around_a_router_is_served(generator):
    """It records choices, which engines do that return routed experts."""
    router, seen = made(scoring_func="sigmoid"), []
    router.set_capture_fn(seen.append)
    router._routing_replay_out = torch.zeros(60, TOP, dtype=torch.int16)
    logits = shuffled(generator, torch.float32)
    _, chosen = ours(router).select_experts(logits, logits, torch.int64)
    assert chosen.dtype == torch.int64 and torch.equal(seen[0].long(), chosen)
    assert torch.equal(router._routing_replay_out[:50].long(), chosen)


@pytest.mark.parametrize(
    ("groups", "top_groups", "message"),
    [
        (None, 2, "n_group is None; needs a positive number"),
        (4, None, "topk_group is None; needs a positive number"),
        (0, 1, "n_group is 0; needs"),
        (5, 1, "n_group 5, topk_group 1; needs equal groups of the 16 experts, of which topk_group hold 4 or"),
        (4, 5, "n_group 4, topk_group 5; needs equal groups of the 16 experts, of which topk_group hold 4 or"),
        (8, 1, "n_group 8, topk_group 1; needs equal groups of the 16 experts, of which topk_group hold 4 or"),
    ],
)
def test_groups_that_are_none_are_one_line_at_the_start(groups, top_groups, message):
    with pytest.raises(ValueError, match=f"^experts: {message}"):
        routing._can_route(made(use_grouped_topk=True, num_expert_group=groups, topk_group=top_groups))
