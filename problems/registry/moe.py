"""The parts of a mixture of experts: routing, sorting, grouped GEMMs, the sum over slots."""

import torch

from problems.inputs import FLOATS, FP8, HALF
from problems.registry.changes import Arguments, Bad, given, in_other_format, refused, replace, to_dtype
from problems.registry.entry import Draw, Operator, T

BF16, F32, I32, E8M0, U8 = torch.bfloat16, torch.float32, torch.int32, torch.float8_e8m0fnu, torch.uint8
SLOTS, EXPERTS = 2, 3


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=I32)


# --- the router ---


def draw_route(on: Draw) -> Arguments:
    given = dict(top_k=SLOTS, scoring="sigmoid", groups=4, top_groups=2, renormalize=True, factor=1.5)
    return dict(logits=on.half(on.rows, 8), bias=torch.randn(8, generator=on.generator)) | given


ROUTES = {
    "groups": {},
    "softmax": dict(scoring="softmax", bias=None, groups=1, top_groups=1, renormalize=False, factor=1.0),
    "max": lambda args: dict(group_score="max", logits=args["logits"].half()),
    "float32": lambda args: dict(logits=args["logits"].float(), scoring="sqrtsoftplus"),
    "given": lambda args: dict(experts=integers(3, 9).expand(len(args["logits"]), 2).contiguous(), bias=None),
}
OF_ROUTE = (
    Bad("logits", "no-experts", replace("logits", lambda t: t[:, :0])),
    Bad("logits", "1025-experts", replace("logits", lambda t: t.repeat(1, 129)[:, :1025])),
    Bad("groups", "0", given(groups=0)),
    Bad("groups", "no-divisor", given(groups=3)),
    Bad("top_groups", "0", given(top_groups=0)),
    Bad("top_groups", "more-than-groups", given(top_groups=5)),
    Bad("top_k", "0", given(top_k=0)),
    Bad("top_k", "more-than-left", given(top_k=5)),
    Bad("top_k", "33", lambda args: args.update(logits=args["logits"].repeat(1, 16), bias=None, top_k=33)),
    *(bad for name in ("top_k", "groups", "top_groups") for bad in refused(name, 0, -1, 1.5, "2", None)),
    *refused("scoring", "relu", None, 1),
    *refused("group_score", "top3", None, 1),
    Bad("logits", "one-dim", given(logits=torch.zeros(8)), of_function=True),
)


# --- what is sorted, and summed ---


def draw_sort(on: Draw) -> Arguments:
    return dict(
        experts=torch.randint(-1, 6, (on.rows, SLOTS), generator=on.generator).int(),
        num_experts=EXPERTS,
        expert_map=integers(2, -1, 0, 1, 1),
    )


OF_SORT = (
    Bad("num_experts", "0", given(num_experts=0)),
    Bad("num_experts", "1025", given(num_experts=1025)),
    *refused("num_experts", 0, -1, 1.5, "2", None),
    Bad("experts", "one-dim", given(experts=torch.zeros(8, dtype=I32)), of_function=True),
)


def draw_combine(on: Draw) -> Arguments:
    return dict(
        y=on.half(on.rows * SLOTS, on.d),
        weights=torch.rand(on.rows, SLOTS, generator=on.generator),
        positions=on.permuted(on.rows * SLOTS).int().view(on.rows, SLOTS),
        shared=on.half(on.rows, on.d),
    )


OF_COMBINE = (
    Bad("weights", "33-slots", replace("weights", lambda t: t.repeat(1, 17)[:, :33].contiguous())),
    Bad("positions", "a-slot-missing", replace("positions", lambda t: t[:, 1:].contiguous())),
    Bad("y", "one-dim", given(y=torch.zeros(8), out=None), of_function=True),
    Bad("weights", "one-dim", given(weights=torch.zeros(8), out=None), of_function=True),
)


# --- grouped GEMMs ---


def draw_grouped(on: Draw, columns: int | None = None) -> Arguments:
    columns, rows = columns or on.d, on.rows * SLOTS
    return dict(
        a=on.codes(on.rows, on.k),
        b=on.codes(EXPERTS, columns, on.k),
        scale_a=on.positive(on.rows, 1),
        scale_b=on.positive(EXPERTS, columns, 1),
        offsets=integers(0, min(rows, 3), min(rows, 3), rows),
        rows=on.permuted(rows).int(),
        slots=SLOTS,
    )


def draw_gated(on: Draw) -> Arguments:
    return draw_grouped(on, 2 * on.d) | dict(scale_ub=torch.full((1,), 1e6))


def halves(args: Arguments) -> Arguments:
    """16-bit operands, without a gather."""
    a, b = args["a"].to(BF16).repeat_interleave(SLOTS, 0), args["b"].to(BF16)
    return dict(a=a, b=b, scale_a=None, scale_b=None, rows=None, slots=1, bias=None)


def of_bytes(args: Arguments) -> Arguments:
    scales = dict(scale_a=args["scale_a"].to(E8M0), scale_b=args["scale_b"].to(E8M0))
    return scales | dict(out_dtype=F32, expected_rows=5)


OF_GROUPED = (
    Bad("a", "dtype-float32", to_dtype("a", F32)),
    Bad("a", "k-is-0", lambda args: args.update(a=args["a"][:, :0], b=args["b"][..., :0])),
    Bad("b", "mixed-formats", replace("b", in_other_format)),
    Bad("b", "k-of-its-own", replace("b", lambda t: t[..., :-1])),
    Bad("b", "no-experts", replace("b", lambda t: t[:0])),
    Bad("b", "1025-experts", replace("b", lambda t: t[:1].expand(1025, -1, -1))),
    Bad("scale_a", "missing", given(scale_a=None)),
    Bad("scale_b", "missing", given(scale_b=None)),
    Bad("scale_a", "turned", replace("scale_a", lambda t: t.t().contiguous())),
    Bad("scale_b", "of-one-expert", replace("scale_b", lambda t: t[0])),
    *(Bad(name, "one-missing", replace(name, lambda t: t[:-1])) for name in ("scale_a", "scale_b")),
    *(Bad(name, "one-more", replace(name, lambda t: torch.cat([t, t[:1]]))) for name in ("scale_a", "scale_b")),
    *(Bad(name, "one-dim-more", replace(name, lambda t: t[None])) for name in ("scale_a", "scale_b")),
    Bad("slots", "0", given(slots=0)),
    Bad("slots", "2^31", given(slots=2**31)),
    Bad("slots", "without-rows", given(rows=None)),
    Bad("expected_rows", "negative", given(expected_rows=-1)),
    *(bad for name in ("slots", "expected_rows") for bad in refused(name, 0, -1, 1.5, "2")),
)
ODD = Bad("b", "odd", lambda args: args.update(b=args["b"][:, :-1], scale_b=args["scale_b"][:, :-1]))
OF_GATED = tuple(
    Bad(named, "-".join(map(str, values.values())), given(**values), of_function=True)
    for named, values in (
        ("out_dtype", dict(out_dtype=F32)),
        ("dtype", dict(dtype=F32)),
        ("scaling", dict(scaling="tensor")),
        ("scaling", dict(scaling="column")),
        ("group_size", dict(scaling="group", group_size=48)),
        ("limit", dict(limit=-1.0)),
    )
)
OF_PRODUCT = Bad("out_dtype", "float64", given(out_dtype=torch.float64), of_function=True)


def of_each(cases: tuple[Bad, ...], *forms: str) -> tuple[Bad, ...]:
    return tuple(Bad(b.named, b.why, b.change, b.says, form, b.of_function) for b in cases for form in forms)


INTEGERS = T((I32,), "fixed", "dense", vector=True)
GROUPED = {
    "a": T((*FP8, *HALF)),
    "b": T((*FP8, *HALF)),
    "scale_a": T((F32, U8), "scales", "any", optional=True),
    "scale_b": T((F32, U8), "scales", "any", optional=True),
    "offsets": INTEGERS,
    "rows": T((I32,), "free", "dense", optional=True),
}
GATED = GROUPED | {
    "scale": T((F32,), "one", optional=True),
    "scale_ub": T((F32,), "one", optional=True),
    "out": T(FP8, "fixed", optional=True),
    "scale_out": T((F32, U8), "fixed", "any", optional=True),
}
OPERATORS = (
    Operator(
        "moe_route",
        draw_route,
        ROUTES,
        {
            "logits": T(FLOATS, instead="weights|bias|groups"),
            "bias": T((F32,), "fixed", "dense", optional=True, vector=True),
            "given": T((I32,), "fixed", "dense", optional=True, made=True),  # the function's `experts`
            "weights": T((F32,), "fixed", "dense", made=True),
            "experts": T((I32,), "fixed", "dense", made=True),
        },
        ("weights", "experts"),
        (),
        OF_ROUTE,
        {"groups": ("logits", "bias", "weights", "experts"), "given": ("given",)},
        registered_is_spoilt=True,
    ),
    Operator(
        "moe_sort",
        draw_sort,
        {"map": {}, "no-map": lambda args: dict(expert_map=None, experts=args["experts"].long())},
        {
            "experts": T((I32, torch.int64), "free", "dense"),
            "expert_map": T((I32,), "free", "dense", optional=True),
            "rows": T((I32,), "fixed", "dense", vector=True, made=True),
            "offsets": T((I32,), "fixed", "dense", vector=True, made=True),
            "positions": T((I32,), "fixed", "dense", made=True),
        },
        ("rows", "offsets", "positions"),
        (),
        OF_SORT,
        registered_is_spoilt=True,
        exact=True,
    ),
    Operator(
        "moe_combine",
        draw_combine,
        {
            "shared": {},
            "no-shared": dict(shared=None),
            "f16": lambda args: dict(y=args["y"].half()),
            "f32": lambda args: dict(y=args["y"].float()),
        },
        {
            "y": T(FLOATS),
            "weights": T((F32,), "free", "dense", instead="positions|out|shared"),
            "positions": T((I32,), "fixed", "dense"),
            "shared": T(FLOATS, "fixed", optional=True),
            "out": T(FLOATS, "fixed", optional=True),
        },
        bad=OF_COMBINE,
        registered_is_spoilt=True,
        exact=True,
    ),
    Operator(
        "grouped_gemm",
        lambda on: draw_grouped(on) | dict(bias=on.half(EXPERTS, on.d)),
        {
            "gather": {},
            "no-bias": dict(bias=None),
            "bytes": of_bytes,
            "halves": halves,
            "f16": lambda args: (
                {n: None if t is None else t.half() for n, t in halves(args).items() if n in ("a", "b")}
                | {n: v for n, v in halves(args).items() if n not in ("a", "b")}
            ),
        },
        GROUPED | {"bias": T(FLOATS, "fixed", "any", optional=True), "out": T(FLOATS, "fixed", optional=True)},
        bad=(*OF_GROUPED, OF_PRODUCT),
        registered_is_spoilt=True,
    ),
    Operator(
        "grouped_gemm_swiglu_fp8",
        draw_gated,
        {
            "row": {},
            "static": lambda args: dict(scale=torch.full((1,), 0.7), scale_ub=None),
            "group": dict(scaling="group", group_size=32, limit=2.0, scale_ub=None),
            "group-bytes-columns": dict(
                scaling="group", scale_dtype=E8M0, column_major_scales=True, out_dtype=torch.float8_e4m3fnuz
            ),
            "power": dict(dtype=torch.float16, power_of_two=True, fp8_max=200.0, expected_rows=3),
            "halves": lambda args: {name: v for name, v in halves(args).items() if name != "bias"},
        },
        GATED,
        ("out", "scale_out"),
        ("out", "scale_out"),
        (*of_each((*OF_GROUPED, ODD), "row", "static"), *OF_GATED),
        {
            "row": tuple(name for name in GATED if name != "scale"),
            "static": tuple(name for name in GATED if name not in ("scale_ub", "scale_out")),
        },
        registered_is_spoilt=True,
    ),
)
