"""The scales that operators compute: the keywords that all of them share, and the tensors that take the scales."""

import math

import torch

from .arguments import FP8, SCALES, check_no_self_overlap, check_tensors, refuse, result, rows
from .calls import ops
from .device import fp8_result

_OF_TENSOR, _OF_ROW = -1, 0  # of the operators' `group`
# The operators take its bytes: Inductor compiles none that writes the type itself.
_E8M0 = torch.float8_e8m0fnu


def with_computed_scales(
    operator: str,
    x: torch.Tensor,
    d: int,
    operands: tuple,
    scales: tuple,
    out: torch.Tensor | None,
    scale_out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    normalized_out: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    last: tuple = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """The body of every function that computes scales. Tuples, because a dictionary of keywords takes longer.

    Args:
        x: its dimensions are checked. Its rows give rows of d values in FP8.
        operands: the operator's arguments between x (or residual) and scale_ub.
        scales: quantize_fp8's keywords from scaling to column_major_scales, in their order.
        out, scale_out, out_dtype: as in quantize_fp8.
        normalized_out: one of the operands that is written, or None.
        residual: the operator's argument behind x that is updated in place, or None.
        last: the operator's arguments behind power_of_two.

    Returns: (out, scales).
    """
    out = fp8_result(operator, x, d, out, out_dtype)
    returned, written, group, largest = scales_to_compute(
        operator, x.shape[:-1], x.device, d, scales, scale_out, out.dtype
    )
    power_of_two, scale_ub = scales[3], scales[4]

    results = dict(out=out, scale_out=returned)
    if normalized_out is not None:
        check_tensors(operator, normalized_out=normalized_out)
        results["normalized_out"] = normalized_out
    updated = residual
    if residual is None:
        kept = rows(operator, "x", x, **results)
    else:
        updated = rows(operator, "residual", residual, **results)
        if updated is not residual:
            check_no_self_overlap(operator, "residual", residual)
        kept = rows(operator, "x", x, residual=residual, **results)
        operands = updated, *operands
    getattr(ops, operator)(out, written, kept, *operands, scale_ub, group, largest, power_of_two, *last)
    if updated is not residual:
        residual.copy_(updated)
    if x.numel() == 0:
        _write_scales_of_zeros(written, largest, power_of_two)
    return out, returned


def scales_to_compute(
    operator: str,
    leading: tuple[int, ...],
    device: torch.device,
    d: int,
    scales: tuple,
    scale_out: torch.Tensor | None,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, int, float]:
    """The scales of rows [*leading, d] that become `dtype`: as they are returned; the same memory as an operator takes
    it; its `group` and `fp8_max`. scales: as in with_computed_scales."""
    scaling, group_size, scale_dtype, _, scale_ub, fp8_max, column_major_scales = scales
    if scaling not in ("tensor", "row", "group"):
        refuse(operator, "scaling", f"{scaling!r}; allowed: 'tensor', 'row', 'group'")
    if scaling == "group" and not (isinstance(group_size, int) and group_size in (32, 64, 128)):
        refuse(operator, "group_size", f"{group_size}; allowed: 32, 64, 128")
    if scale_ub is not None:
        check_tensors(operator, scale_ub=scale_ub)
    group = {"tensor": _OF_TENSOR, "row": _OF_ROW, "group": group_size}[scaling]

    def allocate(wanted: torch.dtype | None) -> torch.Tensor:
        kind = torch.uint8 if wanted == _E8M0 else torch.float32
        return _allocate(leading, device, d, group, kind, column_major_scales)

    found = result(operator, scale_out, scale_dtype if scale_out is None else None, SCALES, allocate, name="scale_out")
    returned = written = found
    if scale_out is None:
        returned = found.view(_E8M0) if found.dtype == torch.uint8 else found
    elif found.dtype not in SCALES:
        refuse(operator, "scale_out", f"dtype {found.dtype}; allowed: {', '.join(map(str, SCALES))}")
    elif found.dtype == _E8M0 and found.dim():
        written = found.view(torch.uint8)
    return returned, written, group, _largest_quotient(operator, fp8_max, dtype)


def _allocate(
    leading: tuple[int, ...], device: torch.device, d: int, group: int, dtype: torch.dtype, column_major: bool
) -> torch.Tensor:
    if group == _OF_TENSOR:
        return torch.empty(1, dtype=dtype, device=device)
    groups = 1 if group == _OF_ROW else -(-d // group)
    if not column_major:
        return torch.empty((*leading, groups), dtype=dtype, device=device)
    # Columns begin at multiples of 16 bytes, as TMA asks.
    unit = 16 // dtype.itemsize
    strides, size = [-(-math.prod(leading) // unit) * unit], 1
    for n in reversed(leading):
        strides.insert(0, size)
        size *= n
    return torch.empty_strided((*leading, groups), strides, dtype=dtype, device=device)


def _largest_quotient(operator: str, fp8_max: float | None, dtype: torch.dtype) -> float:
    if fp8_max is None:
        # Another dtype is refused by the binding.
        return torch.finfo(dtype).max if dtype in FP8 else 2.0
    if not isinstance(fp8_max, (int, float)):
        refuse(operator, "fp8_max", f"{type(fp8_max).__name__}; needs a number")
    return float(fp8_max)


def _write_scales_of_zeros(scales: torch.Tensor, fp8_max: float, power_of_two: bool) -> None:
    """Those of an empty x, for which nothing is launched."""
    # On the scales' device: a copy from the host would end a graph capture.
    scale = torch.full_like(scales, 1e-10, dtype=torch.float32)
    scale = scale / torch.full_like(scale, fp8_max)
    bits = scale.view(torch.int32)
    if scales.dtype == torch.uint8:
        scales.copy_((bits + 0x7FFFFF) >> 23)
    else:
        scales.copy_(((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32) if power_of_two else scale)
