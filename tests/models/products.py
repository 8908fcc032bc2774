"""Products of bfloat16 matrices in torch's own modules, on a CPU without instructions for them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def _product(name: str):
    into = getattr(torch.ops.aten, name).out

    def product(*given: torch.Tensor, **factors: float) -> torch.Tensor:
        short = all(each.dtype == torch.bfloat16 for each in given)
        *_, a, b = given = [each.float() for each in given] if short else given
        out = into(*given, **factors, out=a.new_empty(*a.shape[:-1], b.shape[-1]))
        return out.bfloat16() if short else out

    return product


def _grouped_mm(a, b, offs=None, bias=None, out_dtype=None) -> torch.Tensor:
    assert offs is not None and bias is None and out_dtype in (None, a.dtype)
    *parts, rest = a.tensor_split(offs.long())
    return torch.cat([*map(torch.mm, parts, b), rest.new_zeros(len(rest), b.shape[-1])])


@contextmanager
def in_float32() -> Iterator[None]:
    """Float32 sums that are rounded once: what torch computes, in another order. Its own loops take 6 times as long,
    and 50 times where b lies row by row."""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        yield
        return
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in ("mm", "bmm", "addmm", "baddbmm"):
            library.impl(name, _product(name), "CPU", allow_override=True)
        library.impl("_grouped_mm", _grouped_mm, "CPU", allow_override=True)
        yield
