"""What spoils an argument of a valid call, and how it has to be refused."""

from collections.abc import Callable
from dataclasses import dataclass
from unittest import SkipTest

import torch

from problems.inputs import normal

Arguments = dict[str, object]
Change = Callable[[Arguments], None]


@dataclass(frozen=True)
class Bad:
    named: str  # the argument that the message must name
    why: str
    change: Change
    says: str = ""  # a pattern of the message after the operator's name, where it is not `named: ...`
    form: str | None = None  # of the call that is spoilt; None: the operator's first
    of_function: bool = False  # spoils the Python function's call, though those of the registered operator are spoilt
    of_reference: bool = False  # the reference says the same

    def pattern(self, function: str) -> str:
        return rf"^{function}: " + (self.says or f"{self.named}: ")


# --- one argument ---


def to_dtype(name: str, dtype: torch.dtype) -> Change:
    def change(args: Arguments) -> None:
        args[name] = args[name].float().to(dtype)

    return change


def to_device(name: str, device: str) -> Change:
    def change(args: Arguments) -> None:
        if args[name].device.type == device:
            raise SkipTest("the variant at hand is the CPU's")
        args[name] = args[name].to(device)

    return change


def replace(name: str, function: Callable[[torch.Tensor], object]) -> Change:
    def change(args: Arguments) -> None:
        args[name] = function(args[name])

    return change


def given(**values: object) -> Change:
    """Tensors come to the device of the others."""

    def change(args: Arguments) -> None:
        device = next(v for v in args.values() if isinstance(v, torch.Tensor)).device
        args.update({name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in values.items()})

    return change


def refused(name: str, *values: object, **beside: object) -> tuple[Bad, ...]:
    """What the Python function takes for no value of an argument. beside: other arguments of these calls."""
    calls = ((v, given(**beside, **{name: v})) for v in values)
    return tuple(Bad(name, f"{v!r}-of-the-function", call, of_function=True) for v, call in calls)


def wider(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t, t], dim=-1)


def one_more(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t.contiguous().view(torch.uint8), t[:1].contiguous().view(torch.uint8)]).view(t.dtype)


def spread(t: torch.Tensor) -> torch.Tensor:
    """Equal to t, every other element of a wider tensor."""
    return t.repeat_interleave(2, dim=-1)[..., ::2]


def on_itself(t: torch.Tensor) -> torch.Tensor:
    """All rows are the first."""
    return t[..., :1, :].expand(t.shape)


def windows(t: torch.Tensor) -> torch.Tensor:
    """Each row begins with the last element of the one before."""
    return t.as_strided(t.shape, (*t.stride()[:-2], t.shape[-1] - 1, 1))


def other_format(dtype: torch.dtype) -> torch.dtype:
    return torch.float8_e4m3fnuz if dtype == torch.float8_e4m3fn else torch.float8_e4m3fn


def in_other_format(t: torch.Tensor) -> torch.Tensor:
    return t.view(torch.uint8).view(other_format(t.dtype))


# --- tensors that share memory ---


def share(target: str, source: str, shift: int = 0) -> Change:
    """`target` becomes a view of `source`'s memory (both dense), `shift` bytes further on, with its own dtype."""

    def change(args: Arguments) -> None:
        t, s = args[target], args[source]
        arena = torch.zeros(max(t.nbytes + shift, s.nbytes), dtype=torch.uint8, device=t.device)
        args[source] = arena[: s.nbytes].view(s.dtype).view(s.shape).copy_(s)
        args[target] = arena[shift : shift + t.nbytes].view(t.dtype).view(t.shape)

    return change


def share_last_element(target: str, source: str) -> Change:
    def change(args: Arguments) -> None:
        step = max(args[target].element_size(), args[source].element_size())
        share(target, source, (args[source].nbytes - 1) // step * step)(args)

    return change


def crossing_columns(left: str, right: str) -> Change:
    """Column ranges of one buffer, the right one 8 columns further on: they share most of each row."""

    def change(args: Arguments) -> None:
        rows, d = args[left].shape
        arena = torch.zeros(rows, d + 8, dtype=torch.bfloat16, device=args[left].device)
        for name, start in ((left, 0), (right, 8)):
            args[name] = arena[:, start : start + d].copy_(args[name].nan_to_num())

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


# --- results ---


def out_dtype_wrong(dtype: torch.dtype) -> Change:
    def change(args: Arguments) -> None:
        del args["out"]
        args["out_dtype"] = dtype

    return change


def conflicting_out_dtype(args: Arguments) -> None:
    args["out_dtype"] = torch.float32 if args["out"].dtype == torch.bfloat16 else other_format(args["out"].dtype)


def zero_dim_without_out(name: str) -> Change:
    """The wrapper, which allocates the result by this argument's shape, sees it before the kernel does."""

    def change(args: Arguments) -> None:
        del args["out"]
        args[name] = args[name].flatten()[0]

    return change


# --- rows: all tensors that have them ---

_ROWS = ("x", "residual", "normalized_out", "out", "a", "scale_a", "scale_out")


def each_row_tensor(args: Arguments, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for name in _ROWS:
        if args.get(name) is not None and args[name].dim() > 1:
            args[name] = change(args[name])


def in_batches(args: Arguments) -> None:
    each_row_tensor(args, lambda t: t.view(2, t.shape[0] // 2, -1))


def transposed(name: str) -> Change:
    """A result of three dimensions that are no rows: nothing could be copied back into."""

    def change(args: Arguments) -> None:
        in_batches(args)
        args[name] = args[name].transpose(0, 1)

    return change


def strided_out(args: Arguments) -> None:
    """out's own memory, half as many rows, with a stride of 2 along the last dimension."""
    out = args["out"]
    rows, d = out.shape
    each_row_tensor(args, lambda t: t[: rows // 2])
    args["out"] = out.as_strided((rows // 2, d), (2 * d, 2))
