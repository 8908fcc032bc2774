"""The scales that operators compute: the keywords that all of them share, and the tensors that take the scales."""

import math
from typing import NamedTuple

import torch

from .arguments import FP8, SCALES, check_tensors, refuse, result

_OF_TENSOR, _OF_ROW = -1, 0  # of the operators' `group`
# The operators take its bytes: Inductor compiles none that writes the type itself.
_E8M0 = torch.float8_e8m0fnu


class Scales(NamedTuple):
    """The scales that a call returns, the same memory as the operator takes it, and the operator's last arguments."""

    returned: torch.Tensor
    written: torch.Tensor
    arguments: tuple[torch.Tensor | None, int, float, bool]  # scale_ub, group, fp8_max, power_of_two

    def of_zeros(self) -> None:
        """Writes those of an empty x, for which nothing is launched."""
        _, _, fp8_max, power_of_two = self.arguments
        # On the scales' device: a copy from the host would end a graph capture.
        scale = torch.full_like(self.written, 1e-10, dtype=torch.float32)
        scale = scale / torch.full_like(scale, fp8_max)
        bits = scale.view(torch.int32)
        if self.written.dtype == torch.uint8:
            self.written.copy_((bits + 0x7FFFFF) >> 23)
        else:
            self.written.copy_(((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32) if power_of_two else scale)


def computed_scales(
    operator: str,
    x: torch.Tensor,
    d: int,
    dtype: torch.dtype,
    *,
    scaling: str,
    group_size: int,
    scale_dtype: torch.dtype,
    power_of_two: bool,
    scale_ub: torch.Tensor | None,
    fp8_max: float | None,
    column_major_scales: bool,
    scale_out: torch.Tensor | None,
) -> Scales:
    """Of x's rows, which give rows of d values in the FP8 format `dtype`. The keywords are ops.quantize_fp8's."""
    if scaling not in ("tensor", "row", "group"):
        refuse(operator, "scaling", f"{scaling!r}; allowed: 'tensor', 'row', 'group'")
    if scaling == "group" and not (isinstance(group_size, int) and group_size in (32, 64, 128)):
        refuse(operator, "group_size", f"{group_size}; allowed: 32, 64, 128")
    if scale_ub is not None:
        check_tensors(operator, scale_ub=scale_ub)
    group = {"tensor": _OF_TENSOR, "row": _OF_ROW, "group": group_size}[scaling]

    def allocate(wanted: torch.dtype | None) -> torch.Tensor:
        kind = torch.uint8 if wanted == _E8M0 else torch.float32
        return _allocate(x, d, group, kind, column_major_scales)

    found = result(operator, scale_out, scale_dtype if scale_out is None else None, SCALES, allocate, name="scale_out")
    returned = written = found
    if scale_out is None:
        returned = found.view(_E8M0) if found.dtype == torch.uint8 else found
    elif found.dtype not in SCALES:
        refuse(operator, "scale_out", f"dtype {found.dtype}; allowed: {', '.join(map(str, SCALES))}")
    elif found.dtype == _E8M0 and found.dim():
        written = found.view(torch.uint8)
    largest = _largest_quotient(operator, fp8_max, dtype)
    return Scales(returned, written, (scale_ub, group, largest, power_of_two))


def _allocate(x: torch.Tensor, d: int, group: int, dtype: torch.dtype, column_major: bool) -> torch.Tensor:
    if group == _OF_TENSOR:
        return torch.empty(1, dtype=dtype, device=x.device)
    leading, groups = x.shape[:-1], 1 if group == _OF_ROW else -(-d // group)
    if not column_major:
        return torch.empty((*leading, groups), dtype=dtype, device=x.device)
    # Columns begin at multiples of 16 bytes, as TMA asks.
    unit = 16 // dtype.itemsize
    strides, size = [-(-math.prod(leading) // unit) * unit], 1
    for n in reversed(leading):
        strides.insert(0, size)
        size *= n
    return torch.empty_strided((*leading, groups), strides, dtype=dtype, device=x.device)


def _largest_quotient(operator: str, fp8_max: float | None, dtype: torch.dtype) -> float:
    if fp8_max is None:
        # Another dtype is refused by the binding.
        return torch.finfo(dtype).max if dtype in FP8 else 2.0
    if not isinstance(fp8_max, (int, float)):
        refuse(operator, "fp8_max", f"{type(fp8_max).__name__}; needs a number")
    return float(fp8_max)
