"""Bad input of the operators of mixtures of experts: RuntimeError names operator and argument; nothing is written."""

import pytest
import torch

from tests.operators.bad_calls import (
    Bad,
    Change,
    assert_refused,
    given,
    other_format,
    replace,
    share_last_element,
    to_dtype,
)
from tests.operators.moe_calls import EXPERTS, ROWS, SLOTS, TENSORS, TOKENS, WRITTEN, D, K, valid_call
from tests.problems.inputs import normal, positive, random_fp8
from tests.problems.operators import moe_operators, operators, tensors

GROUPED = tuple(operator for operator in TENSORS if operator.startswith("grouped"))
GATED = GROUPED[1:]
NUMBERS = ("expert_map", "offsets", "rows", "positions")
SCALES = ("scale", "scale_ub", "scale_a", "scale_b", "scale_out")
# Their shape follows from others'.
FIXED = {
    "moe_route": ("weights", "experts", "bias"),
    "moe_sort": ("rows", "offsets", "positions"),
    "moe_combine": ("positions", "shared", "out"),
    **{operator: ("scale_a", "scale_b", "offsets", "bias", "out", "scale_out") for operator in GROUPED},
}
ANY_LAYOUT = (*SCALES, "bias")  # of GEMMs


def spread(t: torch.Tensor) -> torch.Tensor:
    """Equal to t, every other element of a wider tensor; for what is written, without its values."""
    return t.new_zeros((*t.shape, 2))[..., 0]


def common(operator: str) -> list[Bad]:
    cases = []

    def add(name: str, why: str, change: Change, says: str = "") -> None:
        cases.append(Bad(operator, name, why, change, says))

    for name in TENSORS[operator]:
        integer = name in NUMBERS or name == "experts"
        wrong = [torch.float64, torch.int16, torch.bool, torch.complex64]
        wrong += [torch.float32, torch.float8_e4m3fn] if integer else [torch.int32, torch.int64]
        if name == "out" and operator in GATED:
            wrong += [torch.float32, torch.bfloat16]
        if name in ("scale", "scale_ub") or (name == "weights") or (name, operator) == ("bias", "moe_route"):
            wrong += [torch.float16, torch.bfloat16]
        if integer and (name, operator) != ("experts", "moe_sort"):
            wrong.append(torch.int64)
        for dtype in wrong:
            add(name, str(dtype).removeprefix("torch."), to_dtype(name, dtype))
        add(name, "meta", replace(name, lambda t: t.to("meta")), rf".*\b{name}\b.*\bmeta\b")
        if name not in SCALES:
            add(name, "zero-dim", replace(name, lambda t: t.flatten()[0]))
        if name not in ("scale", "scale_ub"):
            add(name, "one-dim-more", replace(name, lambda t: t[None]))
        else:
            add(name, "two-elements", replace(name, lambda t: t.repeat(2)))
            add(name, "empty", replace(name, lambda t: t[:0]))
        if name in FIXED[operator]:
            add(name, "one-missing", replace(name, lambda t: t[:-1]))
            add(
                name,
                "one-more",
                replace(name, lambda t: torch.cat([t.view(torch.uint8), t[:1].view(torch.uint8)]).view(t.dtype)),
            )
        if not (name in ANY_LAYOUT and operator in GROUPED):
            add(name, "strided", replace(name, spread))
    for target in WRITTEN[operator]:
        later = WRITTEN[operator][: WRITTEN[operator].index(target) + 1]
        for source in TENSORS[operator]:
            if source not in later:
                both = rf"({target}|{source}): .*overlaps"
                add(target, f"overlaps-{source}", share_last_element(target, source), both)
    return cases


CASES = [case for operator in TENSORS for case in common(operator)]
CASES += [
    Bad(operator, "out", "rows-on-one-another", replace("out", lambda t: t[:1].expand(t.shape)))
    for operator in ("moe_combine", *GROUPED)
]
for _operator in GROUPED:
    CASES += [
        Bad(_operator, "a", "float32", to_dtype("a", torch.float32)),
        Bad(_operator, "b", "mixed-formats", replace("b", lambda t: t.view(torch.uint8).view(other_format(t.dtype)))),
        Bad(_operator, "b", "k-of-its-own", replace("b", lambda t: t[..., :-1])),
        Bad(_operator, "a", "k-is-0", lambda args: args.update(a=args["a"][:, :0], b=args["b"][..., :0])),
        Bad(_operator, "b", "no-experts", replace("b", lambda t: t[:0])),
        Bad(_operator, "b", "1025-experts", replace("b", lambda t: t[:1].expand(1025, -1, -1))),
        Bad(_operator, "scale_a", "none", given(scale_a=None)),
        Bad(_operator, "scale_b", "none", given(scale_b=None)),
        Bad(_operator, "scale_a", "turned", replace("scale_a", lambda t: t.t().contiguous())),
        Bad(_operator, "scale_b", "of-one-expert", replace("scale_b", lambda t: t[0])),
        Bad(_operator, "slots", "0", given(slots=0)),
        Bad(_operator, "slots", "2^31", given(slots=2**31)),
        Bad(_operator, "slots", "without-rows", given(rows=None)),
        Bad(_operator, "expected_rows", "negative", given(expected_rows=-1)),
    ]
for _operator in GATED:
    CASES.append(
        Bad(_operator, "b", "odd", lambda args: args.update(b=args["b"][:, :-1], scale_b=args["scale_b"][:, :-1]))
    )
CASES += [
    Bad("moe_route", "logits", "no-experts", replace("logits", lambda t: t[:, :0])),
    Bad("moe_route", "logits", "1025-experts", replace("logits", lambda t: t.repeat(1, 129)[:, :1025])),
    Bad("moe_route", "groups", "0", given(groups=0)),
    Bad("moe_route", "groups", "no-divisor", given(groups=3)),
    Bad("moe_route", "top_groups", "0", given(top_groups=0)),
    Bad("moe_route", "top_groups", "more-than-groups", given(top_groups=5)),
    Bad("moe_route", "top_k", "0", given(top_k=0)),
    Bad("moe_route", "top_k", "more-than-left", given(top_k=5)),
    Bad("moe_route", "top_k", "33", lambda args: args.update(logits=args["logits"].repeat(1, 16), bias=None, top_k=33)),
    Bad("moe_sort", "num_experts", "0", given(num_experts=0)),
    Bad("moe_sort", "num_experts", "1025", given(num_experts=1025)),
    Bad("moe_combine", "weights", "33-slots", replace("weights", lambda t: t.repeat(1, 17)[:, :33].contiguous())),
    Bad("moe_combine", "positions", "a-slot-missing", replace("positions", lambda t: t[:, 1:].contiguous())),
]


def test_every_tensor_of_every_operator_is_spoilt(kernel):
    schemas = operators(kernel)
    named: dict[str, set[str]] = {}
    for operator, names in TENSORS.items():
        named.setdefault(operator.removesuffix("_static"), set()).update(names)
    assert named == {name: tensors(schemas[name]) for name in moe_operators(kernel)}


@pytest.mark.parametrize("operator", TENSORS)
def test_the_calls_that_are_spoilt_are_valid(kernel, device, generator, operator):
    call = valid_call(kernel, operator, device, generator)
    before = {name: call.arguments[name].clone() for name in WRITTEN[operator]}
    call(kernel)
    for name, guarded in zip(WRITTEN[operator], call.written, strict=True):
        guarded.assert_guards_intact(operator)
        changed = call.arguments[name].view(torch.uint8) != before[name].view(torch.uint8)
        assert changed.any(), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_refused(kernel, device, generator, case):
    assert_refused(kernel, valid_call(kernel, case.operator, device, generator), case)


# --- what the Python functions alone can refuse ---


def python_arguments(kernel, function: str, device, generator) -> dict:
    fp8 = kernel.fp8_dtype(device)

    def half(*shape: int) -> torch.Tensor:
        return normal(shape, torch.bfloat16, generator)

    columns = 2 * D if function != "grouped_gemm" else D
    grouped = dict(
        a=random_fp8((TOKENS, K), fp8, generator),
        b=random_fp8((EXPERTS, columns, K), fp8, generator),
        scale_a=positive((TOKENS, 1), generator),
        scale_b=positive((EXPERTS, columns, 1), generator),
        offsets=torch.tensor([0, 2, 2, 4], dtype=torch.int32),
    )
    slots = TOKENS, SLOTS
    of_sort = torch.randint(0, EXPERTS, slots, generator=generator).int()
    values = {
        "moe_route": dict(logits=half(TOKENS, 8), top_k=2),
        "moe_sort": dict(experts=of_sort, num_experts=EXPERTS),
        "moe_combine": dict(y=half(ROWS, D), weights=torch.ones(slots), positions=torch.zeros(slots).int()),
        "grouped_gemm": grouped,
        "grouped_gemm_swiglu_fp8": grouped,
        "fused_moe": dict(
            x=half(TOKENS, K),
            w13=random_fp8((EXPERTS, 2 * D, K), fp8, generator),
            w2=random_fp8((EXPERTS, K, D), fp8, generator),
            weights=torch.ones(slots),
            experts=of_sort,
            scale_w13=positive((EXPERTS, 1, 1), generator),
            scale_w2=positive((EXPERTS, 1, 1), generator),
        ),
    }[function]
    return {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in values.items()}


def no_tensor(function: str, *names: str) -> list[tuple[str, str, dict]]:
    return [(function, name, {name: value}) for name in names for value in (0.5, "1", [1])]


REFUSED = [
    *no_tensor("moe_route", "logits", "bias"),
    *no_tensor("moe_sort", "experts", "expert_map"),
    *no_tensor("moe_combine", "y", "weights", "positions", "shared", "out"),
    *no_tensor("grouped_gemm", "a", "b", "scale_a", "scale_b", "offsets", "rows", "bias", "out"),
    *no_tensor(
        "grouped_gemm_swiglu_fp8", "a", "b", "scale_a", "scale_b", "offsets", "rows", "scale", "scale_ub", "out"
    ),
    *no_tensor("fused_moe", "x", "w13", "w2", "weights", "experts"),
    *(("moe_route", name, {name: v}) for name in ("top_k", "groups", "top_groups") for v in (0, -1, 1.5, "2", None)),
    *(("moe_route", "scoring", dict(scoring=v)) for v in ("relu", None, 1)),
    *(("moe_route", "group_score", dict(group_score=v)) for v in ("top3", None, 1)),
    ("moe_route", "logits", dict(logits=torch.zeros(8))),
    *(("moe_sort", "num_experts", dict(num_experts=v)) for v in (0, -1, 1.5, "2", None)),
    ("moe_sort", "experts", dict(experts=torch.zeros(8, dtype=torch.int32))),
    ("moe_combine", "y", dict(y=torch.zeros(8))),
    ("moe_combine", "weights", dict(weights=torch.zeros(8))),
    *(
        (function, name, {name: v})
        for function in ("grouped_gemm", "grouped_gemm_swiglu_fp8")
        for name in ("slots", "expected_rows")
        for v in (0, -1, 1.5, "2")
    ),
    ("grouped_gemm", "out_dtype", dict(out_dtype=torch.float64)),
    ("grouped_gemm_swiglu_fp8", "out_dtype", dict(out_dtype=torch.float32)),
    ("grouped_gemm_swiglu_fp8", "dtype", dict(dtype=torch.float32)),
    ("grouped_gemm_swiglu_fp8", "scaling", dict(scaling="tensor")),
    ("grouped_gemm_swiglu_fp8", "scaling", dict(scaling="column")),
    ("grouped_gemm_swiglu_fp8", "group_size", dict(scaling="group", group_size=48)),
    ("grouped_gemm_swiglu_fp8", "limit", dict(limit=-1.0)),
    ("fused_moe", "inputs", dict(inputs="tensor")),
    ("fused_moe", "input_scale", dict(inputs="static")),
    ("fused_moe", "hidden_scale", dict(inputs="static", input_scale=torch.ones(1))),
    ("fused_moe", "input_scale", dict(input_scale=torch.ones(1))),
    ("fused_moe", "x", dict(x=torch.zeros(TOKENS, K))),
    ("fused_moe", "experts", dict(experts=torch.zeros(TOKENS + 1, SLOTS, dtype=torch.int32))),
    ("fused_moe", "experts", dict(experts=torch.zeros(TOKENS, dtype=torch.int32))),
    ("fused_moe", "inputs", dict(w13=torch.zeros(EXPERTS, 2 * D, K, dtype=torch.bfloat16))),
]


@pytest.mark.parametrize("function, named, changes", REFUSED, ids=lambda v: v if isinstance(v, str) else None)
def test_the_python_function_refuses(kernel, device, generator, function, named, changes):
    arguments = python_arguments(kernel, function, device, generator)
    getattr(kernel, function)(**arguments)
    changes = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in changes.items()}
    with pytest.raises(RuntimeError, match=f"^{function}: {named}: "):
        getattr(kernel, function)(**arguments | changes)


# --- fused_moe: what is wrong with its arguments, and not with those of its parts ---


def fused_arguments(kernel, base: str, device, generator) -> dict:
    """Valid calls: of FP8 experts (three ways of quantising), and of bfloat16 ones."""
    arguments = python_arguments(kernel, "fused_moe", device, generator)
    one = torch.ones(1, device=device)
    if base == "static":
        return arguments | dict(inputs="static", input_scale=one, hidden_scale=one)
    if base == "quantised":
        q, scale = kernel.quantize_fp8(arguments["x"], scaling="row")
        return arguments | dict(x=q, input_scale=scale, inputs="row")
    if base == "half":
        experts = {name: normal(arguments[name].shape, torch.bfloat16, generator).to(device) for name in ("w13", "w2")}
        return arguments | experts | dict(scale_w13=None, scale_w2=None)
    return arguments


def changed(name: str, change: Change):
    return lambda arguments: {name: change(arguments[name])}


def put(**values):
    return lambda arguments: {
        name: v.to(arguments["x"].device) if isinstance(v, torch.Tensor) else v for name, v in values.items()
    }


ALL = ("dynamic", "static", "quantised", "half")
QUANTISING = ALL[:3]
FULL = torch.zeros(TOKENS, K, dtype=torch.bfloat16)
# (the argument that is named, what is said of it, of which calls, the change)
FUSED = {
    "odd rows": ("w13", r"\[3, 47, 40\].*2 I", ALL, changed("w13", lambda t: t[:, :-1])),
    "no rows": ("w13", r"2 I", ALL, changed("w13", lambda t: t[:, :0])),
    "another D": ("w13", "x's D = 40", ALL, changed("w13", lambda t: t[..., :-1])),
    "two dimensions": ("w13", "E, 2 I, D", ALL, changed("w13", lambda t: t[0])),
    "no experts": ("w13", "1 to 1024 experts", ALL, changed("w13", lambda t: t[:0])),
    "1025 experts": ("w13", "1 to 1024 experts", ALL, changed("w13", lambda t: t[:1].expand(1025, -1, -1))),
    "experts of another half": ("w13", "bfloat16 beside x's torch.float16", ("half",), changed("x", torch.Tensor.half)),
    "float32 experts": ("w13", "float32 beside x's", ALL, changed("w13", torch.Tensor.float)),
    "half experts of FP8 rows": ("w13", "beside x's torch.float8", ("quantised",), changed("w13", torch.Tensor.half)),
    "w13 on its side": ("w13", "stride", ALL, changed("w13", lambda t: t.mT.contiguous().mT)),
    "w13 elsewhere": ("w13", "on device meta, but x", ALL, changed("w13", lambda t: t.to("meta"))),
    "w2 of another I": ("w2", r"\[3, 40, 24\]", ALL, changed("w2", lambda t: t[..., :-1])),
    "w2 of another D": ("w2", r"\[3, 40, 24\]", ALL, changed("w2", lambda t: t[:, :-1])),
    "w2 of other experts": ("w2", r"\[3, 40, 24\]", ALL, changed("w2", lambda t: t[:-1])),
    "w2 of two dimensions": ("w2", "E, D, I", ALL, changed("w2", lambda t: t[0])),
    "w2 of another dtype": ("w2", "needs w13's", ALL, changed("w2", torch.Tensor.float)),
    "w2 on its side": ("w2", "stride", ALL, changed("w2", lambda t: t.mT.contiguous().mT)),
    "x of three dimensions": ("x", r"T, D", ALL, changed("x", lambda t: t[None])),
    "x of one dimension": ("x", r"T, D", ALL, changed("x", lambda t: t[0])),
    "x on its side": ("x", "stride", ALL, changed("x", lambda t: t.t().contiguous().t())),
    "x without values": ("x", "T, D", ALL, changed("x", lambda t: t[:, :0])),
    "weights in half": ("weights", "torch.float32", ALL, changed("weights", torch.Tensor.half)),
    "weights of other tokens": ("weights", "experts' ", ALL, changed("weights", lambda t: t[:-1])),
    "weights of one dimension": ("weights", "experts' ", ALL, changed("weights", torch.Tensor.flatten)),
    "weights on their side": ("weights", "contiguous", ALL, changed("weights", lambda t: t.t().contiguous().t())),
    "experts in 16 bits": ("experts", "int32, torch.int64", ALL, changed("experts", torch.Tensor.short)),
    "experts on their side": ("experts", "contiguous", ALL, changed("experts", lambda t: t.t().contiguous().t())),
    "no choice": (
        *("experts", "k from 1 to 32", ALL),
        lambda a: dict(experts=a["experts"][:, :0], weights=a["weights"][:, :0]),
    ),
    "33 choices": (
        *("experts", "k from 1 to 32", ALL),
        lambda a: dict(experts=a["experts"][:, :1].repeat(1, 33), weights=a["weights"][:, :1].repeat(1, 33)),
    ),
    "a map in 64 bits": ("expert_map", "int32", ALL, put(expert_map=torch.zeros(3, dtype=torch.int64))),
    "a map of two dimensions": ("expert_map", "int32", ALL, put(expert_map=torch.zeros(1, 3, dtype=torch.int32))),
    "scale_w13 of rows of w2": ("scale_w13", r"\[3, 48, 1\]", QUANTISING, put(scale_w13=torch.ones(3, 40, 1))),
    "scale_w2 of rows of w13": ("scale_w2", r"\[3, 40, 1\]", QUANTISING, put(scale_w2=torch.ones(3, 48, 1))),
    "scale_w13 in half": ("scale_w13", "torch.float32", QUANTISING, put(scale_w13=torch.ones(3, 1, 1).half())),
    "scale_w2 in half": ("scale_w2", "torch.float32", QUANTISING, put(scale_w2=torch.ones(3, 1, 1).half())),
    "scale_w13 of nothing": ("scale_w13", "None; experts of", QUANTISING, put(scale_w13=None)),
    "scale_w2 of nothing": ("scale_w2", "None; experts of", QUANTISING, put(scale_w2=None)),
    "scale_w13 of half experts": ("scale_w13", "have no scales", ("half",), put(scale_w13=torch.ones(3, 1, 1))),
    "scale_w2 of half experts": ("scale_w2", "have no scales", ("half",), put(scale_w2=torch.ones(3, 1, 1))),
    "two input scales": ("input_scale", "one element", ("static",), put(input_scale=torch.ones(2))),
    "an input scale in half": ("input_scale", "torch.float32", ("static",), put(input_scale=torch.ones(1).half())),
    "scales of other rows": ("input_scale", r"\[4, 1\]", ("quantised",), put(input_scale=torch.ones(3, 1))),
    "rows without scales": ("input_scale", "None; needs", ("quantised",), put(input_scale=None)),
    "two hidden scales": ("hidden_scale", "one element", ("static",), put(hidden_scale=torch.ones(2))),
    "a hidden scale in half": ("hidden_scale", "torch.float32", ("static",), put(hidden_scale=torch.ones(1).half())),
    "shared of other tokens": ("shared", r"\[4, 40\]", ALL, put(shared=FULL[:-1])),
    "shared of another D": ("shared", r"\[4, 40\]", ALL, put(shared=FULL[:, :-1])),
    "shared of integers": ("shared", "allowed", ALL, put(shared=FULL.int())),
    "shared on its side": ("shared", "stride", ALL, put(shared=FULL.t().contiguous().t())),
    "out of other tokens": ("out", r"\[4, 40\]", ALL, put(out=FULL[:-1].clone())),
    "out of another D": ("out", r"\[4, 40\]", ALL, put(out=FULL[:, :-1].clone())),
    "out of integers": ("out", "allowed", ALL, put(out=FULL.int())),
    "no tensor for shared": ("shared", "needs a tensor", ALL, put(shared=1.0)),
    "no tensor for a scale": ("scale_w2", "needs a tensor", QUANTISING, put(scale_w2=1.0)),
    "a dtype that is not x's": ("dtype", "x's", ("dynamic", "static", "half"), put(dtype=torch.float16)),
    "dtype float32": ("dtype", "allowed", ALL, put(dtype=torch.float32)),
    "a limit below zero": ("limit", "positive", ALL, put(limit=-1.0)),
    "a limit that rounds to zero": ("limit", "positive in torch.bfloat16", QUANTISING, put(limit=1e-45)),
}
SPOILT = [(base, what) for what, (_, _, bases, _) in FUSED.items() for base in bases]


@pytest.mark.parametrize("base", ALL)
def test_fused_calls_that_are_spoilt_are_valid(kernel, device, generator, base):
    arguments = fused_arguments(kernel, base, device, generator)
    for module in (kernel, kernel.reference):
        assert module.fused_moe(**arguments, limit=1e-30).shape == (TOKENS, K)


@pytest.mark.parametrize("base, what", SPOILT, ids=[f"{base}-{what}" for base, what in SPOILT])
def test_fused_moe_names_its_own_argument(kernel, device, generator, base, what):
    """In the operators' words and in the reference's; `out` is as it was."""
    named, says, _, change = FUSED[what]
    arguments = fused_arguments(kernel, base, device, generator)
    arguments |= change(arguments)
    out = arguments.setdefault("out", torch.full((TOKENS, K), 7.0, device=device))
    before = out.clone()
    for module in (kernel, kernel.reference):
        with pytest.raises(RuntimeError, match=rf"^fused_moe: {named}: .*{says}"):
            module.fused_moe(**arguments)
    assert torch.equal(out, before)
