"""The operators between ranks, as one rank calls them: methods of a Communicator."""

import torch

from problems.inputs import FLOATS, FP8
from problems.registry import gemms, rows
from problems.registry.changes import Arguments, Bad, given, replace, share_last_element
from problems.registry.entry import Draw, Operator, T

BF16, F32 = torch.bfloat16, torch.float32
HANDLE = T((torch.int32,), "handle")  # `order`, the communicator's own
UNKNOWN = Bad("communicator", "unknown", given(communicator=-1), "communicator: closed")


def between(name: str, draw, forms: dict, tensors: dict[str, T], **rest) -> Operator:
    return Operator(
        name,
        draw,
        forms,
        tensors | {"order": HANDLE},
        **dict(bad=(UNKNOWN,), registered_is_spoilt=True, between_ranks=True) | rest,
    )


def draw_values(on: Draw) -> Arguments:
    return dict(x=on.half(on.rows, on.d))


def in_float32(args: Arguments) -> Arguments:
    return dict(x=args["x"].float())


VALUES = {"bf16": {}, "f16": rows.in_float16, "f32": in_float32}
ANY = (torch.int8, *FP8)
OF_X = tuple(
    Bad("x", f"no-tensor-{why}", given(x=value, out=None), of_function=True)
    for why, value in (("number", 0.5), ("none", None), ("list", [torch.ones(2, 8)]))
)
ONE_DIM = Bad("x", "1-dim", given(x=torch.ones(8), out=None), "x: 1 dim", of_function=True)


def values(name: str, *more: torch.dtype, bad: tuple[Bad, ...] = (), shares: tuple[str, ...] = ()) -> Operator:
    x = T((*FLOATS, *more), batches=True, instead="out")
    out = T((*FLOATS, *more), "fixed", optional=True, shares=shares, instead="x")
    forms = VALUES | {"int8": lambda args: dict(x=args["x"].to(torch.int8))} if more else VALUES
    return between(name, draw_values, forms, {"out": out, "x": x}, bad=(UNKNOWN, *OF_X, *bad), exact=True)


RESIDUAL = T((BF16,), "fixed", instead="x|out|product")
PRODUCT = T((BF16, torch.float16), "fixed", made=True, instead="x|out|residual")
NORM = rows.TENSORS | {
    "x": T((BF16, torch.float16), batches=True, instead="out|residual|weight"),
    "residual": RESIDUAL,
    "scale_out": T((F32, torch.uint8), "fixed", "any", optional=True),
}
NAMES = ("x", "residual", "weight")
GEMM = gemms.TENSORS | {"a": T(FP8, instead="b|out|product"), "b": T(FP8, instead="out|product|bias|scale_b")}
THREE = tuple(Bad(name, "three-elements", replace(name, lambda t: t.flatten()[:3])) for name in ("scale_a", "scale_b"))


def draw_gemm_norm(on: Draw) -> Arguments:
    return gemms.draw(on) | rows.draw(("residual", "weight", "scale"))(on)


OPERATORS = (
    values(
        "all_reduce",
        bad=(Bad("out", "overlaps-end-of-x", share_last_element("out", "x"), "out: .*overlaps"),),
        shares=("x",),  # itself, and no part of it
    ),
    values("reduce_scatter", bad=(ONE_DIM,)),
    values("all_gather", *ANY, bad=(ONE_DIM,)),
    between(
        "all_reduce_add_rms_norm_fp8",
        rows.draw((*NAMES, "scale")),
        {"bf16": rows.FORMATS, "float32-weight": rows.float32_weight},
        {name: NORM[name] for name in (*NAMES, "scale", "out")},
        written=("out", "residual"),
    ),
    between(
        "all_reduce_add_rms_norm_dynamic_fp8",
        rows.draw((*NAMES, "scale_ub", "normalized_out")),
        rows.modes(("scale_ub", "normalized_out")) | {"float32-weight": rows.float32_weight},
        {name: NORM[name] for name in (*NAMES, "scale_ub", "normalized_out", "out", "scale_out")},
        written=("scale_out", "out", "residual", "normalized_out"),
        results=("out", "scale_out"),
    ),
    between("skinny_gemm_all_reduce", gemms.draw, gemms.FORMS, GEMM, bad=(UNKNOWN, *THREE)),
    between(
        "skinny_gemm_all_reduce_add_rms_norm_fp8",
        draw_gemm_norm,
        {
            "bf16": {},
            "no-bias": dict(bias=None),
            "float32-weight": lambda a: rows.float32_weight(a) | dict(constant_b=True, **rows.FORMATS),
        },
        GEMM | {name: NORM[name] for name in ("residual", "weight", "scale", "out")} | {"product": PRODUCT},
        written=("out", "product", "residual"),
        bad=(UNKNOWN, *THREE),
    ),
    *(
        Operator(name, gemms.draw_blocks, gemms.FORMS, composite=True, between_ranks=True)
        for name in ("block_scaled_gemm_reduce_scatter", "all_gather_block_scaled_gemm")
    ),
)
