"""The GEMMs of FP8."""

import torch

from problems.inputs import FLOATS, FP8
from problems.registry.changes import (
    Arguments,
    Bad,
    conflicting_out_dtype,
    in_columns,
    in_other_format,
    out_dtype_wrong,
    replace,
    spread,
    strided_out,
    to_dtype,
    zero_dim_without_out,
)
from problems.registry.entry import Draw, Operator, T

F32, E8M0 = torch.float32, torch.float8_e8m0fnu
BLOCKED_K = 304  # 3 blocks, which no other size is

BAD = (
    Bad("out", "strided-columns", strided_out),
    Bad("out_dtype", "conflict", conflicting_out_dtype),
    Bad("out_dtype", "float64", out_dtype_wrong(torch.float64)),
    Bad("out", "transposed", replace("out", lambda t: t.t().contiguous().t())),
    Bad("a", "one-dim", replace("a", lambda t: t[0])),
    Bad("a", "k-is-0", lambda args: args.update(a=args["a"][:, :0], b=args["b"][:, :0])),
    Bad("b", "one-dim", replace("b", lambda t: t[0])),
    Bad("b", "k-of-its-own", replace("b", lambda t: t[:, :-1])),
    Bad("b", "mixed-formats", replace("b", in_other_format)),
    Bad("scale_a", "row-missing", replace("scale_a", lambda t: t[:-1])),
    Bad("scale_a", "empty", replace("scale_a", lambda t: t[:0])),
    Bad("scale_a", "3-dims", replace("scale_a", lambda t: t[None])),
    *(Bad(name, "zero-dim-without-out", zero_dim_without_out(name)) for name in ("a", "b")),
)


def rows_beyond_the_limit(args: Arguments) -> None:
    args["a"] = args["a"][:1].expand(33, -1).contiguous()
    args["scale_a"] = args["scale_a"][:1]
    del args["out"]


OF_VECTORS = (
    Bad("a", "33-rows", rows_beyond_the_limit),
    Bad("scale_a", "as-a-row", replace("scale_a", lambda t: t.t())),
    Bad("scale_b", "column-missing", replace("scale_b", lambda t: t[:, :-1])),
    Bad("scale_b", "as-a-column", replace("scale_b", lambda t: t.t())),
    Bad("scale_b", "one-a-row", replace("scale_b", lambda t: t.expand(4, -1).contiguous())),
)
# a has a scale for each row and 128 k, [4, 3], b for its columns and 128 k, [1, 3].
OF_BLOCKS = tuple(
    Bad(name, why, change)
    for name in ("scale_a", "scale_b")
    for why, change in (
        ("block-missing", replace(name, lambda t: t[:, :-1])),
        ("block-too-many", replace(name, lambda t: t.repeat(1, 2)[:, :4])),
        ("row-of-blocks-too-many", replace(name, lambda t: t[:1].repeat(2, 1))),
        ("transposed", replace(name, lambda t: t.t().contiguous())),
        ("blocks-in-one-dim", replace(name, lambda t: t[0])),
        ("one-element-in-3-dims", replace(name, lambda t: t[:1, :1, None])),
        ("dtype-fp8", to_dtype(name, torch.float8_e4m3fn)),
        ("empty-e8m0", replace(name, lambda t: t[:0].to(E8M0))),
        ("block-missing-e8m0", replace(name, lambda t: t[:, :-1].to(E8M0))),
    )
) + (
    Bad("scale_b", "of-float32-beside-mxfp4", to_dtype("b", torch.uint8)),
    Bad("scale_a", "a-row-of-rows", replace("scale_a", lambda t: t[:, :1].t())),
    Bad("scale_b", "a-column-of-channels", lambda a: a.update(scale_b=a["scale_b"][:, :1].expand(len(a["b"]), 1))),
    *(Bad(name, "strided-both-ways", replace(name, lambda t: spread(t.t().contiguous()).t())) for name in ("a", "b")),
    *(
        Bad("out", f"overlaps-{name}-in-columns-{at}", in_columns(name, at))
        for name in ("a", "b", "scale_a")
        for at in ("first", "last")
    ),
)


def draw(on: Draw) -> Arguments:
    """skinny_gemm's."""
    return dict(
        a=on.codes(on.rows, on.k),
        b=on.codes(on.d, on.k),
        scale_a=on.positive(on.rows, 1),
        scale_b=on.positive(1, on.d),
        bias=on.half(on.d),
    )


def draw_blocks(on: Draw) -> Arguments:
    return dict(
        a=on.codes(on.rows, BLOCKED_K),
        b=on.codes(on.d, BLOCKED_K),
        scale_a=on.positive(on.rows, 3),
        scale_b=on.positive(1, 3),
        bias=on.half(on.d),
    )


def of_bytes(*names: str):
    """Powers of two as E8M0, whose bytes the operator takes."""
    return lambda args: {name: args[name].to(E8M0) for name in names}


FORMS = {
    "bias": {},
    "float32": dict(out_dtype=F32, bias=None, constant_b=True),
    "float16": lambda args: dict(out_dtype=torch.float16, bias=args["bias"].half()),
    "scalars": lambda args: dict(scale_a=args["scale_b"][:1, 0], scale_b=args["scale_b"][0, :1]),
}
TENSORS = {
    "a": T(FP8),
    "b": T(FP8),
    "scale_a": T((F32,), "scales", "any"),
    "scale_b": T((F32,), "scales", "any"),
    "bias": T(FLOATS, "fixed", "any", optional=True, vector=True),
    "out": T(FLOATS, "fixed", optional=True),
}
BYTES = {name: T((F32, E8M0), "scales", "any") for name in ("scale_a", "scale_b")}
OPERATORS = (
    Operator("skinny_gemm", draw, FORMS, TENSORS, bad=BAD + OF_VECTORS),
    Operator(
        "block_scaled_gemm",
        draw_blocks,
        FORMS
        | {
            "bytes": of_bytes("scale_a", "scale_b"),
            "bytes-of-a": of_bytes("scale_a"),
            "bytes-of-b": of_bytes("scale_b"),
            "columns": lambda args: {name: args[name].t().contiguous().t() for name in ("a", "b", "scale_a")},
        },
        TENSORS | BYTES | {"b": T((*FP8, torch.uint8))},
        bad=BAD + OF_BLOCKS,
    ),
)
