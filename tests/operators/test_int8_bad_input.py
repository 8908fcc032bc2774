"""Bad input of the int8 operators: RuntimeError names operator and argument; nothing has been written."""

import pytest
import torch

from tests.operators.bad_calls import (
    Bad,
    Call,
    assert_refused,
    given,
    replace,
    share_last_element,
    spread,
    to_dtype,
    wider,
)
from tests.problems.buffers import Guarded, guarded
from tests.problems.inputs import normal
from tests.problems.int8 import INT8, MOST_K, any_bytes
from tests.problems.operators import function_of, int8_operators

B, M, N, K, D = 3, 4, 24, 40, 24
ROWS = 4


def valid_call(operator: str, device, generator) -> Call:
    def half(*shape: int) -> torch.Tensor:
        return normal(shape, torch.bfloat16, generator)

    one, zero = torch.ones(1), torch.ones(1, dtype=torch.int32)
    a, b = any_bytes((M, K), generator), any_bytes((N, K), generator)
    batched = dict(a=any_bytes((B, M, K), generator), b=any_bytes((B, N, K), generator), alpha=one.clone())
    linear = dict(a=a, b=b, d=any_bytes((M, N), generator), alpha=one.clone(), beta=one.clone())
    scaled = dict(scale_a=torch.rand(M, 1), scale_b=torch.rand(1, N), bias=half(N))
    zeros = dict(zero_a=zero.expand(M, 1).contiguous(), sum_b=b.sum(-1, dtype=torch.int32)[None])
    computed = dict(symmetric=False)
    arguments = {
        "int8_gemm": lambda: dict(a=a, b=b, **scaled, **zeros, scale_out=one.clone()),
        "linear_abde_i8": lambda: linear,
        "linear_relu_abde_i8": lambda: linear,
        "linear_ab_i8_de_f32": lambda: linear | dict(d=linear["d"].float()),
        "bmm_abe_i8": lambda: batched,
        "bmm_ab_i8_e_f32": lambda: batched,
        "quantize_int8": lambda: dict(x=half(ROWS, D), **computed),
        "quantize_int8_static": lambda: dict(x=half(ROWS, D), scale=one.clone(), zero_point=zero.clone()),
        "layer_norm_int8": lambda: dict(
            x=half(ROWS, D), weight=half(D), bias=half(D), residual=half(ROWS, D), **computed
        ),
        "softmax_int8": lambda: dict(x=half(ROWS, D), mask=half(ROWS, D)),
    }[operator]()
    arguments = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    shape = (B, M, N) if "bmm" in operator else (ROWS, D)
    written = {"out": Guarded(shape, torch.float32 if operator.endswith("f32") else INT8, device)}
    if "symmetric" in arguments:
        written["scale_out"] = Guarded((ROWS, 1), torch.float32, device)
        written["zero_point_out"] = Guarded((ROWS, 1), torch.int32, device)
    if "residual" in arguments:
        written["residual"] = guarded(arguments["residual"], device)
    return Call(operator, arguments | {name: buffer.t for name, buffer in written.items()}, list(written.values()))


GEMMS = ("int8_gemm", "linear_abde_i8", "linear_relu_abde_i8", "linear_ab_i8_de_f32", "bmm_abe_i8", "bmm_ab_i8_e_f32")
LINEARS = tuple(name for name in GEMMS if name.startswith("linear"))
ROW_OPERATORS = ("quantize_int8", "quantize_int8_static", "layer_norm_int8", "softmax_int8")
TENSORS = {
    "int8_gemm": ("a", "b", "scale_a", "scale_b", "bias", "zero_a", "sum_b", "scale_out", "out"),
    **{name: ("a", "b", "d", "alpha", "beta", "out") for name in LINEARS},
    **{name: ("a", "b", "alpha", "out") for name in GEMMS if "bmm" in name},
    "quantize_int8": ("x", "out", "scale_out", "zero_point_out"),
    "quantize_int8_static": ("x", "out", "scale", "zero_point"),
    "layer_norm_int8": ("x", "weight", "bias", "residual", "out", "scale_out", "zero_point_out"),
    "softmax_int8": ("x", "mask", "out"),
}
NUMBERS = ("alpha", "beta")
WIDE = ("d", "bias", "out", "x", "weight", "residual", "mask", "scale", "scale_a", "scale_b", "scale_out", *NUMBERS)
INTEGERS = ("zero_a", "sum_b", "zero_point", "zero_point_out")
CODES = ("a", "b")


def common(operator: str) -> list[Bad]:
    cases = []
    for name in TENSORS[operator]:
        for dtype in (torch.float64, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn):
            cases.append(Bad(operator, name, str(dtype).removeprefix("torch."), to_dtype(name, dtype)))
        if name in CODES + INTEGERS:
            cases.append(Bad(operator, name, "float32", to_dtype(name, torch.float32)))
        if name in CODES + WIDE and name not in ("d", "out"):
            cases.append(Bad(operator, name, "int32", to_dtype(name, torch.int32)))
        if name not in NUMBERS:
            cases.append(Bad(operator, name, "a-number", given(**{name: 0.5})))
        cases.append(Bad(operator, name, "a-string", given(**{name: "1"})))
        meta = replace(name, lambda t: t.to("meta"))
        cases.append(Bad(operator, name, "meta", meta, rf".*\b{name}\b.*\bmeta\b"))
        if name in (*NUMBERS, "scale", "zero_point") or (name == "scale_out" and operator == "int8_gemm"):
            cases.append(Bad(operator, name, "two-elements", replace(name, wider)))
            cases.append(Bad(operator, name, "empty", replace(name, lambda t: t[:0])))
        if name in (*CODES, "d", "x", "residual", "mask", "out"):
            strided = replace(name, (lambda t: t.new_zeros((*t.shape, 2))[..., 0]) if name == "out" else spread)
            cases.append(Bad(operator, name, "strided-columns", strided))
            cases.append(Bad(operator, name, "zero-dim", replace(name, lambda t: t.flatten()[0])))
        if name in (*CODES, "d", "residual", "mask", "out", "weight", "bias"):
            cases.append(
                Bad(
                    operator,
                    name,
                    "too-wide",
                    replace(name, wider),
                    r"(a|b|x|weight|mask|out|d|residual): " if name in CODES else "",
                )
            )
            cases.append(
                Bad(
                    operator,
                    name,
                    "one-dim-more",
                    replace(name, lambda t: t[None]),
                    r"(a|b): " if name in CODES else "",
                )
            )
        if name in ("out", "residual"):
            cases.append(
                Bad(operator, name, "overlapping-itself", replace(name, lambda t: t[..., :1, :].expand(t.shape)))
            )
            windows = replace(name, lambda t: t.as_strided(t.shape, (*t.stride()[:-2], t.shape[-1] - 1, 1)))
            cases.append(Bad(operator, name, "overlapping-windows", windows))
        if name in ("scale_a", "scale_b", "zero_a", "sum_b"):
            cases.append(Bad(operator, name, "turned", replace(name, lambda t: t.t().contiguous())))
            cases.append(Bad(operator, name, "one-missing", replace(name, lambda t: t.flatten()[:-1])))
            cases.append(Bad(operator, name, "3-dims", replace(name, lambda t: t[None])))
    written = [name for name in ("scale_out", "zero_point_out", "out", "residual") if name in TENSORS[operator]]
    if operator == "int8_gemm":
        written = ["out"]
    for i, target in enumerate(written):
        for source in TENSORS[operator]:
            if source not in written[: i + 1]:
                both = rf"({target}|{source}): .*overlaps"  # of two that are written either may be named
                cases.append(Bad(operator, target, f"overlaps-{source}", share_last_element(target, source), both))
    return cases


CASES = [case for operator in TENSORS for case in common(operator)]
for _operator in GEMMS:
    CASES += [
        Bad(_operator, "b", "k-of-its-own", replace("b", lambda t: t[..., :-1].contiguous())),
        Bad(_operator, "a", "k-is-0", lambda args: args.update(a=args["a"][..., :0], b=args["b"][..., :0])),
        Bad(
            _operator,
            "a",
            "k-too-large",
            lambda args: args.update(
                {n: args[n][..., :1].expand(*args[n].shape[:-1], MOST_K + 1).contiguous() for n in CODES}
            ),
            rf"a: K = {MOST_K + 1}; at most {MOST_K} ",
        ),
        Bad(_operator, "a", "one-dim", replace("a", lambda t: t.flatten())),
        Bad(_operator, "b", "one-dim", replace("b", lambda t: t.flatten())),
        Bad(_operator, "out", "row-missing", replace("out", lambda t: t[..., :-1, :])),
        Bad(_operator, "out", "turned", replace("out", lambda t: t.mT.contiguous().mT)),
    ]
    if "bmm" in _operator:
        CASES += [
            Bad(_operator, "b", "batch-missing", replace("b", lambda t: t[:-1])),
            Bad(_operator, "a", "two-dims", lambda args: args.update(a=args["a"][0], b=args["b"][0])),
        ]
    else:
        CASES.append(Bad(_operator, "b", "batches-of-b-alone", replace("b", lambda t: t.expand(2, -1, -1))))
for _operator in LINEARS:
    CASES += [
        Bad(_operator, "d", "row-missing", replace("d", lambda t: t[:-1])),
        Bad(_operator, "d", "a-column", replace("d", lambda t: t[:, :1].contiguous())),
        Bad(_operator, "d", "of-the-others-type", to_dtype("d", INT8 if _operator.endswith("f32") else torch.float32)),
        Bad(_operator, "alpha", "none", given(alpha=None)),
        Bad(_operator, "beta", "complex", given(beta=1j)),
    ]
CASES += [
    Bad("int8_gemm", "activation", "unknown", given(activation="silu")),
    Bad("int8_gemm", "activation", "number", given(activation=1)),
    Bad("int8_gemm", "activation", "list", given(activation=["relu"])),
    Bad("int8_gemm", "zero_a", "missing", given(zero_a=None)),
    Bad("int8_gemm", "sum_b", "missing", given(sum_b=None)),
    Bad("int8_gemm", "scale_out", "of-a-wide-result", replace("out", lambda t: t.bfloat16())),
    Bad("int8_gemm", "out_dtype", "float64", given(out=None, out_dtype=torch.float64)),
    Bad("int8_gemm", "out_dtype", "conflict", given(out_dtype=torch.float32)),
    Bad("quantize_int8", "zero_point", "without-scale", given(zero_point=torch.ones(1, dtype=torch.int32))),
    Bad("quantize_int8", "scale_out", "with-scale", given(scale=torch.ones(1), zero_point_out=None)),
    Bad("quantize_int8", "zero_point_out", "with-scale", given(scale=torch.ones(1), scale_out=None)),
    Bad("quantize_int8", "zero_point_out", "symmetric", given(symmetric=True)),
    Bad("quantize_int8", "scale_out", "row-missing", replace("scale_out", lambda t: t[:-1])),
    Bad("quantize_int8", "scale_out", "one-dim", replace("scale_out", lambda t: t[:, 0])),
    Bad("quantize_int8", "scale_out", "one-for-all", replace("scale_out", lambda t: t[:1].expand(ROWS, 1))),
    Bad("quantize_int8", "zero_point_out", "one-for-all", replace("zero_point_out", lambda t: t[:1].expand(ROWS, 1))),
    Bad("layer_norm_int8", "weight", "other-type", to_dtype("weight", torch.float16)),
    Bad("layer_norm_int8", "bias", "wider-than-weight", to_dtype("bias", torch.float32)),
    Bad("layer_norm_int8", "weight", "strided", replace("weight", spread)),
    Bad("layer_norm_int8", "residual", "other-type", to_dtype("residual", torch.float16)),
    Bad("layer_norm_int8", "residual", "row-missing", replace("residual", lambda t: t[:-1])),
    Bad("softmax_int8", "mask", "other-type", to_dtype("mask", torch.float16)),
    Bad("softmax_int8", "mask", "one-column", replace("mask", lambda t: t[:, :1])),
    Bad("softmax_int8", "mask", "rows-missing", replace("mask", lambda t: t[:2])),
    Bad("softmax_int8", "x", "5-dims", lambda args: args.update(x=args["x"][None, None, None], mask=None, out=None)),
]


def test_no_operator_is_left_out(kernel):
    assert {function_of(operator) for operator in TENSORS} == int8_operators(kernel)


@pytest.mark.parametrize("operator", TENSORS)
def test_the_calls_that_are_spoilt_are_valid(kernel, device, generator, operator):
    call = valid_call(operator, device, generator)
    got = call(kernel)
    assert (got[0] if isinstance(got, tuple) else got) is call.arguments["out"]
    for buffer in call.written:
        buffer.assert_guards_intact(operator)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_refused(kernel, device, generator, case):
    assert_refused(kernel, valid_call(case.operator, device, generator), case)


FIRST_USE = """
import torch
from scripts.load import load_kernel
kernel = load_kernel("cpu")
a, b, one = torch.ones(2, 8, dtype=torch.int8), torch.ones(3, 9, dtype=torch.int8), torch.ones(1)
for call in (
    lambda: kernel.int8_gemm(a, b, one, one),
    lambda: kernel.quantize_int8(a),
    lambda: kernel.layer_norm_int8(one[None], one.double()),
    lambda: kernel.softmax_int8(a),
    lambda: kernel.bmm_abe_i8(a, b),
):
    try:
        call()
    except RuntimeError as error:
        print(error)
"""


def test_bad_input_at_the_first_use(kernel, device, forked):
    """In a process that has not launched anything yet."""
    if device.type != "cpu":
        pytest.skip("the program loads the CPU's variant")
    said = forked(FIRST_USE).splitlines()
    names = ("int8_gemm: b", "quantize_int8: x", "layer_norm_int8: weight", "softmax_int8: x", "bmm_abe_i8: a")
    assert [line[: len(name)] for line, name in zip(said, names, strict=True)] == list(names)
