"""The operators of int8: GEMMs, and rows that become int8."""

import torch

from problems.inputs import FLOATS
from problems.int8 import MOST_K
from problems.registry.changes import Arguments, Bad, Change, given, replace, spread, to_dtype
from problems.registry.entry import Draw, Operator, T
from problems.registry.rows import in_float16

BF16, F32, I8, I32 = torch.bfloat16, torch.float32, torch.int8, torch.int32


def k_too_large(args: Arguments) -> None:
    args.update({n: args[n][..., :1].expand(*args[n].shape[:-1], MOST_K + 1).contiguous() for n in ("a", "b")})


OF_GEMMS = (
    Bad("a", "k-is-0", lambda args: args.update(a=args["a"][..., :0], b=args["b"][..., :0])),
    Bad("a", "k-too-large", k_too_large, rf"a: K = {MOST_K + 1}; at most {MOST_K} "),
    Bad("a", "one-dim", replace("a", torch.Tensor.flatten)),
    Bad("b", "one-dim", replace("b", torch.Tensor.flatten)),
    Bad("b", "k-of-its-own", replace("b", lambda t: t[..., :-1].contiguous())),
    Bad("out", "row-missing", replace("out", lambda t: t[..., :-1, :])),
    Bad("out", "turned", replace("out", lambda t: t.mT.contiguous().mT)),
)
BATCHES_OF_B = Bad("b", "batches-of-b-alone", replace("b", lambda t: t.expand(2, -1, -1)))
OF_BATCHES = (
    Bad("b", "batch-missing", replace("b", lambda t: t[:-1])),
    Bad("a", "two-dims", lambda args: args.update(a=args["a"][0], b=args["b"][0])),
)


def of_linears(other: torch.dtype) -> tuple[Bad, ...]:
    return (
        BATCHES_OF_B,
        Bad("d", "row-missing", replace("d", lambda t: t[:-1])),
        Bad("d", "a-column", replace("d", lambda t: t[:, :1].contiguous())),
        Bad("d", "of-the-others-type", to_dtype("d", other)),
        Bad("d", "too-wide", replace("d", lambda t: torch.cat([t, t], dim=-1))),
        Bad("alpha", "none", given(alpha=None)),
        Bad("beta", "complex", given(beta=1j)),
    )


VECTORS = ("scale_a", "scale_b", "zero_a", "sum_b")
OF_VECTORS = tuple(
    Bad(name, why, replace(name, change))
    for name in VECTORS
    for why, change in (
        ("turned", lambda t: t.t().contiguous()),
        ("one-missing", lambda t: t.flatten()[:-1]),
        ("3-dims", lambda t: t[None]),
    )
)

OF_INT8_GEMM = (
    BATCHES_OF_B,
    Bad("activation", "unknown", given(activation="silu")),
    Bad("activation", "number", given(activation=1)),
    Bad("activation", "list", given(activation=["relu"])),
    Bad("zero_a", "missing", given(zero_a=None)),
    Bad("sum_b", "missing", given(sum_b=None)),
    Bad("scale_out", "of-a-wide-result", replace("out", lambda t: t.bfloat16())),
    Bad("out_dtype", "float64", given(out=None, out_dtype=torch.float64)),
    Bad("out_dtype", "conflict", given(out_dtype=F32)),
)


def one_for_all(name: str) -> Change:
    return replace(name, lambda t: t[:1].expand(len(t), 1))


OF_SCALES = (
    Bad("zero_point", "without-scale", given(zero_point=torch.ones(1, dtype=I32))),
    Bad("scale_out", "with-scale", given(scale=torch.ones(1), zero_point_out=None)),
    Bad("zero_point_out", "with-scale", given(scale=torch.ones(1), scale_out=None)),
    Bad("zero_point_out", "symmetric", given(symmetric=True)),
    Bad("scale_out", "one-dim", replace("scale_out", lambda t: t[:, 0])),
    Bad("scale_out", "one-for-all", one_for_all("scale_out")),
    Bad("zero_point_out", "one-for-all", one_for_all("zero_point_out")),
)
OF_NORM = (
    Bad("weight", "other-type", to_dtype("weight", torch.float16)),
    Bad("bias", "wider-than-weight", to_dtype("bias", F32)),
    Bad("weight", "every-other", replace("weight", spread)),
)
OF_SOFTMAX = (
    Bad("mask", "other-type", to_dtype("mask", torch.float16)),
    Bad("mask", "one-column", replace("mask", lambda t: t[:, :1])),
    Bad("mask", "rows-missing", replace("mask", lambda t: t[:2])),
    Bad("mask", "too-wide", replace("mask", lambda t: torch.cat([t, t], dim=-1))),
    Bad("x", "5-dims", lambda args: args.update(x=args["x"][None, None, None], mask=None, out=None)),
)


def draw_gemm(on: Draw) -> Arguments:
    b = on.bytes(on.d, on.k)
    return dict(
        a=on.bytes(on.rows, on.k),
        b=b,
        scale_a=on.positive(on.rows, 1) / 10,
        scale_b=on.positive(1, on.d) / 10,
        bias=on.half(on.d),
        zero_a=torch.randint(-128, 128, (on.rows, 1), generator=on.generator).int(),
        sum_b=b.sum(-1, dtype=I32)[None],
        scale_out=torch.tensor([0.5]),
        out_dtype=I8,
    )


def draw_linear(on: Draw) -> Arguments:
    one = dict(alpha=torch.tensor([0.01]), beta=torch.tensor([0.5]))
    return dict(a=on.bytes(on.rows, on.k), b=on.bytes(on.d, on.k), d=on.bytes(on.rows, on.d)) | one


def draw_batches(on: Draw) -> Arguments:
    return dict(a=on.bytes(3, on.rows, on.k), b=on.bytes(3, on.d, on.k), alpha=torch.tensor([0.003]))


def draw_rows(on: Draw) -> Arguments:
    """layer_norm_int8's, whose scales are computed with zero points."""
    x, residual = on.half(on.rows, on.d), on.half(on.rows, on.d)
    return dict(x=x, weight=on.weight(on.d), bias=on.half(on.d), residual=residual, symmetric=False)


ONE = T((F32,), "one", numbers=True)
CODES = T((I8,), instead="a|b|x|out|d")
OF_OUT, OF_WIDE = T((I8,), "fixed", optional=True), T((F32,), "fixed", optional=True)
SCALES = T((F32,), "scales", "any")
ZEROS = T((I32,), "scales", "any", optional=True)
COMPUTED = {
    "out": OF_OUT,
    "scale_out": T((F32,), "fixed", "any", optional=True),
    "zero_point_out": T((I32,), "fixed", "any", optional=True),
}
STATIC = {"scale": T((F32,), "one", optional=True), "zero_point": T((I32,), "one", optional=True)}
STATICALLY = dict(scale=torch.tensor([0.02]), zero_point=torch.tensor([3], dtype=I32), symmetric=True)
RESULTS = ("out", "scale_out", "zero_point_out")
WITHOUT_ZEROS = dict(zero_a=None, sum_b=None, scale_out=None, out_dtype=None)


def linear(name: str, wide: bool) -> Operator:
    def draw(on: Draw) -> Arguments:
        drawn = draw_linear(on)
        return drawn | dict(d=drawn["d"].float()) if wide else drawn

    return Operator(
        name,
        draw,
        {
            "tensors": {},
            "numbers": lambda args: dict(
                alpha=0.01, beta=2, d=args["b"][:, 0].to(args["d"].dtype).contiguous(), constant_b=True
            ),
            "one-number": dict(beta=0.5),
        },
        {"a": CODES, "b": CODES, "d": T((F32, I8)), "alpha": ONE, "beta": ONE, "out": OF_WIDE if wide else OF_OUT},
        bad=OF_GEMMS + of_linears(I8 if wide else F32),
        exact=True,
    )


def batched(name: str, out: T) -> Operator:
    return Operator(
        name,
        draw_batches,
        {"tensor": {}, "number": dict(alpha=0.003)},
        {"a": CODES, "b": CODES, "alpha": ONE, "out": out},
        bad=OF_GEMMS + OF_BATCHES,
        exact=True,
    )


OPERATORS = (
    Operator(
        "int8_gemm",
        draw_gemm,
        {
            "zeros": {},
            "relu": dict(activation="relu", constant_b=True) | WITHOUT_ZEROS,
            "gelu-f32": dict(activation="gelu", out_dtype=F32) | {n: None for n in ("zero_a", "sum_b", "scale_out")},
            "batches": lambda args: dict(a=args["a"].repeat(2, 1, 1), b=args["b"].expand(2, -1, -1)) | WITHOUT_ZEROS,
        },
        {
            "a": CODES,
            "b": CODES,
            "scale_a": SCALES,
            "scale_b": SCALES,
            "bias": T(FLOATS, "fixed", "any", optional=True, vector=True),
            "zero_a": ZEROS,
            "sum_b": ZEROS,
            "scale_out": T((F32,), "one", optional=True),
            "out": T((I8, *FLOATS), "fixed", optional=True),  # a wide one has no scale
        },
        bad=OF_GEMMS + OF_VECTORS + OF_INT8_GEMM,
    ),
    linear("linear_abde_i8", wide=False),
    linear("linear_relu_abde_i8", wide=False),
    linear("linear_ab_i8_de_f32", wide=True),
    batched("bmm_abe_i8", OF_OUT),
    batched("bmm_ab_i8_e_f32", OF_WIDE),
    Operator(
        "quantize_int8",
        lambda on: dict(x=on.half(on.rows, on.d), symmetric=False),
        {
            "zeros": {},
            "symmetric": dict(symmetric=True),
            "static": STATICALLY,
            "f16": in_float16,
            "f32": lambda args: dict(x=args["x"].float()),
        },
        {"x": T(FLOATS, batches=True), **COMPUTED, **STATIC},
        ("scale_out", "zero_point_out", "out"),
        RESULTS,
        OF_SCALES,
        {"zeros": ("x", *COMPUTED), "static": ("x", "out", *STATIC)},
        exact=True,
    ),
    Operator(
        "layer_norm_int8",
        draw_rows,
        {
            "zeros": {},
            "symmetric": dict(symmetric=True, bias=None, epsilon=1e-3),
            "static": dict(residual=None) | STATICALLY,
            "f16": in_float16,
        },
        {
            "x": T(FLOATS, batches=True),
            "weight": T((BF16, F32, torch.float16), "fixed", vector=True, instead="residual"),
            "bias": T(FLOATS, "fixed", optional=True, vector=True),
            "residual": T((BF16,), "fixed", optional=True),
            **COMPUTED,
            **STATIC,
        },
        ("scale_out", "zero_point_out", "out", "residual"),
        RESULTS,
        OF_NORM,
        {"zeros": ("x", "weight", "bias", "residual", *COMPUTED), "static": ("x", "out", *STATIC)},
    ),
    Operator(
        "softmax_int8",
        lambda on: dict(x=on.half(on.rows, on.d), mask=on.half(on.rows, on.d)),
        {
            "mask": {},
            "no-mask": dict(mask=None),
            "f16": in_float16,
            "f32": lambda args: {name: t.float() for name, t in args.items()},
            "broadcast": lambda args: dict(mask=args["mask"][:1]),
        },
        {"x": T(FLOATS, batches=True), "mask": T((BF16, F32, torch.float16), optional=True), "out": OF_OUT},
        bad=OF_SOFTMAX,
    ),
)
