"""The operators of mixtures of experts in torch.compile without graph breaks; torch's own checks of the registrations;
their writes counted for autograd."""

from collections.abc import Callable

import pytest
import torch

from tests.operators.compiled import BACKEND, Result, assert_meta_as, both_ways, parts
from tests.operators.moe_calls import TENSORS, WRITTEN, valid_arguments, valid_call
from tests.problems.buffers import same_bytes
from tests.problems.inputs import normal, positive, random_fp8
from tests.problems.operators import moe_operators

TOKENS, SLOTS, EXPERTS, D, INNER = 5, 2, 6, 40, 48


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


GROUPS = dict(scoring="sigmoid", groups=3, top_groups=2, renormalize=True, factor=2.5)
LIMIT = dict(limit=2.0, scaling="group", group_size=32)
WITH_OUT = ("combine", "grouped", "swiglu", "fused")  # forms begin so that take `out`


def calls(kernel) -> dict[str, Callable[..., Result]]:
    """Each function, in each of its forms, as a function of tensors alone."""
    k = kernel

    def fused(**given) -> Callable[..., Result]:
        return lambda x, w13, w2, s13, s2, weights, experts, **o: k.fused_moe(
            *(x, w13, w2, weights, experts), scale_w13=s13, scale_w2=s2, **given, **o
        )

    def fused_static(x, w13, w2, s13, s2, weights, experts, one, **o):
        given = dict(scale_w13=s13, scale_w2=s2, inputs="static", input_scale=one, hidden_scale=one)
        return k.fused_moe(x, w13, w2, weights, experts, **given, **o)

    def fused_shared(x, w13, w2, s13, s2, weights, experts, shared, of_map, **o):
        given = dict(scale_w13=s13, scale_w2=s2, shared=shared, expert_map=of_map, limit=1.5)
        return k.fused_moe(x, w13, w2, weights, experts, **given, **o)

    return {
        "route": lambda logits: k.moe_route(logits, SLOTS),
        "route-groups": lambda logits, bias: k.moe_route(logits, SLOTS, bias=bias, **GROUPS),
        "sort": lambda experts: k.moe_sort(experts, EXPERTS),
        "sort-map": lambda experts, of_map: k.moe_sort(experts, EXPERTS, expert_map=of_map),
        "combine": lambda y, weights, positions, **o: k.moe_combine(y, weights, positions, **o),
        "combine-shared": lambda y, weights, positions, shared, **o: k.moe_combine(
            y, weights, positions, shared=shared, **o
        ),
        "grouped": lambda a, b, sa, sb, offsets, rows, bias, **o: k.grouped_gemm(
            a, b, sa, sb, offsets, rows=rows, slots=SLOTS, bias=bias, **o
        ),
        "grouped-half": lambda a, b, offsets, **o: k.grouped_gemm(a, b, None, None, offsets, **o),
        "swiglu": lambda a, b, sa, sb, offsets, rows, **o: k.grouped_gemm_swiglu_fp8(
            a, b, sa, sb, offsets, rows=rows, slots=SLOTS, **o
        ),
        "swiglu-group": lambda a, b, sa, sb, offsets, rows, **o: k.grouped_gemm_swiglu_fp8(
            a, b, sa, sb, offsets, rows=rows, slots=SLOTS, **LIMIT, **o
        ),
        "swiglu-static": lambda a, b, sa, sb, offsets, rows, scale, **o: k.grouped_gemm_swiglu_fp8(
            a, b, sa, sb, offsets, rows=rows, slots=SLOTS, scale=scale, **o
        )[0],
        "fused": fused(),
        "fused-row": fused(inputs="row"),
        "fused-static": fused_static,
        "fused-shared": fused_shared,
        "fused-half": lambda x, w13, w2, weights, experts, **o: k.fused_moe(x, w13, w2, weights, experts, **o),
    }


def arguments(kernel, name: str, tokens: int, device, generator) -> tuple[torch.Tensor, ...]:
    fp8, slots = kernel.fp8_dtype(device), tokens * SLOTS

    def half(*shape: int) -> torch.Tensor:
        return normal(shape, torch.bfloat16, generator)

    def codes(*shape: int) -> torch.Tensor:
        return random_fp8(shape, fp8, generator)

    def one_each() -> torch.Tensor:
        return positive((EXPERTS, 1, 1), generator)

    x, experts = half(tokens, D), torch.randint(0, EXPERTS, (tokens, SLOTS), generator=generator)
    weights = torch.rand(tokens, SLOTS, generator=generator)
    places = torch.randperm(slots, generator=generator).int()
    offsets = torch.tensor([slots * e // EXPERTS for e in range(EXPERTS + 1)], dtype=torch.int32)
    of_map = torch.arange(EXPERTS).roll(2).int()
    combine = half(slots, D), weights, places.view(tokens, SLOTS)
    scaled = positive((tokens, 1), generator), one_each(), offsets, places
    fused = x, codes(EXPERTS, 2 * INNER, D), codes(EXPERTS, D, INNER), one_each(), one_each(), weights, experts
    gated = codes(tokens, D), fused[1], *scaled
    values = {
        "route": (half(tokens, 30),),
        "route-groups": (half(tokens, 30), torch.rand(30, generator=generator)),
        "sort": (experts.int(),),
        "sort-map": (experts, of_map),
        "combine": combine,
        "combine-shared": (*combine, half(tokens, D)),
        "grouped": (codes(tokens, D), codes(EXPERTS, INNER, D), *scaled, half(EXPERTS, INNER)),
        "grouped-half": (half(slots, D), half(EXPERTS, INNER, D), offsets),
        "swiglu": gated,
        "swiglu-group": gated,
        "swiglu-static": (*gated, torch.full((1,), 0.7)),
        "fused": fused,
        "fused-row": fused,
        "fused-static": (*fused, torch.full((1,), 0.05)),
        "fused-shared": (*fused, half(tokens, D), of_map),
        "fused-half": (x, half(EXPERTS, 2 * INNER, D), half(EXPERTS, D, INNER), weights, experts),
    }[name]
    return tuple(value.to(device) for value in values)


def backend_of(name: str) -> str:
    """Inductor rounds torch's own SwiGLU, of experts that are not quantised, less often than torch does."""
    return "aot_eager" if name == "fused-half" else BACKEND


FORMS = tuple(calls(None))
every_form = pytest.mark.parametrize("name", FORMS)


@pytest.mark.parametrize("name", [name for name in FORMS if name.startswith(WITH_OUT)])
def test_one_graph_that_writes_into_out(kernel, device, generator, name):
    args = arguments(kernel, name, TOKENS, device, generator)
    out = torch.empty_like(parts(calls(kernel)[name](*args))[0])

    def function(out, *args):
        before = out.float() * 2
        result = parts(calls(kernel)[name](*args, out=out))[0]
        # What is computed from `out` afterwards must see the new values.
        return before + result.float() + out.float()

    both_ways(function, (out.fill_(1), *args), torch.compile(function, fullgraph=True, backend=backend_of(name)))


@every_form
def test_one_graph(kernel, device, generator, name):
    args = arguments(kernel, name, TOKENS, device, generator)
    compiled = torch.compile(calls(kernel)[name], fullgraph=True, backend=backend_of(name))
    got = both_ways(calls(kernel)[name], args, compiled)
    assert parts(got)[0].float().abs().sum() > 0


@every_form
def test_any_number_of_tokens_in_one_graph(kernel, device, generator, name):
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(calls(kernel)[name], fullgraph=True, backend="aot_eager", dynamic=True)
        for tokens in (5, 17, 64):
            both_ways(calls(kernel)[name], arguments(kernel, name, tokens, device, generator), compiled)


@every_form
def test_meta_tensors_give_shapes(kernel, device, generator, name):
    args = arguments(kernel, name, TOKENS, device, generator)
    assert_meta_as(calls(kernel)[name](*(a.to("meta") for a in args)), calls(kernel)[name](*args))


def test_a_layer_in_one_graph(kernel, device, generator):
    """From the router's logits to the residual, nothing read on the host in between."""
    x, w13, w2, s13, s2, *_ = arguments(kernel, "fused", TOKENS, device, generator)
    router = normal((EXPERTS, D), torch.bfloat16, generator).to(device)

    def function(x, router, w13, w2, s13, s2):
        weights, experts = kernel.moe_route(x @ router.t(), SLOTS, renormalize=True)
        return x + kernel.fused_moe(x, w13, w2, weights, experts, scale_w13=s13, scale_w2=s2, shared=x * 0.5)

    args = x, router, w13, w2, s13, s2
    # Inductor may round torch's own operations less often.
    both_ways(function, args, torch.compile(function, fullgraph=True, backend="aot_eager"))


# --- the registrations ---

every_operator = pytest.mark.parametrize("operator", TENSORS)


def registered(kernel, operator: str):
    return getattr(kernel._ops.ops, operator.removesuffix("_static")).default


def samples(kernel, operator: str, device, generator):
    """The registered operator's arguments, in the schema's order: without tokens; all; without optional ones."""
    names = [argument.name for argument in registered(kernel, operator)._schema.arguments]
    for tokens, left_out in ((0, ()), (4, ()), (4, ("bias", "expert_map", "shared", "scale_ub"))):
        given = valid_arguments(kernel, operator, device, generator, tokens)
        yield tuple(None if name in left_out else given[name] for name in names)


def test_no_operator_is_left_out(kernel):
    assert {operator.removesuffix("_static") for operator in TENSORS} == moe_operators(kernel)
    assert WRITTEN.keys() == TENSORS.keys()


@every_operator
def test_torchs_checks_of_the_registration(kernel, device, generator, operator):
    utilities = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    # It compares arguments with arithmetic that torch lacks for FP8.
    if operator.startswith("moe"):
        utilities.append("test_schema")
    for sample in samples(kernel, operator, device, generator):
        torch.library.opcheck(registered(kernel, operator), sample, test_utils=utilities)


@every_operator
def test_what_the_schema_says_is_written_and_nothing_else(kernel, device, generator, operator):
    op = registered(kernel, operator)
    declared = {argument.name for argument in op._schema.arguments if argument.is_write}
    for sample in list(samples(kernel, operator, device, generator))[1:]:
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample]
        assert op(*sample) is None
        changed = {
            argument.name
            for argument, a, b in zip(op._schema.arguments, sample, before)
            if isinstance(a, torch.Tensor) and not same_bytes(a, b)
        }
        given = {argument.name for argument, a in zip(op._schema.arguments, sample) if a is not None}
        assert changed == declared & given == set(WRITTEN[operator])


# --- autograd ---


@every_operator
def test_written_arguments_count_their_writes(kernel, device, generator, operator):
    given = valid_call(kernel, operator, device, generator).arguments
    tensors = {name: t for name, t in given.items() if isinstance(t, torch.Tensor)}
    before = {name: t._version for name, t in tensors.items()}
    ordered = [given[argument.name] for argument in registered(kernel, operator)._schema.arguments]
    getattr(kernel.ops.moe.ops, operator.removesuffix("_static"))(*ordered)
    assert {name for name, t in tensors.items() if t._version > before[name]} == set(WRITTEN[operator])


@pytest.mark.parametrize(
    "name, argument",
    [("route-groups", 0), ("route-groups", 1), ("combine-shared", 0), ("combine-shared", 1), ("combine-shared", 3)]
    + [("grouped", 2), ("grouped", 3), ("grouped", 6), ("grouped-half", 0), ("grouped-half", 1), ("fused-half", 3)],
)
@pytest.mark.parametrize("compiler", [None, "aot_eager"])
def test_a_gradient_that_would_get_lost_is_refused(kernel, device, generator, name, argument, compiler):
    function = calls(kernel)[name]
    if compiler:
        function = torch.compile(function, fullgraph=True, backend=compiler)
    args = arguments(kernel, name, TOKENS, device, generator)
    args[argument].requires_grad_()
    with pytest.raises(Exception, match=r"(moe_route|moe_combine|grouped_gemm): \w+: requires grad"):
        function(*args)
    with torch.no_grad():
        function(*args)
