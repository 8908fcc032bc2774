"""Calls of mla_decode and mla_append: bad ones are refused by name; torch.compile without graph breaks; torch's own
checks of the registrations; writes counted for autograd."""

import pytest
import torch

from tests.operators.bad_calls import Bad, assert_refused, given, other_format, replace, share_last_element, to_dtype
from tests.operators.compiled import BACKEND, assert_meta_as, both_ways
from tests.operators.mla_calls import OPTIONAL, TENSORS, TOKENS, WRITTEN, valid_arguments, valid_call
from tests.problems.buffers import same_bytes
from tests.problems.inputs import normal
from tests.problems.operators import mla_operators, operators, tensors

every_operator = pytest.mark.parametrize("operator", TENSORS)


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# --- bad input ---

INTEGERS = {"lengths": torch.int32, "block_table": torch.int32, "slots": torch.int64}


def common(operator: str) -> list[Bad]:
    cases = []

    def add(name: str, why: str, change, says: str = "") -> None:
        cases.append(Bad(operator, name, why, change, says))

    for name in TENSORS[operator]:
        wrong = {torch.float64, torch.int8, torch.bool, torch.complex64, torch.float32, torch.int32, torch.int64}
        wrong -= {INTEGERS.get(name)} | ({torch.float32} if name in ("cache_scale", "lse_out", "cos") else set())
        for dtype in sorted(wrong, key=str):
            add(name, str(dtype).removeprefix("torch."), to_dtype(name, dtype), rf"({name}|sin): .*dtype")
        add(name, "meta", replace(name, lambda t: t.to("meta")), rf".*\b{name}\b.*\bmeta\b")
        if name != "cache_scale":
            add(name, "zero-dim", replace(name, lambda t: t.flatten()[0]))
            add(name, "one-dim-more", replace(name, lambda t: t[None]))
            add(name, "strided", replace(name, lambda t: t.new_zeros((*t.shape, 2))[..., 0]))
        else:
            add(name, "two-elements", replace(name, lambda t: t.repeat(2)))
            add(name, "none", given(cache_scale=None))
        if name not in ("cache", "cache_scale"):
            others = {"q": r"(lengths|block_table|out)", "k_rope": r"(kv|slots)"}.get(name, name)
            add(name, "one-missing", replace(name, lambda t: t[:-1]), rf"{others}: shape")
        if name in ("q", "cache", "kv", "k_rope", "cos", "sin", "out"):
            add(name, "narrow", replace(name, lambda t: t[..., :-1]))
    for target in WRITTEN[operator]:
        later = WRITTEN[operator][: WRITTEN[operator].index(target) + 1]
        for source in TENSORS[operator]:
            if source not in (*later, "cache_scale"):
                both = rf"({target}|{source}): .*overlaps"
                add(target, f"overlaps-{source}", share_last_element(target, source), both)
    return cases


def dense(args: dict) -> None:
    args.update(block_table=None)


def one_token_a_page_more(args: dict) -> None:
    cache = args["cache"]
    args["cache"] = cache.new_zeros(1, 257, 576, dtype=torch.uint8).view(cache.dtype)


CASES = [case for operator in TENSORS for case in common(operator)]
CASES += [
    Bad("mla_decode", "q", "no-heads", replace("q", lambda t: t[:, :, :0])),
    Bad("mla_decode", "q", "129-heads", replace("q", lambda t: t.repeat(1, 1, 43, 1))),
    Bad("mla_decode", "q", "9-queries", replace("q", lambda t: t.repeat(1, 5, 1, 1)[:, :9])),
    Bad("mla_decode", "cache", "of-another-batch", dense),
    Bad("mla_decode", "cache", "no-pages", replace("cache", lambda t: t[:0])),
    Bad("mla_decode", "cache", "257-tokens-a-page", one_token_a_page_more),
    Bad(
        "mla_decode",
        "cache",
        "656-codes",
        replace("cache", lambda t: t.new_zeros(7, 4, 656, dtype=torch.uint8)),
        "cache_scale: given",
    ),
    Bad("mla_decode", "cache", "576-bytes", replace("cache", lambda t: t.view(torch.uint8))),
    Bad("mla_decode", "cache", "float16-for-bfloat16", to_dtype("cache", torch.float16)),
    Bad("mla_append", "cache", "rows-on-one-another", replace("cache", lambda t: t[:1].expand(t.shape))),
    Bad("mla_append", "sin", "none", given(sin=None)),
    Bad("mla_append", "cos", "none", given(cos=None)),
    Bad("mla_append", "interleaved", "without-angles", given(cos=None, sin=None)),
    Bad("mla_append", "sin", "of-another-type", to_dtype("sin", torch.float32)),
]


def test_every_tensor_of_every_operator_is_spoilt(kernel):
    schemas = operators(kernel)
    assert {name: set(names) for name, names in TENSORS.items()} == {
        name: tensors(schemas[name]) for name in mla_operators(kernel)
    }


@every_operator
def test_the_calls_that_are_spoilt_are_valid(kernel, device, generator, operator):
    call = valid_call(kernel, operator, device, generator)
    before = {name: call.arguments[name].clone() for name in WRITTEN[operator]}
    call(kernel)
    for name, guarded in zip(WRITTEN[operator], call.written, strict=True):
        guarded.assert_guards_intact(operator)
        assert not same_bytes(call.arguments[name], before[name])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_refused(kernel, device, generator, case):
    assert_refused(kernel, valid_call(kernel, case.operator, device, generator), case)


def test_the_other_format_on_a_gpu(kernel, device, generator, backend):
    """A CPU reads and writes both."""
    for operator in TENSORS:
        call = valid_call(kernel, operator, device, generator)
        call.arguments["cache"] = (
            call.arguments["cache"].view(torch.uint8).clone().view(other_format(call.arguments["cache"].dtype))
        )
        if backend == "cpu":
            call(kernel)
        else:
            with pytest.raises(RuntimeError, match=f"^{operator}: cache: dtype float8"):
                call(kernel)


REFUSED = [
    *((name, {name: 0.5}) for name in ("q", "cache", "lengths", "block_table", "cache_scale", "out", "lse_out")),
    ("q", dict(q=torch.zeros(2, 576))),
]


@pytest.mark.parametrize("name, change", REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_python_refuses(kernel, device, generator, name, change):
    given = valid_arguments(kernel, "mla_decode", device, generator) | change
    with pytest.raises(RuntimeError, match=f"^mla_decode: {name}: "):
        kernel.mla_decode(**given)
    given = valid_arguments(kernel, "mla_append", device, generator)
    for argument in TENSORS["mla_append"]:
        with pytest.raises(RuntimeError, match=f"^mla_append: {argument}: "):
            kernel.mla_append(**given | {argument: 0.5})
    with pytest.raises(TypeError):
        kernel.mla_append(**given, scale=1.0)


# --- torch.compile, torch's checks ---


def samples(kernel, operator: str, device, generator):
    """The registered operator's arguments, in the schema's order: all; without optional ones; without sequences."""
    names = [argument.name for argument in registered(kernel, operator)._schema.arguments]
    for left_out, sizes in (((), {}), (OPTIONAL, {}), ((), dict(batch=0, tokens=0))):
        given = valid_arguments(kernel, operator, device, generator, **sizes)
        if left_out and operator == "mla_decode":
            given["cache"] = given["cache"][: len(given["q"])].clone()
            given["lengths"].fill_(3)
        if left_out and operator == "mla_append":
            given["interleaved"] = False
        yield tuple(None if name in left_out else given[name] for name in names)


def registered(kernel, operator: str):
    return getattr(kernel._ops.ops, operator).default


@every_operator
def test_torchs_checks_of_the_registration(kernel, device, generator, operator):
    for sample in samples(kernel, operator, device, generator):
        utilities = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
        torch.library.opcheck(registered(kernel, operator), sample, test_utils=utilities)


@every_operator
def test_what_the_schema_says_is_written_and_nothing_else(kernel, device, generator, operator):
    op = registered(kernel, operator)
    for sample in list(samples(kernel, operator, device, generator))[:2]:
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample]
        assert op(*sample) is None
        changed = {
            argument.name
            for argument, a, b in zip(op._schema.arguments, sample, before)
            if isinstance(a, torch.Tensor) and not same_bytes(a, b)
        }
        given = {argument.name for argument, a in zip(op._schema.arguments, sample) if a is not None}
        assert changed == {a.name for a in op._schema.arguments if a.is_write} & given == set(WRITTEN[operator]) & given


@every_operator
def test_written_arguments_count_their_writes(kernel, device, generator, operator):
    given = valid_arguments(kernel, operator, device, generator)
    before = {name: t._version for name, t in given.items() if isinstance(t, torch.Tensor)}
    getattr(kernel.ops.mla.ops, operator)(*(given[a.name] for a in registered(kernel, operator)._schema.arguments))
    assert {name for name, version in before.items() if given[name]._version > version} == set(WRITTEN[operator])


def step(kernel):
    def function(kv, k_rope, cache, slots, cos, sin, scale, q, lengths, table):
        kernel.mla_append(kv, k_rope, cache, slots, cos=cos, sin=sin, cache_scale=scale)
        out = kernel.mla_decode(q, cache, lengths, 0.07, block_table=table, cache_scale=scale)
        return out * 2, out.amax(-1)

    return function


def step_arguments(kernel, device, generator, tokens: int = TOKENS) -> tuple[torch.Tensor, ...]:
    append = valid_arguments(kernel, "mla_append", device, generator, tokens=tokens)
    cache = normal((7, 4, 576), torch.bfloat16, generator).to(append["cache"].dtype).to(device)
    decode = valid_arguments(kernel, "mla_decode", device, generator, batch=tokens)
    named = (append[n] for n in ("kv", "k_rope"))
    rest = (append[n] for n in ("slots", "cos", "sin", "cache_scale"))
    return (*named, cache, *rest, *(decode[n] for n in ("q", "lengths", "block_table")))


def test_one_graph(kernel, device, generator):
    """The cache is written, then read, in compiled code as in eager's."""
    compiled = torch.compile(step(kernel), fullgraph=True, backend=BACKEND)
    got = both_ways(step(kernel), step_arguments(kernel, device, generator), compiled)
    assert got[0].float().abs().sum() > 0


def test_any_number_of_sequences_in_one_graph(kernel, device, generator):
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(step(kernel), fullgraph=True, backend="aot_eager", dynamic=True)
        for tokens in (5, 17, 20):
            both_ways(step(kernel), step_arguments(kernel, device, generator, tokens), compiled)


def test_meta_tensors_give_shapes(kernel, device, generator):
    args = step_arguments(kernel, device, generator)
    assert_meta_as(step(kernel)(*(a.to("meta") for a in args)), step(kernel)(*args))


@pytest.mark.parametrize("compiler", [None, "aot_eager"])
@pytest.mark.parametrize("place", [0, 1, 7])
def test_a_gradient_that_would_get_lost_is_refused(kernel, device, generator, compiler, place):
    function = step(kernel)
    if compiler:
        function = torch.compile(function, fullgraph=True, backend=compiler)
    args = step_arguments(kernel, device, generator)
    args[place].requires_grad_()
    with pytest.raises(Exception, match=r"mla_(append|decode): \w+: requires grad"):
        function(*args)
    with torch.no_grad():
        function(*args)
