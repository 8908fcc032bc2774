"""MX formats: GEMMs with such weights, quantisation to MXFP4, and the gates of experts."""

import torch

from problems.inputs import FLOATS, FP8, HALF, mx_codes, mx_exponents
from problems.registry.changes import Arguments, Bad, given, refused, replace
from problems.registry.entry import Draw, Operator, T
from problems.registry.moe import EXPERTS, INTEGERS, SLOTS, integers

BF16, F32, U8 = torch.bfloat16, torch.float32, torch.uint8
K, N = 96, 20


def draw_dense(on: Draw) -> Arguments:
    return dict(
        a=mx_codes((on.rows, K), on.fp8, on.generator),
        b=mx_codes((N, K // 2), U8, on.generator),
        scale_a=mx_exponents((on.rows, K // 32), on.generator),
        scale_b=mx_exponents((N, K // 32), on.generator),
        bias=on.half(N),
    )


def draw_grouped(on: Draw) -> Arguments:
    rows = on.rows * SLOTS
    return dict(
        a=mx_codes((on.rows, K), on.fp8, on.generator),
        b=mx_codes((EXPERTS, N, K // 2), U8, on.generator),
        scale_a=mx_exponents((on.rows, K // 32), on.generator),
        scale_b=mx_exponents((EXPERTS, N, K // 32), on.generator),
        offsets=integers(0, min(rows, 3), min(rows, 3), rows),
        rows=on.permuted(rows).int(),
        slots=SLOTS,
        bias=on.half(EXPERTS, N),
    )


def halves(args: Arguments) -> Arguments:
    return dict(a=args["a"].to(BF16), scale_a=None, out_dtype=F32)


def of_rows(args: Arguments) -> Arguments:
    return dict(scale_a=torch.rand(len(args["a"]), 1) + 0.5, bias=None)


def of_mxfp8(args: Arguments) -> Arguments:
    codes = torch.cat([args["b"], args["b"].flip(-1)], -1) & 0xBF  # no NaN
    return dict(b=codes.view(args["a"].dtype))


def of_mxfp4(args: Arguments) -> Arguments:
    a = args["a"].view(U8)[:, : K // 2].clone(memory_format=torch.contiguous_format)
    return dict(a=a, scale_a=args["scale_a"].view(U8))


def ungathered(args: Arguments) -> Arguments:
    a = args["a"].to(torch.float16).repeat_interleave(SLOTS, 0)
    return dict(a=a, scale_a=None, rows=None, slots=1, expected_rows=3)


def of_fp8_weights(args: Arguments) -> Arguments:
    b = torch.cat([args["b"], args["b"]], -1) & 0xBF
    scales = dict(scale_a=torch.rand(len(args["a"]), 1) + 0.5, scale_b=torch.rand(EXPERTS, N, 1) + 0.5)
    return dict(b=b.view(args["a"].dtype), out_dtype=args["a"].dtype) | scales


FORMS = {"mxfp8": {}, "halves": halves, "of-rows": of_rows, "weights-of-mxfp8": of_mxfp8, "both-of-mxfp4": of_mxfp4}
OPERANDS = {
    "a": T((U8, *FP8, *HALF)),
    "b": T((U8, *FP8)),
    "scale_a": T((F32, U8), "scales", "any", optional=True),
    "scale_b": T((U8,), "fixed", "any", instead="a|b"),
    "bias": T(FLOATS, "fixed", "any", optional=True),
    "out": T(FLOATS, "fixed", optional=True),
}
OF_BOTH = (
    Bad("a", "k-of-no-blocks", lambda args: args.update(a=args["a"][:, :-1])),
    Bad("a", "no-k", lambda args: args.update(a=args["a"][:, :0], b=args["b"][..., :0])),
    Bad("b", "k-of-its-own", replace("b", lambda t: t[..., :-1])),
    Bad("scale_a", "missing", given(scale_a=None)),
    Bad("scale_a", "of-128", replace("scale_a", lambda t: t[:, :1])),
    Bad("scale_a", "one-missing", replace("scale_a", lambda t: t[:-1])),
    Bad("scale_b", "in-float32", lambda args: args.update(scale_b=args["scale_b"].float()), of_function=True),
    Bad("scale_b", "none-of-the-function", given(scale_b=None), of_function=True),
)
GROUPED = OPERANDS | {"offsets": INTEGERS, "rows": T((torch.int32,), "free", "dense", optional=True)}
OF_GROUPED = (
    *OF_BOTH,
    Bad("b", "no-experts", replace("b", lambda t: t[:0])),
    Bad("b", "1025-experts", replace("b", lambda t: t[:1].expand(1025, -1, -1))),
    Bad("slots", "0", given(slots=0)),
    Bad("slots", "without-rows", given(rows=None)),
    Bad("expected_rows", "negative", given(expected_rows=-1)),
)


def draw_gate(on: Draw) -> Arguments:
    return dict(
        x=torch.randn(on.rows, 2 * on.d, generator=on.generator) * 4, offsets=integers(0, on.rows, on.rows), limit=3.0
    )


GATES = {
    "silu": {},
    "oai": dict(gate="oai", alpha=1.5, interleaved=True, offsets=None, out_dtype=torch.float16),
    "situ": lambda args: dict(gate="situ", beta=4.0, linear_beta=25.0, limit=None, x=args["x"].to(BF16)),
}
OF_GATE = (
    Bad("x", "odd", replace("x", lambda t: t[:, :-1])),
    Bad("x", "one-dim-of-the-function", given(x=torch.zeros(8), out=None), of_function=True),
    *refused("gate", "gelu", None, 1),
    *refused("limit", 0, -1.0, "3"),
    *refused("alpha", None, float("nan"), "1"),
    *(Bad(name, "beside-silu", given(**{name: 4.0}), of_function=True) for name in ("beta", "linear_beta")),
    *refused("beta", None, 0.0, -1.0, float("inf"), gate="situ"),
    *refused("linear_beta", 0.0, gate="situ", beta=1.0),
    *refused("interleaved", None, 1, "yes"),
    *refused("out_dtype", F32, out=None),
)
OF_QUANTIZE = (
    Bad("x", "no-blocks", replace("x", lambda t: t[:, :-1])),
    *refused("rounding", "down", None, 1),
)
OPERATORS = (
    Operator("block_scaled_gemm_mx", draw_dense, FORMS, OPERANDS, bad=OF_BOTH, registered_is_spoilt=True),
    Operator(
        "grouped_gemm_mx",
        draw_grouped,
        FORMS | {"ungathered": ungathered},
        GROUPED,
        bad=OF_GROUPED,
        registered_is_spoilt=True,
    ),
    Operator(
        "grouped_gemm_gate_mx",
        lambda on: draw_grouped(on) | dict(gate="oai", alpha=1.5, limit=2.0, interleaved=True),
        {
            "mxfp8": {},
            "situ": dict(gate="situ", beta=4.0, linear_beta=25.0, limit=None, interleaved=False),
            "halves": lambda args: dict(a=args["a"].to(BF16), scale_a=None, out_dtype=torch.float16),
            "ungathered": ungathered,
        },
        GROUPED | {"out": T(HALF, "fixed", optional=True)},
        bad=(
            *OF_GROUPED,
            Bad("b", "odd", lambda args: args.update(b=args["b"][:, :-1], scale_b=args["scale_b"][:, :-1], bias=None)),
            *(bad for bad in OF_GATE if bad.named not in ("x", "out_dtype") and bad.why != "beside-silu"),
            *(Bad(name, "beside-oai", given(**{name: 4.0}), of_function=True) for name in ("beta", "linear_beta")),
        ),
        registered_is_spoilt=True,
    ),
    Operator(
        "grouped_gemm_swiglu_fp8_mx",
        lambda on: draw_grouped(on) | dict(gate="situ", beta=4.0, linear_beta=25.0, scaling="group", group_size=32),
        {
            "situ": {},
            "oai": dict(gate="oai", alpha=1.5, limit=2.0, interleaved=True, beta=None, linear_beta=None),
            "static": dict(gate="silu", beta=None, linear_beta=None, scale=torch.full((1,), 0.5), dtype=torch.float16),
            "fp8-weights": of_fp8_weights,
        },
        results=("out", "scale_out"),
        written=("out", "scale_out"),
        composite=True,
    ),
    Operator(
        "moe_gate",
        draw_gate,
        GATES,
        {
            "x": T(FLOATS),
            "offsets": T((torch.int32,), "free", "dense", optional=True, vector=True),
            "out": T(HALF, "fixed", optional=True),
        },
        bad=OF_GATE,
        registered_is_spoilt=True,
    ),
    Operator(
        "quantize_mxfp4",
        lambda on: dict(x=on.half(on.rows, K), rounding="even"),
        {"even": {}, "up": lambda args: dict(rounding="up", x=args["x"].float())},
        {
            "x": T(FLOATS, batches=True),
            "out": T((U8,), "fixed", "dense", optional=True),
            "scale_out": T((U8,), "fixed", "dense", optional=True),
        },
        ("out", "scale_out"),
        ("out", "scale_out"),
        OF_QUANTIZE,
        registered_is_spoilt=True,
        exact=True,
    ),
)
