"""Every kind of bad input: RuntimeError names operator and argument; neither out nor the residual has changed.

Computed scales: test_bad_scales.py.
"""

import pytest
import torch

from tests.operators.bad_calls import (
    GEMMS,
    ROWS,
    TENSORS,
    Arguments,
    Bad,
    Change,
    D,
    K,
    assert_refused,
    common,
    conflicting_out_dtype,
    crossing_columns,
    other_format,
    out_dtype_wrong,
    overlaps,
    replace,
    spread,
    strided_out,
    to_dtype,
    transposed_out,
    transposed_overlap,
    valid_call,
    wider,
    zero_dim_without_out,
)
from tests.problems.buffers import raw
from tests.problems.inputs import normal
from tests.problems.operators import fp8_operators, operators, tensors


def partly_expanded_residual(args: Arguments) -> None:
    """Two batches share their rows, and the leading dimensions have no common stride."""
    args["x"] = args["x"].view(2, 2, D)
    args["residual"] = args["residual"][:2].expand(2, 2, D)
    args["out"] = args["out"].view(2, 2, D)


def rows_beyond_the_limit(args: Arguments) -> None:
    args["a"] = args["a"][:1].expand(33, K).contiguous()
    args["scale_a"] = args["scale_a"][:1]
    del args["out"]


def in_columns(name: str, at: str) -> Change:
    """The argument is column-major; `out` has its first element, or begins with its last."""

    def change(args: Arguments) -> None:
        values, out = args[name], args["out"]
        arena = torch.zeros(values.nbytes + out.nbytes, dtype=torch.uint8, device=out.device)
        columns = arena[: values.nbytes].view(values.dtype).view(values.shape[::-1])
        args[name] = columns.copy_(values.t()).t()
        begin = 0 if at == "first" else (values.nbytes - 1) // 4 * 4
        args["out"] = arena[begin : begin + out.nbytes].view(out.dtype).view(out.shape)

    return change


CASES = [case for operator in TENSORS for case in [*common(operator), *overlaps(operator)]]
for _operator in TENSORS:
    CASES.append(Bad(_operator, "out", "strided-columns", strided_out))
    if _operator not in GEMMS:
        CASES.append(Bad(_operator, "out", "no-rows", transposed_out))
        CASES.append(Bad(_operator, "out", "overlaps-transposed-x", transposed_overlap("out", "x")))
        CASES.append(Bad(_operator, "x", "zero-dim-without-out", zero_dim_without_out("x")))
    if _operator != "rms_norm":
        CASES.append(Bad(_operator, "out_dtype", "conflict", conflicting_out_dtype))
    if _operator not in ("rms_norm", *GEMMS):
        CASES.append(Bad(_operator, "out_dtype", "float32", out_dtype_wrong(torch.float32)))
        CASES.append(Bad(_operator, "out", "dtype-bfloat16", to_dtype("out", torch.bfloat16)))
    # Types that are right elsewhere: float32 only for weights, one 16-bit type for all, FP8 where FP8 is made.
    if not _operator.startswith("quantize") and _operator not in GEMMS:
        CASES.append(Bad(_operator, "x", "dtype-float32", to_dtype("x", torch.float32)))
    if "weight" in TENSORS[_operator]:
        CASES.append(Bad(_operator, "weight", "dtype-of-other-width", to_dtype("weight", torch.float16)))
        CASES.append(Bad(_operator, "weight", "strided", replace("weight", spread)))
    if "residual" in TENSORS[_operator]:
        CASES += [
            Bad(_operator, "residual", "dtype-float16", to_dtype("residual", torch.float16)),
            Bad(_operator, "residual", "dtype-float32", to_dtype("residual", torch.float32)),
            Bad(_operator, "residual", "partly-expanded", partly_expanded_residual),
            Bad(_operator, "out", "overlaps-transposed-residual", transposed_overlap("out", "residual")),
            Bad(_operator, "residual", "overlaps-transposed-x", transposed_overlap("residual", "x")),
            Bad(_operator, "residual", "right-of-x-too-near", crossing_columns("x", "residual")),
            Bad(_operator, "residual", "left-of-x-too-near", crossing_columns("residual", "x")),
        ]
    if "swiglu" in _operator:
        CASES.append(Bad(_operator, "x", "odd-width", replace("x", lambda t: t[:, :-1])))
        CASES.append(Bad(_operator, "out", "as-wide-as-x", replace("out", wider)))
CASES += [
    Bad("quantize_fp8", "x", "dtype-fp8", to_dtype("x", torch.float8_e4m3fn)),
    Bad("quantize_static_fp8", "out", "dtype-float32", to_dtype("out", torch.float32)),
    Bad("quantize_static_fp8", "scale", "one-a-row", replace("scale", lambda t: t.expand(ROWS, 1).contiguous())),
    Bad("quantize_static_fp8", "scale", "dtype-e8m0", to_dtype("scale", torch.float8_e8m0fnu)),
    Bad("rms_norm", "out", "dtype-float16", to_dtype("out", torch.float16)),
    Bad("rms_norm", "out", "dtype-fp8", to_dtype("out", torch.float8_e4m3fn)),
    Bad("rms_norm", "out", "right-of-x-too-near", crossing_columns("x", "out")),
    Bad("rms_norm", "out", "left-of-x-too-near", crossing_columns("out", "x")),
    Bad("skinny_gemm", "a", "33-rows", rows_beyond_the_limit),
    Bad("skinny_gemm", "scale_a", "as-a-row", replace("scale_a", lambda t: t.t())),
    Bad("skinny_gemm", "scale_b", "column-missing", replace("scale_b", lambda t: t[:, :-1])),
    Bad("skinny_gemm", "scale_b", "as-a-column", replace("scale_b", lambda t: t.t())),
    Bad("skinny_gemm", "scale_b", "one-a-row", replace("scale_b", lambda t: t.expand(ROWS, D).contiguous())),
]
for _operator in GEMMS:
    CASES += [
        Bad(_operator, "a", "dtype-bfloat16", to_dtype("a", torch.bfloat16)),
        Bad(_operator, "b", "mixed-formats", replace("b", lambda t: t.view(torch.uint8).view(other_format(t.dtype)))),
        Bad(_operator, "b", "k-of-its-own", replace("b", lambda t: t[:, :-1])),
        Bad(_operator, "b", "one-dim", replace("b", lambda t: t[0])),
        Bad(_operator, "a", "one-dim", replace("a", lambda t: t[0])),
        Bad(_operator, "a", "k-is-0", lambda args: args.update(a=args["a"][:, :0], b=args["b"][:, :0])),
        Bad(_operator, "scale_a", "row-missing", replace("scale_a", lambda t: t[:-1])),
        Bad(_operator, "scale_a", "empty", replace("scale_a", lambda t: t[:0])),
        Bad(_operator, "scale_a", "3-dims", replace("scale_a", lambda t: t[None])),
        Bad(_operator, "scale_a", "dtype-bfloat16", to_dtype("scale_a", torch.bfloat16)),
        Bad(_operator, "scale_b", "dtype-float16", to_dtype("scale_b", torch.float16)),
        Bad(_operator, "out", "dtype-fp8", to_dtype("out", torch.float8_e4m3fn)),
        Bad(_operator, "out", "transposed", replace("out", lambda t: t.t().contiguous().t())),
        Bad(_operator, "out_dtype", "float64", out_dtype_wrong(torch.float64)),
        *(Bad(_operator, name, "zero-dim-without-out", zero_dim_without_out(name)) for name in ("a", "b")),
    ]

# block_scaled_gemm's valid call: a has a scale for each row and 128 k, [4, 3], b for 24 columns and 128 k, [1, 3].
CASES += [
    Bad("block_scaled_gemm", name, why, change)
    for name in ("scale_a", "scale_b")
    for why, change in (
        ("block-missing", replace(name, lambda t: t[:, :-1])),
        ("block-too-many", replace(name, lambda t: t.repeat(1, 2)[:, :4])),
        ("row-of-blocks-too-many", replace(name, lambda t: t[:1].repeat(2, 1))),
        ("transposed", replace(name, lambda t: t.t().contiguous())),
        ("blocks-in-one-dim", replace(name, lambda t: t[0])),
        ("one-element-in-3-dims", replace(name, lambda t: t[:1, :1, None])),
        ("dtype-fp8", to_dtype(name, torch.float8_e4m3fn)),
        ("empty-e8m0", replace(name, lambda t: t[:0].to(torch.float8_e8m0fnu))),
        ("block-missing-e8m0", replace(name, lambda t: t[:, :-1].to(torch.float8_e8m0fnu))),
    )
]
CASES += [
    Bad("block_scaled_gemm", "scale_a", "a-row-of-rows", replace("scale_a", lambda t: t[:, :1].t())),
    Bad("block_scaled_gemm", "scale_b", "a-column-of-channels", replace("scale_b", lambda t: t[:, :1].expand(D, 1))),
    *(
        Bad("block_scaled_gemm", name, "strided-both-ways", replace(name, lambda t: spread(t.t().contiguous()).t()))
        for name in ("a", "b")
    ),
    *(
        Bad("block_scaled_gemm", "out", f"overlaps-{name}-in-columns-{at}", in_columns(name, at))
        for name in ("a", "b", "scale_a")
        for at in ("first", "last")
    ),
]


def test_every_tensor_of_every_operator_is_spoilt(kernel):
    schemas = operators(kernel)
    assert {name: set(names) for name, names in TENSORS.items()} == {
        name: tensors(schemas[name]) for name in fp8_operators(kernel)
    }


@pytest.mark.parametrize("operator", TENSORS)
def test_the_calls_that_are_spoilt_are_valid(kernel, device, generator, operator):
    call = valid_call(kernel, operator, device, generator)
    got = call(kernel)
    assert (got[0] if isinstance(got, tuple) else got) is call.arguments["out"]
    assert not call.arguments["out"].float().isnan().any()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_refused(kernel, device, generator, case):
    assert_refused(kernel, valid_call(kernel, case.operator, device, generator), case)


def test_the_most_rows_are_taken(kernel, device, generator):
    call = valid_call(kernel, "skinny_gemm", device, generator)
    rows_beyond_the_limit(call.arguments)
    call.arguments["a"] = call.arguments["a"][: kernel.SKINNY_GEMM_MAX_ROWS]
    assert kernel.SKINNY_GEMM_MAX_ROWS == 32
    assert call(kernel).shape == (32, D)


@pytest.mark.parametrize("operator", ["rms_norm", "swiglu_fp8"])
def test_columns_of_one_buffer_do_not_overlap(kernel, device, generator, operator):
    # out beside x in the same rows: the ranges of addresses cross, the elements do not.
    columns = D if operator == "rms_norm" else 2 * D
    arena = normal((ROWS, columns + D), torch.bfloat16, generator).to(device)
    call = valid_call(kernel, operator, device, generator)
    x = call.arguments["x"] = arena[:, :columns].copy_(call.arguments["x"])
    wanted = call(kernel).clone()
    call.arguments["out"] = arena[:, columns:].view(call.arguments["out"].dtype)[:, :D]
    before = x.clone()
    assert torch.equal(raw(call(kernel)), raw(wanted))
    assert torch.equal(x, before)
