"""Operators of rows that give FP8: norms, SwiGLU, quantisation; by a scale that is given, or that they compute."""

import torch

from problems.inputs import FLOATS, FP8, HALF
from problems.registry.changes import (
    Arguments,
    Bad,
    Change,
    conflicting_out_dtype,
    crossing_columns,
    each_row_tensor,
    given,
    out_dtype_wrong,
    replace,
    spread,
    strided_out,
    to_dtype,
    transposed,
    transposed_overlap,
    wider,
    zero_dim_without_out,
)
from problems.registry.entry import Draw, Operator, T

BF16, F32, E8M0 = torch.bfloat16, torch.float32, torch.float8_e8m0fnu

TENSORS = {
    "x": T(HALF, batches=True),
    "residual": T((BF16,), "fixed"),
    "weight": T((BF16, F32), "fixed", vector=True),
    "scale": T((F32,), "one"),
    "scale_ub": T((F32,), "one", optional=True),
    "normalized_out": T((BF16,), "fixed", optional=True),
    "out": T(FP8, "fixed", optional=True),
    "scale_out": T((F32,), "fixed", "any", optional=True),
}


def in_float16(args: Arguments) -> Arguments:
    return {name: v.half() for name, v in args.items() if isinstance(v, torch.Tensor) and v.dtype == BF16}


def float32_weight(args: Arguments) -> Arguments:
    return dict(weight=args["weight"].float(), epsilon=1e-3)


FORMATS = dict(out_dtype=torch.float8_e4m3fnuz)  # written on every device
BOUND, NONE = dict(scale_ub=torch.tensor([1.5])), dict(scale_ub=None, normalized_out=None)
MODES = {
    "bound": {},
    "tensor": dict(scaling="tensor", scale_ub=None),
    "tensor-e8m0": dict(scaling="tensor", scale_dtype=E8M0, fp8_max=224.0) | NONE,
    "row-columns": dict(scaling="row", column_major_scales=True) | NONE,
    "row-power": dict(scaling="row", power_of_two=True, **BOUND),
    "row-e8m0": dict(scaling="row", scale_dtype=E8M0) | NONE,
    "group-e8m0-columns": dict(scaling="group", group_size=32, scale_dtype=E8M0, column_major_scales=True) | NONE,
    "group-power-columns": dict(scaling="group", group_size=64, power_of_two=True, column_major_scales=True) | NONE,
    "group-224": dict(scaling="group", fp8_max=224.0, out_dtype=torch.float8_e4m3fnuz, **BOUND),
}


def modes(tensors: tuple[str, ...]) -> dict:
    """Those of an operator with these tensors."""
    left_out = {"scale_ub", "normalized_out"} - set(tensors)
    return {form: {n: v for n, v in given.items() if n not in left_out} for form, given in MODES.items()}


# --- what is refused ---


def partly_expanded_residual(args: Arguments) -> None:
    """Two batches share their rows, and the leading dimensions have no common stride."""
    args["residual"] = args["residual"][:2].expand(2, 2, -1)
    for name in ("x", "out"):
        args[name] = args[name].view(2, 2, -1)


def of_every(operator: str, names: tuple[str, ...]) -> list[Bad]:
    cases = [
        Bad("out", "strided-columns", strided_out),
        Bad("out", "no-rows", transposed("out")),
        Bad("out", "overlaps-transposed-x", transposed_overlap("out", "x")),
        Bad("x", "zero-dim-without-out", zero_dim_without_out("x")),
    ]
    if operator != "rms_norm":
        cases += [
            Bad("out_dtype", "conflict", conflicting_out_dtype),
            Bad("out_dtype", "float32", out_dtype_wrong(F32)),
        ]
    if "weight" in names:
        cases.append(Bad("weight", "every-other", replace("weight", spread)))
    if "residual" in names:
        cases += [
            Bad("residual", "partly-expanded", partly_expanded_residual),
            Bad("out", "overlaps-transposed-residual", transposed_overlap("out", "residual")),
            Bad("residual", "overlaps-transposed-x", transposed_overlap("residual", "x")),
            Bad("residual", "right-of-x-too-near", crossing_columns("x", "residual")),
            Bad("residual", "left-of-x-too-near", crossing_columns("residual", "x")),
        ]
    if "swiglu" in operator:
        cases += [
            Bad("x", "odd-width", replace("x", lambda t: t[:, :-1])),
            Bad("out", "as-wide-as-x", replace("out", wider)),
        ]
    return cases


def grouped(strides: tuple[int, int] | None = None, groups: tuple[int, int] = (4, 3), scaling: str = "group") -> Change:
    """Rows of 80, so 3 groups of 32; scale_out has this shape, with these strides."""

    def change(args: Arguments) -> None:
        memory = torch.zeros(64, device=args["x"].device)
        args["scale_out"] = memory.as_strided(groups, strides or (groups[1], 1))
        args |= dict(scaling=scaling, group_size=32)

    return change


def scales_of_rows_without_values(args: Arguments) -> None:
    scales = args["scale_out"]
    each_row_tensor(args, lambda t: t[:, :0])
    if "weight" in args:
        args["weight"] = args["weight"][:0]
    args["scale_out"] = scales[:1].expand(len(scales), 1)


def fp8_max_above(args: Arguments) -> None:
    args["fp8_max"] = torch.finfo(args["out"].dtype).max * (1 + 2**-20)


# The last two are 0 in bfloat16.
LIMITS = (0, 0.0, -1, -7.0, float("nan"), float("-inf"), "7", [7.0], 1j, 1e-42, 1e-300)
# (named, why, change)
OF_COMPUTED = (
    ("scale_out", "dtype-fp8", to_dtype("scale_out", torch.float8_e4m3fn)),
    ("scale_out", "zero-dim-e8m0", replace("scale_out", lambda t: t[0, 0].to(E8M0))),
    ("scale_out", "one-dim", replace("scale_out", lambda t: t[:, 0])),
    ("scale_out", "one-for-all", replace("scale_out", lambda t: t[:1, 0])),
    ("scale_out", "as-a-row", replace("scale_out", lambda t: t.t())),
    ("scale_out", "overlapping-itself-without-values", scales_of_rows_without_values),
    ("scale_out", "no-rows", transposed("scale_out")),
    ("scale_out", "of-a-tensor-one-a-row", given(scaling="tensor")),
    ("scale_out", "of-a-tensor-zero-dim", lambda a: a.update(scaling="tensor", scale_out=a["scale_out"][0, 0])),
    ("scale_out", "of-a-tensor-2-dims", lambda a: a.update(scaling="tensor", scale_out=a["scale_out"][:1])),
    ("scale_out", "group-missing", grouped(groups=(4, 2))),
    ("scale_out", "group-too-many", grouped(groups=(4, 4))),
    ("scale_out", "groups-for-rows", grouped(scaling="row")),
    ("scale_out", "groups-by-rows", grouped(groups=(3, 4))),
    ("scale_out", "rows-that-overlap", grouped((2, 1))),
    ("scale_out", "rows-all-one", grouped((0, 1))),
    ("scale_out", "groups-all-one", grouped((1, 0))),
    ("scale_out", "columns-that-overlap", grouped((1, 3))),
    ("scale_out", "columns-and-rows-alike", grouped((1, 1))),
    ("scale_out", "overlaps-transposed-x", transposed_overlap("scale_out", "x")),
    *(("scaling", str(v), given(scaling=v)) for v in ("block", "", None, 128, ["row"])),
    *(
        ("group_size", str(v), given(scaling="group", group_size=v))
        for v in (0, -1, 1, 16, 33, 256, 128.0, None, True, "128")
    ),
    *(("fp8_max", str(v), given(fp8_max=v)) for v in (0, -448.0, 1.999, 1e9, "448", [448.0])),
    *(("fp8_max", v, given(fp8_max=float(v))) for v in ("nan", "inf", "-inf")),
    ("fp8_max", "just-above-the-largest", fp8_max_above),
    ("fp8_max", "just-above-fnuz", given(out=None, out_dtype=torch.float8_e4m3fnuz, fp8_max=241)),
    ("fp8_max", "a-tensor", lambda args: args.update(fp8_max=args["scale_ub"])),
    *(
        ("scale_dtype", str(v).split(".")[-1], given(scale_out=None, scale_dtype=v))
        for v in (torch.float16, torch.uint8, torch.float8_e4m3fn, torch.float64, "float32")
    ),
)
OF_NORMALIZED = (
    ("normalized_out", "no-rows", transposed("normalized_out")),
    ("normalized_out", "overlaps-transposed-x", transposed_overlap("normalized_out", "x")),
    ("normalized_out", "right-of-x-too-near", crossing_columns("x", "normalized_out")),
    ("normalized_out", "left-of-x-too-near", crossing_columns("normalized_out", "x")),
)
OF_BOTH = (
    ("scale_out", "overlaps-transposed-residual", transposed_overlap("scale_out", "residual")),
    ("normalized_out", "overlaps-transposed-residual", transposed_overlap("normalized_out", "residual")),
    ("residual", "right-of-normalized-out-too-near", crossing_columns("normalized_out", "residual")),
)

# --- the operators ---


def draw(names: tuple[str, ...], parts: int = 1):
    """Arguments of these names; x has so many times d values."""

    def draw(on: Draw) -> Arguments:
        x, scale = on.half(on.rows, parts * on.d), on.positive(1)
        every = dict(x=x, residual=on.half(on.rows, on.d), weight=on.weight(on.d), scale=scale, scale_ub=1 + scale)
        every["normalized_out"] = torch.full((on.rows, on.d), torch.nan, dtype=BF16)
        return {name: every[name] for name in names if name in every}

    return draw


def entry(name: str, *names: str, forms: dict, bad=(), parts: int = 1, **tensors: T) -> Operator:
    """names: of its tensors, but for results."""
    computes = "scale_ub" in names
    results = ("out", "scale_out") if computes else ("out",)
    written = [n for n in ("scale_out", "out", "residual", "normalized_out") if n in (*results, *names)]
    found = of_every(name, names)
    found += [Bad(*each) for each in OF_COMPUTED * computes + OF_NORMALIZED * ("normalized_out" in names)]
    found += [Bad(*each) for each in OF_BOTH * (computes and "residual" in names)]
    described = {n: (TENSORS | tensors)[n] for n in (*names, *results)}
    return Operator(
        name,
        draw(names, parts),
        modes(names) | forms if computes else forms,
        described,
        tuple(written),
        results,
        (*found, *bad),
        exact=name.startswith("quantize"),
    )


OF_FLOATS = T(FLOATS, batches=True)
OPERATORS = (
    entry(
        "rms_norm",
        *("x", "weight"),
        forms={"bf16": {}, "f16": in_float16, "float32-weight": float32_weight},
        bad=(
            Bad("out", "right-of-x-too-near", crossing_columns("x", "out")),
            Bad("out", "left-of-x-too-near", crossing_columns("out", "x")),
        ),
        out=T((BF16,), "fixed", optional=True),
    ),
    entry(
        "rms_norm_fp8",
        *("x", "weight", "scale"),
        forms={"bf16": FORMATS, "f16": in_float16, "float32-weight": float32_weight},
    ),
    entry(
        "add_rms_norm_fp8",
        *("x", "residual", "weight", "scale"),
        forms={"bf16": FORMATS, "f16": in_float16, "float32-weight": float32_weight},
    ),
    entry("swiglu_fp8", "x", "scale", forms={"bf16": FORMATS, "f16": in_float16}, parts=2),
    entry(
        "rms_norm_dynamic_fp8",
        *("x", "weight", "scale_ub", "normalized_out"),
        forms={"f16": in_float16, "float32-weight": float32_weight},
    ),
    entry(
        "add_rms_norm_dynamic_fp8",
        *("x", "residual", "weight", "scale_ub", "normalized_out"),
        forms={"f16": in_float16, "float32-weight": float32_weight},
    ),
    entry(
        "swiglu_dynamic_fp8",
        *("x", "scale_ub"),
        forms={"f16": in_float16, **{f"limit-{v}": dict(limit=v) for v in (1, 0.5)}},
        bad=(
            *(Bad("limit", str(v), given(limit=v)) for v in LIMITS),
            Bad("limit", "a-tensor", lambda args: args.update(limit=args["scale_ub"])),
        ),
        parts=2,
    ),
    entry(
        "quantize_fp8",
        *("x", "scale_ub"),
        forms={"f16": in_float16, "f32": lambda args: dict(x=args["x"].float())},
        x=OF_FLOATS,
    ),
    entry(
        "quantize_static_fp8",
        *("x", "scale"),
        forms={"bf16": FORMATS, "f16": in_float16, "f32": lambda args: dict(x=args["x"].float())},
        bad=(
            Bad("scale", "one-a-row", replace("scale", lambda t: t.expand(4, 1).contiguous())),
            Bad("scale", "dtype-e8m0", to_dtype("scale", E8M0)),
        ),
        x=OF_FLOATS,
        scale=T((F32,), "one", optional=True),  # without it scales are computed
    ),
)
