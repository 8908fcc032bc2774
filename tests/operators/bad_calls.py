"""Valid calls of the FP8 operators, and what spoils one argument of any call."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from tests.problems.buffers import Guarded, guarded, same_bytes
from tests.problems.inputs import normal, positive, random_fp8, weights
from tests.problems.operators import function_of

ROWS, D, K = 4, 24, 40
BLOCKED_K = 300  # of block_scaled_gemm: 3 blocks

Arguments = dict[str, torch.Tensor | float | None]
Change = Callable[[Arguments], None]


@dataclass
class Call:
    """A valid call whose written tensors are guarded; tests spoil one argument of it."""

    operator: str
    arguments: Arguments
    written: list[Guarded]

    def __call__(self, kernel):
        return getattr(kernel, function_of(self.operator))(**self.arguments)


@dataclass
class RawCall(Call):
    """Of the registered operator: what it writes is among its arguments."""

    def __call__(self, kernel):
        return getattr(kernel._ops.ops, self.operator.removesuffix("_static"))(**self.arguments)


def guarded_call(operator: str, arguments: Arguments, names: tuple[str, ...], device) -> RawCall:
    """With guarded memory in the place of the arguments of those names, which are written."""
    written = {name: Guarded(arguments[name].shape, arguments[name].dtype, device) for name in names}
    return RawCall(operator, arguments | {name: buffer.t for name, buffer in written.items()}, list(written.values()))


def valid_call(kernel, operator: str, device, generator) -> Call:
    def rows(count: int = ROWS, d: int = D) -> torch.Tensor:
        return normal((count, d), torch.bfloat16, generator)

    fp8 = kernel.fp8_dtype(device)  # what the device at hand multiplies
    weight, scale = weights((D,), torch.bfloat16, generator), positive((1,), generator)
    values = {
        "rms_norm": lambda: dict(x=rows(), weight=weight),
        "rms_norm_fp8": lambda: dict(x=rows(), weight=weight, scale=scale),
        "add_rms_norm_fp8": lambda: dict(x=rows(), residual=rows(), weight=weight, scale=scale),
        "rms_norm_dynamic_fp8": lambda: dict(x=rows(), weight=weight, scale_ub=1 + scale),
        "add_rms_norm_dynamic_fp8": lambda: dict(x=rows(), residual=rows(), weight=weight, scale_ub=1 + scale),
        "swiglu_fp8": lambda: dict(x=rows(d=2 * D), scale=scale),
        "swiglu_dynamic_fp8": lambda: dict(x=rows(d=2 * D), scale_ub=1 + scale),
        "quantize_fp8": lambda: dict(x=rows(), scale_ub=1 + scale),
        "quantize_static_fp8": lambda: dict(x=rows(), scale=scale),
        "skinny_gemm": lambda: dict(
            a=random_fp8((ROWS, K), fp8, generator),
            b=random_fp8((D, K), fp8, generator),
            scale_a=positive((ROWS, 1), generator),
            scale_b=positive((1, D), generator),
            bias=rows(1)[0],
        ),
        "block_scaled_gemm": lambda: dict(
            a=random_fp8((ROWS, BLOCKED_K), fp8, generator),
            b=random_fp8((D, BLOCKED_K), fp8, generator),
            scale_a=positive((ROWS, 3), generator),
            scale_b=positive((1, 3), generator),
            bias=rows(1)[0],
        ),
    }[operator]()
    arguments = {name: value.to(device) for name, value in values.items()}
    written = {"out": Guarded((ROWS, D), torch.bfloat16 if operator in ("rms_norm", *GEMMS) else fp8, device)}
    if "residual" in arguments:
        written["residual"] = guarded(arguments["residual"], device)
    if "normalized_out" in TENSORS[operator]:
        written["normalized_out"] = Guarded((ROWS, D), torch.bfloat16, device)
    if operator in COMPUTED:
        written["scale_out"] = Guarded((ROWS, 1), torch.float32, device)
    return Call(operator, arguments | {name: buffer.t for name, buffer in written.items()}, list(written.values()))


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


# By the operators' names; test_bad_input.py holds it to their schemas.
TENSORS = {
    "rms_norm": ("x", "weight", "out"),
    "rms_norm_fp8": ("x", "weight", "scale", "out"),
    "add_rms_norm_fp8": ("x", "residual", "weight", "scale", "out"),
    "swiglu_fp8": ("x", "scale", "out"),
    "rms_norm_dynamic_fp8": ("x", "weight", "scale_ub", "normalized_out", "out", "scale_out"),
    "add_rms_norm_dynamic_fp8": ("x", "residual", "weight", "scale_ub", "normalized_out", "out", "scale_out"),
    "swiglu_dynamic_fp8": ("x", "scale_ub", "out", "scale_out"),
    "quantize_fp8": ("x", "scale_ub", "out", "scale_out"),
    "quantize_static_fp8": ("x", "scale", "out"),
    "skinny_gemm": ("a", "b", "scale_a", "scale_b", "bias", "out"),
    "block_scaled_gemm": ("a", "b", "scale_a", "scale_b", "bias", "out"),
}
GEMMS = ("skinny_gemm", "block_scaled_gemm")
# Rows, as opposed to scales and the like: the last dimension must be contiguous.
ROW_TENSORS = ("x", "residual", "normalized_out", "out", "a", "b")
WRITTEN = ("residual", "normalized_out", "out")
COMPUTED = tuple(operator for operator, names in TENSORS.items() if "scale_ub" in names)
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
        optional = ("out", "normalized_out", "bias", "scale_out", "scale_ub") + ("scale",) * (
            operator == "quantize_static_fp8"
        )
        if name not in optional:  # a norm without weight, a scale of 1?
            cases.append(Bad(operator, name, "none", replace(name, lambda t: None)))
        cases.append(Bad(operator, name, "a-number", replace(name, lambda t: 0.5)))
        if not name.startswith("scale"):
            cases.append(Bad(operator, name, "zero-dim", replace(name, lambda t: t.flatten()[0])))
        if not name.startswith("scale") and name != "x":
            cases.append(Bad(operator, name, "one-dim-more", replace(name, lambda t: t[None])))
        if name in WRITTEN:
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


def each_row_tensor(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def apply(args: Arguments) -> None:
        for name in (*ROW_TENSORS, "scale_out"):
            if name in args and name != "b":
                args[name] = change(args[name])

    return apply


def strided_out(args: Arguments) -> None:
    out = args["out"]
    each_row_tensor(lambda t: t[: ROWS // 2])(args)
    if "scale_a" in args:
        args["scale_a"] = args["scale_a"][: ROWS // 2]
    args["out"] = spread_written(out)


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
    # Of two that are written the former is named.
    written = [name for name in ("scale_out", "out", "residual", "normalized_out") if name in TENSORS[operator]]
    for i, target in enumerate(written):
        for source in TENSORS[operator]:
            if source not in written[: i + 1]:
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
        for name in ("out", "normalized_out", "scale_out"):
            if name in args:
                args[name] = args[name].new_zeros((3, 2, args[name].shape[-1]))
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


def conflicting_out_dtype(args: Arguments) -> None:
    args["out_dtype"] = torch.float32 if args["out"].dtype == torch.bfloat16 else other_format(args["out"].dtype)


def other_format(dtype: torch.dtype) -> torch.dtype:
    return torch.float8_e4m3fnuz if dtype == torch.float8_e4m3fn else torch.float8_e4m3fn


def given(**values: object) -> Change:
    return lambda args: args.update(values)


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
    in_batches(args)
    args["out"] = args["out"].transpose(0, 1)


def in_batches(args: Arguments) -> None:
    each_row_tensor(lambda t: t.view(2, ROWS // 2, -1))(args)


def assert_refused(kernel, call: Call, case: Bad) -> None:
    """Spoilt, `call` ends in a RuntimeError that names operator and argument; nothing has been written."""
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
