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
