"""Every kind of bad input: RuntimeError names operator and argument; neither out nor the residual has changed."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from tests.problems.buffers import Guarded, guarded, raw, same_bytes
from tests.problems.inputs import normal, positive, random_fp8, weights

ROWS, D, K = 4, 24, 40
FP8 = torch.float8_e4m3fn  # or what the device at hand multiplies

Arguments = dict[str, torch.Tensor | float | None]
Change = Callable[[Arguments], None]


@pytest.fixture(autouse=True)
def native_format(kernel, device, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FP8", kernel.fp8_dtype(device))


@dataclass
class Call:
    """A valid call whose written tensors are guarded; tests spoil one argument of it."""

    operator: str
    arguments: Arguments
    written: list[Guarded]

    def __call__(self, kernel):
        return getattr(kernel, function_of(self.operator))(**self.arguments)


def function_of(operator: str) -> str:
    """The Python function that calls the operator; TENSORS has the operators' names."""
    return operator.replace("_static", "")


def valid_call(operator: str, device, generator) -> Call:
    def rows(count: int = ROWS, d: int = D) -> torch.Tensor:
        return normal((count, d), torch.bfloat16, generator)

    weight, scale = weights((D,), torch.bfloat16, generator), positive((1,), generator)
    values = {
        "rms_norm": lambda: dict(x=rows(), weight=weight),
        "rms_norm_fp8": lambda: dict(x=rows(), weight=weight, scale=scale),
        "add_rms_norm_fp8": lambda: dict(x=rows(), residual=rows(), weight=weight, scale=scale),
        "swiglu_fp8": lambda: dict(x=rows(d=2 * D), scale=scale),
        "quantize_fp8": lambda: dict(x=rows(), scale_ub=1 + scale),
        "quantize_static_fp8": lambda: dict(x=rows(), scale=scale),
        "skinny_gemm": lambda: dict(
            a=random_fp8((ROWS, K), FP8, generator),
            b=random_fp8((D, K), FP8, generator),
            scale_a=positive((ROWS, 1), generator),
            scale_b=positive((1, D), generator),
            bias=rows(1)[0],
        ),
    }[operator]()
    out_dtype = torch.bfloat16 if operator in ("rms_norm", "skinny_gemm") else FP8
    arguments = {name: value.to(device) for name, value in values.items()}
    written = [Guarded((ROWS, D), out_dtype, device)]
    arguments["out"] = written[0].t
    if "residual" in arguments:
        written.append(guarded(arguments["residual"], device))
        arguments["residual"] = written[1].t
    if operator == "quantize_fp8":
        written.append(Guarded((ROWS, 1), torch.float32, device))
        arguments["scale_out"] = written[1].t
    return Call(operator, arguments, written)


@dataclass(frozen=True)
class Bad:
    operator: str
    named: str  # the argument that the message must name
    why: str
    change: Change
    says: str = ""  # a pattern of the message after the operator's name, where it is not `named: ...`

    @property
    def id(self) -> str:
        return f"{self.operator}-{self.named}-{self.why}"

    @property
    def message(self) -> str:
        return rf"^{function_of(self.operator)}: " + (self.says or f"{self.named}: ")


ROW_OPERATORS = ("rms_norm", "rms_norm_fp8", "add_rms_norm_fp8", "swiglu_fp8", "quantize_fp8", "quantize_static_fp8")
TENSORS = {
    "rms_norm": ("x", "weight", "out"),
    "rms_norm_fp8": ("x", "weight", "scale", "out"),
    "add_rms_norm_fp8": ("x", "residual", "weight", "scale", "out"),
    "swiglu_fp8": ("x", "scale", "out"),
    "quantize_fp8": ("x", "scale_ub", "out", "scale_out"),
    "quantize_static_fp8": ("x", "scale", "out"),
    "skinny_gemm": ("a", "b", "scale_a", "scale_b", "bias", "out"),
}
# Rows, as opposed to scales and the like: the last dimension must be contiguous.
ROW_TENSORS = ("x", "residual", "out", "a", "b")
ANY_DTYPE = (torch.float64, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e5m2)


def to_dtype(name: str, dtype: torch.dtype) -> Change:
    def change(args: Arguments) -> None:
        args[name] = args[name].float().to(dtype)

    return change


def to_device(name: str, device: str) -> Change:
    def change(args: Arguments) -> None:
        if args[name].device.type == device:
            pytest.skip("the variant at hand is the CPU's")
        args[name] = args[name].to(device)

    return change


def replace(name: str, function: Callable[[torch.Tensor], object]) -> Change:
    def change(args: Arguments) -> None:
        args[name] = function(args[name])

    return change


def wider(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t, t], dim=-1)


def spread(t: torch.Tensor) -> torch.Tensor:
    """Equal to t, every other element of a wider tensor."""
    return t.repeat_interleave(2, dim=-1)[..., ::2]


def spread_written(t: torch.Tensor) -> torch.Tensor:
    """t's own memory as [ROWS / 2, D] with a stride of 2 along the last dimension."""
    return t.as_strided((ROWS // 2, D), (2 * D, 2))


def common(operator: str) -> list[Bad]:
    """What every tensor of every operator can get wrong."""
    cases = []
    for name in TENSORS[operator]:
        for dtype in ANY_DTYPE:
            cases.append(Bad(operator, name, f"dtype-{dtype}".replace("torch.", ""), to_dtype(name, dtype)))
        # Which of two devices is the wrong one is a matter of view: "weight: on device cpu, but x is on meta".
        for other in ("meta", "cpu") if torch.cuda.is_available() else ("meta",):
            says = rf".*\b{name}\b.*\b{other}\b"
            cases.append(Bad(operator, name, f"device-{other}", to_device(name, other), says))
        # Without `scale` quantize_fp8 computes scales.
        optional = ("out", "bias", "scale_out", "scale_ub") + ("scale",) * (operator == "quantize_static_fp8")
        if name not in optional:  # a norm without weight, a scale of 1?
            cases.append(Bad(operator, name, "none", replace(name, lambda t: None)))
        cases.append(Bad(operator, name, "a-number", replace(name, lambda t: 0.5)))
        if not name.startswith("scale"):
            cases.append(Bad(operator, name, "zero-dim", replace(name, lambda t: t.flatten()[0])))
        if not name.startswith("scale") and name != "x":
            cases.append(Bad(operator, name, "one-dim-more", replace(name, lambda t: t[None])))
        if name in ("residual", "out"):
            cases.append(Bad(operator, name, "too-wide", replace(name, wider)))
            cases.append(Bad(operator, name, "too-narrow", replace(name, lambda t: t[:, :-1])))
            cases.append(Bad(operator, name, "row-missing", replace(name, lambda t: t[:-1])))
            cases.append(Bad(operator, name, "overlapping-itself", replace(name, lambda t: t[:1].expand(ROWS, D))))
            windows = replace(name, lambda t: t.as_strided((ROWS, D), (D - 1, 1)))
            cases.append(Bad(operator, name, "overlapping-windows", windows))
        elif name in ("weight", "bias"):
            cases.append(Bad(operator, name, "too-wide", replace(name, wider)))
            cases.append(Bad(operator, name, "one-element", replace(name, lambda t: t[:1])))
        elif name in ("scale", "scale_ub"):
            cases.append(Bad(operator, name, "two-elements", replace(name, wider)))
            cases.append(Bad(operator, name, "empty", replace(name, lambda t: t[:0])))
            for dtype in (torch.float16, torch.bfloat16):
                cases.append(Bad(operator, name, f"dtype-{dtype}".replace("torch.", ""), to_dtype(name, dtype)))
        if name in ROW_TENSORS and name != "out":
            cases.append(Bad(operator, name, "strided-columns", replace(name, spread)))
    return cases


def strided_out(args: Arguments) -> None:
    for name in ("x", "residual", "a"):
        if name in args:
            args[name] = args[name][: ROWS // 2]
    if "scale_a" in args:
        args["scale_a"] = args["scale_a"][: ROWS // 2]
    if "scale_out" in args:
        args["scale_out"] = args["scale_out"][: ROWS // 2]
    args["out"] = spread_written(args["out"])


def share(target: str, source: str, shift: int = 0) -> Change:
    """`target` becomes a view of `source`'s memory (both dense), `shift` bytes further on, with its own dtype."""

    def change(args: Arguments) -> None:
        t, s = args[target], args[source]
        arena = torch.zeros(max(t.nbytes + shift, s.nbytes), dtype=torch.uint8, device=t.device)
        args[source] = arena[: s.nbytes].view(s.dtype).view(s.shape).copy_(s)
        args[target] = arena[shift : shift + t.nbytes].view(t.dtype).view(t.shape)

    return change


def overlaps(operator: str) -> list[Bad]:
    cases = []
    others = {"add_rms_norm_fp8": ("residual",), "quantize_fp8": ("scale_out",)}.get(operator, ())
    written = ("out", *others)
    for target in written:
        for source in TENSORS[operator]:
            # Of two that are written one is named.
            if source in written and (target, source) not in (("out", "residual"), ("scale_out", "out")):
                continue
            cases.append(Bad(operator, target, f"is-{source}", share(target, source)))
            cases.append(Bad(operator, target, f"overlaps-end-of-{source}", share_last_element(target, source)))
    return cases


def share_last_element(target: str, source: str) -> Change:
    def change(args: Arguments) -> None:
        step = max(args[target].element_size(), args[source].element_size())
        share(target, source, (args[source].nbytes - 1) // step * step)(args)

    return change


def transposed_overlap(target: str, source: str) -> Change:
    """`source` is a transposed batch, which the wrapper copies into rows; `target` lies in its memory all the same."""

    def change(args: Arguments) -> None:
        columns = args[source].shape[-1]
        arena = normal((2, 3, columns), torch.bfloat16, torch.Generator().manual_seed(1)).to(args["x"].device)
        for name in ("x", "residual"):
            if name in args:
                args[name] = arena.transpose(0, 1) if name == source else args[name][:1].expand(3, 2, -1).contiguous()
        out = args["out"]
        args["out"] = torch.zeros(3, 2, D, dtype=out.dtype, device=out.device)
        if "scale_out" in args:
            args["scale_out"] = torch.zeros(3, 2, 1, device=out.device)
        t = args[target]
        args[target] = arena.flatten().view(torch.uint8)[: t.numel() * t.element_size()].view(t.dtype).view(t.shape)

    return change


def crossing_columns(left: str, right: str) -> Change:
    """Column ranges of one buffer, the right one 8 columns further on: they share most of each row."""

    def change(args: Arguments) -> None:
        arena = torch.zeros(ROWS, D + 8, dtype=torch.bfloat16, device=args[left].device)
        for name, start in ((left, 0), (right, 8)):
            args[name] = arena[:, start : start + D].copy_(args[name].nan_to_num())

    return change


def partly_expanded_residual(args: Arguments) -> None:
    """Two batches share their rows, and the leading dimensions have no common stride."""
    args["x"] = args["x"].view(2, 2, D)
    args["residual"] = args["residual"][:2].expand(2, 2, D)
    args["out"] = args["out"].view(2, 2, D)


def other_format() -> torch.dtype:
    return torch.float8_e4m3fnuz if torch.float8_e4m3fn == FP8 else torch.float8_e4m3fn


def out_dtype_conflict(args: Arguments) -> None:
    args["out_dtype"] = torch.float32 if args["out"].dtype == torch.bfloat16 else other_format()


def given(**values: object) -> Change:
    return lambda args: args.update(values)


def grouped(
    strides: tuple[int, int] | None = None, shape: tuple[int, int] = (ROWS, 3), scaling: str = "group"
) -> Change:
    """Rows of 80, so 3 groups of 32; scale_out has this shape, with these strides."""

    def change(args: Arguments) -> None:
        x, out = args["x"], args["out"]
        args |= dict(x=x.repeat(1, 4)[:, :80], out=torch.zeros(ROWS, 80, dtype=out.dtype, device=out.device))
        memory = torch.zeros(64, device=x.device)
        args["scale_out"] = memory.as_strided(shape, strides or (shape[1], 1))
        args |= dict(scaling=scaling, group_size=32)

    return change


def transposed_scales(args: Arguments) -> None:
    args["x"], args["out"] = args["x"].view(2, 2, D), args["out"].view(2, 2, D)
    args["scale_out"] = args["scale_out"].view(2, 2, 1).transpose(0, 1)


def scales_of_rows_without_values(args: Arguments) -> None:
    args["x"], args["out"] = args["x"][:, :0], args["out"][:, :0]
    args["scale_out"] = args["scale_out"][:1].expand(ROWS, 1)


def fp8_max_above(args: Arguments) -> None:
    args["fp8_max"] = torch.finfo(args["out"].dtype).max * (1 + 2**-20)


def allocated(name: str, **values: object) -> Change:
    def change(args: Arguments) -> None:
        args[name] = None
        args.update(values)

    return change


def out_dtype_wrong(dtype: torch.dtype) -> Change:
    def change(args: Arguments) -> None:
        del args["out"]
        args["out_dtype"] = dtype

    return change


def zero_dim_without_out(name: str) -> Change:
    """The wrapper, which allocates the result by this argument's shape, sees it before the kernel does."""

    def change(args: Arguments) -> None:
        del args["out"]
        args[name] = args[name].flatten()[0]

    return change


def transposed_out(args: Arguments) -> None:
    """An out of three dimensions that are no rows: nothing could be copied back into."""
    for name in ("x", "residual"):
        if name in args:
            args[name] = args[name].view(2, 2, args[name].shape[-1])
    args["out"] = args["out"].view(2, 2, D).transpose(0, 1)
    if "scale_out" in args:
        args["scale_out"] = args["scale_out"].view(2, 2, 1)


def rows_beyond_the_limit(args: Arguments) -> None:
    args["a"] = args["a"][:1].expand(33, K).contiguous()
    args["scale_a"] = args["scale_a"][:1]
    del args["out"]


CASES = [case for operator in TENSORS for case in [*common(operator), *overlaps(operator)]]
for _operator in TENSORS:
    CASES.append(Bad(_operator, "out", "strided-columns", strided_out))
    if _operator != "skinny_gemm":
        CASES.append(Bad(_operator, "out", "no-rows", transposed_out))
        CASES.append(Bad(_operator, "out", "overlaps-transposed-x", transposed_overlap("out", "x")))
    if _operator != "rms_norm":
        CASES.append(Bad(_operator, "out_dtype", "conflict", out_dtype_conflict))
    if _operator not in ("rms_norm", "skinny_gemm"):
        CASES.append(Bad(_operator, "out_dtype", "float32", out_dtype_wrong(torch.float32)))
_SCALES = [
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
CASES += [Bad("quantize_fp8", "scale_out", why, change) for why, change in _SCALES]
CASES += [
    *(Bad("quantize_fp8", "scaling", str(v), given(scaling=v)) for v in ("block", "", None, 128, ["row"])),
    *(
        Bad("quantize_fp8", "group_size", str(v), given(scaling="group", group_size=v))
        for v in (0, -1, 1, 16, 33, 256, 128.0, None, True, "128")
    ),
    *(Bad("quantize_fp8", "fp8_max", str(v), given(fp8_max=v)) for v in (0, -448.0, 1.999, 1e9, "448", [448.0])),
    *(Bad("quantize_fp8", "fp8_max", str(v), given(fp8_max=float(v))) for v in ("nan", "inf", "-inf")),
    Bad("quantize_fp8", "fp8_max", "just-above-the-largest", fp8_max_above),
    Bad("quantize_fp8", "fp8_max", "just-above-fnuz", allocated("out", out_dtype=torch.float8_e4m3fnuz, fp8_max=241)),
    Bad("quantize_fp8", "fp8_max", "a-tensor", lambda args: args.update(fp8_max=args["scale_ub"])),
    *(
        Bad("quantize_fp8", "scale_dtype", str(v).split(".")[-1], allocated("scale_out", scale_dtype=v))
        for v in (torch.float16, torch.uint8, torch.float8_e4m3fn, torch.float64, "float32")
    ),
    Bad("quantize_fp8", "x", "dtype-fp8", to_dtype("x", torch.float8_e4m3fn)),
    Bad("quantize_fp8", "out", "dtype-bfloat16", to_dtype("out", torch.bfloat16)),
    Bad("quantize_static_fp8", "out", "dtype-float32", to_dtype("out", torch.float32)),
    Bad("quantize_static_fp8", "scale", "one-a-row", replace("scale", lambda t: t.expand(ROWS, 1).contiguous())),
    Bad("quantize_static_fp8", "scale", "dtype-e8m0", to_dtype("scale", torch.float8_e8m0fnu)),
    # Types that are right elsewhere: float32 only for weights, one 16-bit type for all, FP8 where FP8 is made.
    Bad("rms_norm", "x", "dtype-float32", to_dtype("x", torch.float32)),
    Bad("rms_norm", "weight", "dtype-of-other-width", to_dtype("weight", torch.float16)),
    Bad("rms_norm", "out", "dtype-float16", to_dtype("out", torch.float16)),
    Bad("rms_norm", "out", "dtype-fp8", to_dtype("out", FP8)),
    Bad("rms_norm_fp8", "weight", "dtype-float16", to_dtype("weight", torch.float16)),
    Bad("rms_norm_fp8", "out", "dtype-bfloat16", to_dtype("out", torch.bfloat16)),
    Bad("rms_norm_fp8", "weight", "strided", replace("weight", spread)),
    Bad("add_rms_norm_fp8", "residual", "dtype-float16", to_dtype("residual", torch.float16)),
    Bad("add_rms_norm_fp8", "residual", "dtype-float32", to_dtype("residual", torch.float32)),
    Bad("add_rms_norm_fp8", "residual", "partly-expanded", partly_expanded_residual),
    Bad("add_rms_norm_fp8", "out", "overlaps-transposed-residual", transposed_overlap("out", "residual")),
    Bad("add_rms_norm_fp8", "residual", "overlaps-transposed-x", transposed_overlap("residual", "x")),
    Bad("rms_norm", "out", "right-of-x-too-near", crossing_columns("x", "out")),
    Bad("rms_norm", "out", "left-of-x-too-near", crossing_columns("out", "x")),
    Bad("add_rms_norm_fp8", "residual", "right-of-x-too-near", crossing_columns("x", "residual")),
    Bad("add_rms_norm_fp8", "residual", "left-of-x-too-near", crossing_columns("residual", "x")),
    Bad("swiglu_fp8", "x", "dtype-float32", to_dtype("x", torch.float32)),
    Bad("swiglu_fp8", "x", "odd-width", replace("x", lambda t: t[:, :-1])),
    Bad("swiglu_fp8", "out", "as-wide-as-x", replace("out", wider)),
    Bad("skinny_gemm", "a", "dtype-bfloat16", to_dtype("a", torch.bfloat16)),
    Bad("skinny_gemm", "b", "mixed-formats", replace("b", lambda t: t.view(torch.uint8).view(other_format()))),
    Bad("skinny_gemm", "b", "k-of-its-own", replace("b", lambda t: t[:, :-1])),
    Bad("skinny_gemm", "b", "one-dim", replace("b", lambda t: t[0])),
    Bad("skinny_gemm", "a", "one-dim", replace("a", lambda t: t[0])),
    Bad("skinny_gemm", "a", "k-is-0", lambda args: args.update(a=args["a"][:, :0], b=args["b"][:, :0])),
    Bad("skinny_gemm", "a", "33-rows", rows_beyond_the_limit),
    Bad("skinny_gemm", "scale_a", "row-missing", replace("scale_a", lambda t: t[:-1])),
    Bad("skinny_gemm", "scale_a", "as-a-row", replace("scale_a", lambda t: t.t())),
    Bad("skinny_gemm", "scale_a", "empty", replace("scale_a", lambda t: t[:0])),
    Bad("skinny_gemm", "scale_a", "3-dims", replace("scale_a", lambda t: t[None])),
    Bad("skinny_gemm", "scale_a", "dtype-bfloat16", to_dtype("scale_a", torch.bfloat16)),
    Bad("skinny_gemm", "scale_b", "column-missing", replace("scale_b", lambda t: t[:, :-1])),
    Bad("skinny_gemm", "scale_b", "as-a-column", replace("scale_b", lambda t: t.t())),
    Bad("skinny_gemm", "scale_b", "one-a-row", replace("scale_b", lambda t: t.expand(ROWS, D).contiguous())),
    Bad("skinny_gemm", "scale_b", "dtype-float16", to_dtype("scale_b", torch.float16)),
    Bad("skinny_gemm", "out", "dtype-fp8", to_dtype("out", FP8)),
    Bad("skinny_gemm", "out_dtype", "float64", out_dtype_wrong(torch.float64)),
    *(Bad(operator, "x", "zero-dim-without-out", zero_dim_without_out("x")) for operator in ROW_OPERATORS),
    *(Bad("skinny_gemm", name, "zero-dim-without-out", zero_dim_without_out(name)) for name in ("a", "b")),
]


@pytest.mark.parametrize("operator", TENSORS)
def test_the_calls_that_are_spoilt_are_valid(kernel, device, generator, operator):
    call = valid_call(operator, device, generator)
    got = call(kernel)
    assert (got[0] if isinstance(got, tuple) else got) is call.arguments["out"]
    assert not call.arguments["out"].float().isnan().any()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_refused(kernel, device, generator, case):
    call = valid_call(case.operator, device, generator)
    case.change(call.arguments)
    tensors = {name: t for name, t in call.arguments.items() if isinstance(t, torch.Tensor) and not t.is_meta}
    before = {name: t.clone() for name, t in tensors.items()}
    with pytest.raises(Exception, match=case.message) as caught:
        call(kernel)
    assert caught.type is RuntimeError
    for guard in call.written:
        guard.assert_unchanged(case.id)
    for name, t in tensors.items():
        assert same_bytes(t, before[name]), name


def test_the_most_rows_are_taken(kernel, device, generator):
    call = valid_call("skinny_gemm", device, generator)
    rows_beyond_the_limit(call.arguments)
    call.arguments["a"] = call.arguments["a"][: kernel.SKINNY_GEMM_MAX_ROWS]
    assert kernel.SKINNY_GEMM_MAX_ROWS == 32
    assert call(kernel).shape == (32, D)


@pytest.mark.parametrize("operator", ["rms_norm", "swiglu_fp8"])
def test_columns_of_one_buffer_do_not_overlap(kernel, device, generator, operator):
    # out beside x in the same rows: the ranges of addresses cross, the elements do not.
    columns = D if operator == "rms_norm" else 2 * D
    arena = normal((ROWS, columns + D), torch.bfloat16, generator).to(device)
    call = valid_call(operator, device, generator)
    x = call.arguments["x"] = arena[:, :columns].copy_(call.arguments["x"])
    wanted = call(kernel).clone()
    call.arguments["out"] = arena[:, columns:].view(call.arguments["out"].dtype)[:, :D]
    before = x.clone()
    assert torch.equal(raw(call(kernel)), raw(wanted))
    assert torch.equal(x, before)


@pytest.mark.parametrize("strides", [(3, 1), (1, ROWS), (1, ROWS + 3), (5, 1), (6, 2), (2, 11)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e8m0fnu], ids=["f32", "e8m0"])
def test_scales_of_any_strides_are_taken(kernel, device, generator, strides, dtype):
    """The calls that `grouped` spoils by their strides alone."""
    call = valid_call("quantize_fp8", device, generator)
    grouped(strides)(call.arguments)
    scales = torch.zeros(64, dtype=torch.uint8, device=device).view(dtype) if dtype.itemsize == 1 else None
    if scales is not None:
        call.arguments["scale_out"] = scales.as_strided((ROWS, 3), strides)
    q, scale = call(kernel)
    assert scale is call.arguments["scale_out"] and scale.dtype == dtype
    wanted = kernel.reference.quantize_fp8(
        call.arguments["x"],
        scaling="group",
        group_size=32,
        scale_ub=call.arguments["scale_ub"],
        scale_dtype=dtype,
        out_dtype=q.dtype,
    )
    assert same_bytes(q, wanted[0]) and same_bytes(scale, wanted[1])


def test_scales_may_lie_beside_their_rows(kernel, device, generator):
    """Rows of one buffer, each its FP8 values and then its scale: the ranges of addresses cross."""
    call = valid_call("quantize_fp8", device, generator)
    wanted = [t.clone() for t in call(kernel)]
    arena = torch.zeros(ROWS, D + 4, dtype=torch.uint8, device=device)
    call.arguments["out"] = arena[:, :D].view(wanted[0].dtype)
    call.arguments["scale_out"] = arena.view(torch.float32)[:, D // 4 :]
    for got, want in zip(call(kernel), wanted, strict=True):
        assert same_bytes(got, want)
    # One element earlier a scale lies in its row's values.
    call.arguments["scale_out"] = arena.view(torch.float32)[:, D // 4 - 1 : D // 4]
    with pytest.raises(RuntimeError, match="^quantize_fp8: scale_out: overlaps out in memory"):
        call(kernel)
