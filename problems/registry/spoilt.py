"""What any tensor of any operator can get wrong, as its description in the registry says."""

from collections.abc import Iterator

import torch

from problems.inputs import FP8
from problems.registry.changes import (
    Bad,
    given,
    on_itself,
    one_more,
    replace,
    share,
    share_last_element,
    to_device,
    to_dtype,
    wider,
    windows,
)
from problems.registry.entry import Operator, T

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64),
)


def cases(operator: Operator) -> Iterator[Bad]:
    for form, names in (operator.spoilt or {operator.first: tuple(operator.tensors)}).items():
        names = [name for name in names if operator.tensors[name].kind != "handle"]
        for name in names:
            yield from _of_tensor(operator, form, name, operator.tensors[name])
        written = [name for name in operator.written if name in names]
        for i, target in enumerate(written):
            yield from _of_written(form, target, operator.tensors[target])
            for source in names:
                if source not in written[: i + 1] and source not in operator.tensors[target].shares:
                    yield from _of_two(form, target, source, source in written)
    yield from operator.bad


def _of_tensor(operator: Operator, form: str, name: str, tensor: T) -> Iterator[Bad]:
    def bad(why: str, change, says: str = "", **kinds) -> Bad:
        return Bad(name, why, change, says, form=form, **kinds)

    shapes = f"({name}|{tensor.instead}): " if tensor.instead else ""
    allowed = {*tensor.dtypes, *(FP8 if set(FP8) & set(tensor.dtypes) else ())}
    for dtype in DTYPES:
        if dtype not in allowed:
            yield bad(f"dtype-{str(dtype).removeprefix('torch.')}", to_dtype(name, dtype), f"{name}: .*dtype")
    # Which of two devices is the wrong one is a matter of view: "weight: on device cpu, but x is on meta".
    for other in ("meta", "cpu") if torch.cuda.is_available() else ("meta",):
        yield bad(f"device-{other}", to_device(name, other), rf".*\b{name}\b.*\b{other}\b")
    values = {"a-number": 0.5, "a-string": "1", "a-list": [1], "none": None}
    taken = ["a-number"] * tensor.numbers + ["none"] * tensor.optional
    for why in (each for each in values if not tensor.made and each not in taken):
        yield bad(why, given(**{name: values[why]}), of_function=True)
    if tensor.kind == "one":
        yield bad("two-elements", replace(name, lambda t: t.repeat(2)))
        yield bad("empty", replace(name, lambda t: t[:0]))
        return
    if tensor.kind != "scales":
        yield bad("zero-dim", replace(name, lambda t: t.flatten()[0]), shapes)
        if not tensor.batches:
            yield bad("one-dim-more", replace(name, lambda t: t[None]), shapes)
    if tensor.kind == "fixed" or tensor.instead:
        yield bad("too-wide", replace(name, wider), shapes)
        yield bad("narrow", replace(name, lambda t: t[..., :-1]), shapes)
        yield bad("one-missing", replace(name, lambda t: t[:-1]), shapes)
    if tensor.kind == "fixed":
        yield bad("one-more", replace(name, one_more), shapes)
        yield bad("the-first-alone", replace(name, lambda t: t[:1]), shapes)
    if tensor.layout != "any":
        yield bad("strided", replace(name, lambda t: t.new_zeros((*t.shape, 2))[..., 0]))


def _of_written(form: str, name: str, tensor: T) -> Iterator[Bad]:
    if tensor.kind == "fixed" and not tensor.vector:
        yield Bad(name, "overlapping-itself", replace(name, on_itself), form=form)
        yield Bad(name, "overlapping-windows", replace(name, windows), form=form)


def _of_two(form: str, target: str, source: str, both: bool) -> Iterator[Bad]:
    says = rf"({target}|{source}): .*overlaps" if both else rf"{target}: .*overlaps"
    yield Bad(target, f"is-{source}", share(target, source), says, form=form)
    yield Bad(target, f"overlaps-end-of-{source}", share_last_element(target, source), says, form=form)
