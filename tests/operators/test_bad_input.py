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
        return getattr(kernel, self.operator)(**self.arguments)


def valid_call(operator: str, device, generator) -> Call:
    def rows(count: int = ROWS, d: int = D) -> torch.Tensor:
        return normal((count, d), torch.bfloat16, generator)

    weight, scale = weights((D,), torch.bfloat16, generator), positive((1,), generator)
    values = {
        "rms_norm": lambda: dict(x=rows(), weight=weight),
        "rms_norm_fp8": lambda: dict(x=rows(), weight=weight, scale=scale),
        "add_rms_norm_fp8": lambda: dict(x=rows(), residual=rows(), weight=weight, scale=scale),
        "swiglu_fp8": lambda: dict(x=rows(d=2 * D), scale=scale),
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
        return rf"^{self.operator}: " + (self.says or f"{self.named}: ")


ROW_OPERATORS = ("rms_norm", "rms_norm_fp8", "add_rms_norm_fp8", "swiglu_fp8")
TENSORS = {
    "rms_norm": ("x", "weight", "out"),
    "rms_norm_fp8": ("x", "weight", "scale", "out"),
    "add_rms_norm_fp8": ("x", "residual", "weight", "scale", "out"),
    "swiglu_fp8": ("x", "scale", "out"),
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
        if name not in ("out", "bias"):  # a norm without weight, a scale of 1?
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
        elif name == "scale":
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
    written = ("out", "residual") if operator == "add_rms_norm_fp8" else ("out",)
    for target in written:
        for source in TENSORS[operator]:
            if source in written and (target, source) != ("out", "residual"):
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
        t = args[target]
        args[target] = arena.flatten().view(torch.uint8)[: t.numel() * t.element_size()].view(t.dtype).view(3, 2, D)

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
CASES += [
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
    assert call(kernel) is call.arguments["out"]
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
