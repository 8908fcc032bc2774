"""Bad arguments of the operators with computed scales: the scales themselves, what says how they are computed, and what
else only these operators have. RuntimeError names operator and argument; nothing has been written."""

import pytest
import torch

from tests.operators.bad_calls import (
    COMPUTED,
    ROWS,
    TENSORS,
    Arguments,
    Bad,
    Call,
    Change,
    D,
    allocated,
    assert_refused,
    crossing_columns,
    each_row_tensor,
    given,
    in_batches,
    replace,
    to_dtype,
    transposed_overlap,
    valid_call,
    wider,
)
from tests.problems.buffers import same_bytes

every_operator = pytest.mark.parametrize("operator", COMPUTED)


def of_width(args: Arguments, d: int) -> None:
    """Rows of d values instead of D."""
    for name in ("x", "residual", "weight", "normalized_out", "out"):
        if name in args:
            parts = args[name].shape[-1] // D  # 2: gate and up
            args[name] = args[name].repeat(*[1] * (args[name].dim() - 1), -(-d // D))[..., : parts * d].contiguous()


def grouped(
    strides: tuple[int, int] | None = None, shape: tuple[int, int] = (ROWS, 3), scaling: str = "group"
) -> Change:
    """Rows of 80, so 3 groups of 32; scale_out has this shape, with these strides."""

    def change(args: Arguments) -> None:
        of_width(args, 80)
        memory = torch.zeros(64, device=args["x"].device)
        args["scale_out"] = memory.as_strided(shape, strides or (shape[1], 1))
        args |= dict(scaling=scaling, group_size=32)

    return change


def transposed_scales(args: Arguments) -> None:
    in_batches(args)
    args["scale_out"] = args["scale_out"].transpose(0, 1)


def scales_of_rows_without_values(args: Arguments) -> None:
    scales = args["scale_out"]
    each_row_tensor(lambda t: t[:, :0])(args)
    if "weight" in args:
        args["weight"] = args["weight"][:0]
    args["scale_out"] = scales[:1].expand(ROWS, 1)


def fp8_max_above(args: Arguments) -> None:
    args["fp8_max"] = torch.finfo(args["out"].dtype).max * (1 + 2**-20)


def transposed_normalized(args: Arguments) -> None:
    in_batches(args)
    args["normalized_out"] = args["normalized_out"].transpose(0, 1)


SCALE_OUT = [
    ("dtype-float16", to_dtype("scale_out", torch.float16)),
    ("dtype-bfloat16", to_dtype("scale_out", torch.bfloat16)),
    ("dtype-fp8", to_dtype("scale_out", torch.float8_e4m3fn)),
    ("zero-dim", replace("scale_out", lambda t: t[0, 0])),
    ("zero-dim-e8m0", replace("scale_out", lambda t: t[0, 0].to(torch.float8_e8m0fnu))),
    ("one-dim", replace("scale_out", lambda t: t[:, 0])),
    ("one-dim-more", replace("scale_out", lambda t: t[None])),
    ("row-missing", replace("scale_out", lambda t: t[:-1])),
    ("one-for-all", replace("scale_out", lambda t: t[:1, 0])),
    ("as-a-row", replace("scale_out", lambda t: t.t())),
    ("of-groups", replace("scale_out", wider)),
    ("overlapping-itself", replace("scale_out", lambda t: t[:1].expand(ROWS, 1))),
    ("overlapping-itself-without-values", scales_of_rows_without_values),
    ("no-rows", transposed_scales),
    ("of-a-tensor-one-a-row", given(scaling="tensor")),
    ("of-a-tensor-zero-dim", lambda args: args.update(scaling="tensor", scale_out=args["scale_out"][0, 0])),
    ("of-a-tensor-2-dims", lambda args: args.update(scaling="tensor", scale_out=args["scale_out"][:1])),
    ("group-missing", grouped(shape=(ROWS, 2))),
    ("group-too-many", grouped(shape=(ROWS, 4))),
    ("groups-for-rows", grouped(scaling="row")),
    ("groups-by-rows", grouped(shape=(3, ROWS))),
    ("rows-that-overlap", grouped((2, 1))),
    ("rows-all-one", grouped((0, 1))),
    ("groups-all-one", grouped((1, 0))),
    ("columns-that-overlap", grouped((1, 3))),
    ("columns-and-rows-alike", grouped((1, 1))),
    ("overlaps-transposed-x", transposed_overlap("scale_out", "x")),
]
VALUES = [
    *(("scaling", str(v), given(scaling=v)) for v in ("block", "", None, 128, ["row"])),
    *(
        ("group_size", str(v), given(scaling="group", group_size=v))
        for v in (0, -1, 1, 16, 33, 256, 128.0, None, True, "128")
    ),
    *(("fp8_max", str(v), given(fp8_max=v)) for v in (0, -448.0, 1.999, 1e9, "448", [448.0])),
    *(("fp8_max", v, given(fp8_max=float(v))) for v in ("nan", "inf", "-inf")),
    ("fp8_max", "just-above-the-largest", fp8_max_above),
    ("fp8_max", "just-above-fnuz", allocated("out", out_dtype=torch.float8_e4m3fnuz, fp8_max=241)),
    ("fp8_max", "a-tensor", lambda args: args.update(fp8_max=args["scale_ub"])),
    *(
        ("scale_dtype", str(v).split(".")[-1], allocated("scale_out", scale_dtype=v))
        for v in (torch.float16, torch.uint8, torch.float8_e4m3fn, torch.float64, "float32")
    ),
]
NORMALIZED_OUT = [
    *(
        (f"dtype-{str(v).split('.')[-1]}", to_dtype("normalized_out", v))
        for v in (torch.float32, torch.float16, torch.float8_e4m3fn)
    ),
    ("no-rows", transposed_normalized),
    ("overlaps-transposed-x", transposed_overlap("normalized_out", "x")),
    ("right-of-x-too-near", crossing_columns("x", "normalized_out")),
    ("left-of-x-too-near", crossing_columns("normalized_out", "x")),
]
# The last two are 0 in bfloat16.
LIMITS = (0, 0.0, -1, -7.0, float("nan"), float("-inf"), "7", [7.0], 1j, 1e-42, 1e-300)

CASES = [
    *(Bad(operator, "scale_out", why, change) for operator in COMPUTED for why, change in SCALE_OUT),
    *(Bad(operator, *case) for operator in COMPUTED for case in VALUES),
    *(
        Bad(operator, "normalized_out", why, change)
        for operator in COMPUTED
        if "normalized_out" in TENSORS[operator]
        for why, change in NORMALIZED_OUT
    ),
    *(Bad("swiglu_dynamic_fp8", "limit", str(v), given(limit=v)) for v in LIMITS),
    Bad("swiglu_dynamic_fp8", "limit", "a-tensor", lambda args: args.update(limit=args["scale_ub"])),
    Bad(
        "add_rms_norm_dynamic_fp8",
        "scale_out",
        "overlaps-transposed-residual",
        transposed_overlap("scale_out", "residual"),
    ),
    Bad(
        "add_rms_norm_dynamic_fp8",
        "normalized_out",
        "overlaps-transposed-residual",
        transposed_overlap("normalized_out", "residual"),
    ),
    Bad(
        "add_rms_norm_dynamic_fp8",
        "residual",
        "right-of-normalized-out-too-near",
        crossing_columns("normalized_out", "residual"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_refused(kernel, device, generator, case):
    assert_refused(kernel, valid_call(kernel, case.operator, device, generator), case)


def on_a_copy(kernel, call: Call, **changes) -> list[torch.Tensor]:
    """(q, scale, normalized_out if given) of a call with everything dense and a residual of its own."""
    arguments = call.arguments | changes
    for name in ("residual", "normalized_out"):
        if name in arguments:
            arguments[name] = arguments[name].clone(memory_format=torch.contiguous_format)
    out_dtype = arguments.pop("out").dtype
    results = getattr(kernel, call.operator)(**arguments | dict(scale_out=None, out_dtype=out_dtype))
    return [*results, *(arguments[name] for name in ("normalized_out",) if name in arguments)]


@pytest.mark.parametrize("strides", [(3, 1), (1, ROWS), (1, ROWS + 3), (5, 1), (6, 2), (2, 11)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e8m0fnu], ids=["f32", "e8m0"])
@every_operator
def test_scales_of_any_strides_are_taken(kernel, device, generator, operator, strides, dtype):
    """The calls that `grouped` spoils by their strides alone."""
    call = valid_call(kernel, operator, device, generator)
    grouped(strides)(call.arguments)
    memory = torch.zeros(64 * dtype.itemsize, dtype=torch.uint8, device=device).view(dtype)
    call.arguments["scale_out"] = memory.as_strided((ROWS, 3), strides)
    wanted = on_a_copy(kernel, call, scale_dtype=dtype)
    q, scale = call(kernel)
    assert scale is call.arguments["scale_out"] and scale.dtype == dtype
    got = [q, scale, *(call.arguments[name] for name in ("normalized_out",) if name in call.arguments)]
    assert all(map(same_bytes, got, wanted))


@every_operator
def test_scales_may_lie_beside_their_rows(kernel, device, generator, operator):
    """Rows of one buffer, each its FP8 values and then its scale: the ranges of addresses cross."""
    call = valid_call(kernel, operator, device, generator)
    wanted = on_a_copy(kernel, call)
    arena = torch.zeros(ROWS, D + 4, dtype=torch.uint8, device=device)
    call.arguments["out"] = arena[:, :D].view(wanted[0].dtype)
    call.arguments["scale_out"] = arena.view(torch.float32)[:, D // 4 :]
    assert all(map(same_bytes, call(kernel), wanted))
    # One element earlier a scale lies in its row's values.
    call.arguments["scale_out"] = arena.view(torch.float32)[:, D // 4 - 1 : D // 4]
    with pytest.raises(RuntimeError, match=f"^{operator}: scale_out: overlaps out in memory"):
        call(kernel)


def test_normalized_out_may_lie_beside_x(kernel, device, generator):
    """In the same rows of one buffer; so may the residual."""
    for operator in ("rms_norm_dynamic_fp8", "add_rms_norm_dynamic_fp8"):
        call = valid_call(kernel, operator, device, generator)
        wanted = on_a_copy(kernel, call)
        arena = torch.zeros(ROWS, 3 * D, dtype=torch.bfloat16, device=device)
        for i, name in enumerate(("x", "normalized_out", "residual")):
            if name in call.arguments:
                call.arguments[name] = arena[:, i * D : (i + 1) * D].copy_(call.arguments[name])
        x = call.arguments["x"].clone()
        got = [*call(kernel), call.arguments["normalized_out"]]
        assert all(map(same_bytes, got, wanted)) and same_bytes(call.arguments["x"], x)
