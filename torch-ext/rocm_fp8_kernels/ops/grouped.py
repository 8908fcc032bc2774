"""GEMMs of sorted rows, each with the matrix of its expert."""

import torch

from .activation import check_limit
from .arguments import FP8, WIDE, bytes_of_e8m0, check_dims, check_tensors, refuse, result
from .calls import ops
from .device import fp8_dtype
from .mx import gate_numbers, holds_mx, moe_gate, mx_scales
from .quantize import quantize_fp8
from .scales import scales_to_compute

_OF_GATE = "gate", "limit", "alpha", "beta", "linear_beta", "interleaved"


def grouped_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    offsets: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
    slots: int = 1,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_rows: int | None = None,
) -> torch.Tensor:
    """`c[i] = a[source(i)] @ b[e].T + bias[e]` for i in [offsets[e], offsets[e + 1]).

    source(i) is i, or rows[i] // slots where rows is given: tokens are gathered as they are loaded. Rows of c from
    offsets[-1] on are not written. FP8: the sums of block_scaled_gemm. float16 and bfloat16: one float32 sum over k.

    Nothing is read on the host: launches depend on shapes alone. A row's bits depend on its row of a and its expert,
    and on a GPU through a class (up to 4, or more) on expected_rows. Up to 4 it also depends on a class of R (1 to 2,
    3 to 4, 5 to 8, 9 to 10, 11 to 20, or more). It never depends on how many rows its expert has. With MX weights they
    depend on the row and the expert alone.

    Args:
        a: FP8, float16 or bfloat16 [A, K], last dimension contiguous. On a GPU the device's own FP8 format.
        b: a's dtype [E, N, K], E up to 1024, last dimension contiguous.
        scale_a: float32 or float8_e8m0fnu: one element, [A], [A, 1] or [A, ceil(K / 128)]; None with 16-bit operands.
        scale_b: the same: one element, [E, 1, 1], [E, N, 1] or [E, ceil(N / 128), ceil(K / 128)].
        offsets: int32 [E + 1], of moe_sort: they do not fall. Bad ones give an undefined result.
        rows: int32 [R], of moe_sort, or None.
        slots: how many slots a row of a has, where rows is given.
        bias: float16, bfloat16 or float32 [E, N], or None.
        out: float16, bfloat16 or float32 [R or A, N], overlapping no input; allocated if None.
        out_dtype: dtype of the result: out's if None, bfloat16 if out is None too.
        expected_rows: how many rows an expert is expected to have: R / E if None. It decides the form alone.

    MX weights: b is MXFP4 (uint8 [E, N, K / 2]) or MXFP8 (FP8 [E, N, K]) with scale_b float8_e8m0fnu [E, N, K / 32]; a
    and scale_a are then what block_scaled_gemm takes beside such weights.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "grouped_gemm"
    scale_a, scale_b, mx = _checked(operator, a, b, scale_a, scale_b, offsets, rows, slots, expected_rows)
    if bias is not None:
        check_tensors(operator, bias=bias)

    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        count = a.shape[0] if rows is None else rows.numel()
        return a.new_empty((count, b.shape[1]), dtype=dtype or torch.bfloat16)

    out = result(operator, out, out_dtype, WIDE, allocate)
    (ops.grouped_gemm_mx if mx else ops.grouped_gemm)(
        out, a, b, scale_a, scale_b, offsets, rows, slots, bias, expected_rows or 0
    )
    return out


def grouped_gemm_gate(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    offsets: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
    slots: int = 1,
    bias: torch.Tensor | None = None,
    gate: str = "silu",
    limit: float | None = None,
    alpha: float = 1.702,
    beta: float | None = None,
    linear_beta: float | None = None,
    interleaved: bool = False,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_rows: int | None = None,
) -> torch.Tensor:
    """Byte for byte moe_gate of grouped_gemm's result in float32. Rows from offsets[-1] on are not written.

    One launch for the formats of MX weights that have a fast kernel on a GPU, else two.

    Args:
        a, scale_a, scale_b, offsets, rows, slots, bias, expected_rows: as in grouped_gemm.
        b: a's dtype, or MX, [E, 2 I, K]: gates, then ups.
        gate, limit, alpha, beta, linear_beta, interleaved: as in moe_gate.
        out: float16 or bfloat16 [R or A, I], overlapping no input; allocated if None.
        out_dtype: out's if None, bfloat16 if out is None too.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "grouped_gemm_gate"
    given = scale_a, scale_b
    scale_a, scale_b, mx = _checked(operator, a, b, scale_a, scale_b, offsets, rows, slots, expected_rows)
    if bias is not None:
        check_tensors(operator, bias=bias)
    numbers = gate, limit, alpha, beta, linear_beta, interleaved
    of_kernel = gate_numbers(operator, *numbers)
    if not mx:
        by = dict(rows=rows, slots=slots, bias=bias, expected_rows=expected_rows)
        product = grouped_gemm(a, b, *given, offsets, **by, out_dtype=WIDE[2])
        return moe_gate(product, offsets, **dict(zip(_OF_GATE, numbers)), out=out, out_dtype=out_dtype)

    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        count = a.shape[0] if rows is None else rows.numel()
        return a.new_empty((count, b.shape[1] // 2), dtype=dtype or torch.bfloat16)

    out = result(operator, out, out_dtype, WIDE[:2], allocate)
    ops.grouped_gemm_gate_mx(out, a, b, scale_a, scale_b, offsets, rows, slots, bias, expected_rows or 0, *of_kernel)
    return out


def grouped_gemm_swiglu_fp8(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    offsets: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
    slots: int = 1,
    bias: torch.Tensor | None = None,
    gate: str = "silu",
    limit: float | None = None,
    alpha: float = 1.702,
    beta: float | None = None,
    linear_beta: float | None = None,
    interleaved: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    scale: torch.Tensor | None = None,
    scaling: str = "row",
    group_size: int = 128,
    scale_dtype: torch.dtype = torch.float32,
    power_of_two: bool = False,
    scale_ub: torch.Tensor | None = None,
    fp8_max: float | None = None,
    column_major_scales: bool = False,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    expected_rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Byte for byte swiglu_dynamic_fp8, or with `scale` swiglu_fp8, of grouped_gemm's result in `dtype`.

    Rows of the results from offsets[-1] on are not written. With MX weights, a bias, another gate or interleaved
    columns it is, byte for byte, quantize_fp8 of grouped_gemm_gate's result in `dtype`; those rows hold anything then.

    Args:
        a, scale_a, scale_b, offsets, rows, slots, bias, expected_rows: as in grouped_gemm.
        b: a's dtype, or MX, [E, 2 I, K]: gates, then ups.
        gate, limit, alpha, beta, linear_beta, interleaved: as in moe_gate; where it is SwiGLU alone, limit as in
            swiglu_dynamic_fp8.
        dtype: float16 or bfloat16: what the product is rounded to before SwiGLU, or the gated values.
        scale: float32, one element: quantised by it. None: scales are computed.
        scaling: "row" or "group"; group_size, scale_dtype, power_of_two, scale_ub, fp8_max, column_major_scales, out,
            scale_out, out_dtype: as in quantize_fp8, of rows of I values.

    Returns: (out, scales).
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "grouped_gemm_swiglu_fp8"
    given = scale_a, scale_b
    scale_a, scale_b, mx = _checked(operator, a, b, scale_a, scale_b, offsets, rows, slots, expected_rows)
    check_limit(operator, limit)
    if dtype not in WIDE[:2]:
        refuse(operator, "dtype", f"{dtype}; allowed: {WIDE[0]}, {WIDE[1]}")
    if scale is None and scaling == "tensor":
        refuse(operator, "scaling", "'tensor'; allowed: 'row', 'group'")
    numbers = gate, limit, alpha, beta, linear_beta, interleaved
    gate_numbers(operator, *numbers)
    if mx or bias is not None or gate != "silu" or interleaved:
        by = dict(rows=rows, slots=slots, bias=bias, expected_rows=expected_rows)
        hidden = grouped_gemm_gate(a, b, *given, offsets, **by, **dict(zip(_OF_GATE, numbers)), out_dtype=dtype)
        wanted = dict(scaling=scaling, group_size=group_size, scale_dtype=scale_dtype, power_of_two=power_of_two)
        wanted |= dict(scale_ub=scale_ub, fp8_max=fp8_max, column_major_scales=column_major_scales)
        return quantize_fp8(hidden, scale, **wanted, out=out, scale_out=scale_out, out_dtype=out_dtype)
    count, d = (a.shape[0] if rows is None else rows.numel()), b.shape[1] // 2

    def allocate(wanted: torch.dtype | None) -> torch.Tensor:
        return a.new_empty((count, d), dtype=wanted or fp8_dtype(a.device))

    out = result(operator, out, out_dtype, FP8, allocate)
    of_gemm = a, b, scale_a, scale_b, offsets, rows, slots, dtype == torch.float16, limit
    expected = expected_rows or 0
    if scale is not None:
        check_tensors(operator, scale=scale)
        ops.grouped_gemm_swiglu_fp8(out, None, *of_gemm, scale, None, 0, 2.0, False, expected)
        return out, scale
    wanted = scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max, column_major_scales
    returned, written, group, largest = scales_to_compute(operator, (count,), a.device, d, wanted, scale_out, out.dtype)
    ops.grouped_gemm_swiglu_fp8(out, written, *of_gemm, None, scale_ub, group, largest, bool(power_of_two), expected)
    return out, returned


def _checked(operator, a, b, scale_a, scale_b, offsets, rows, slots, expected_rows):
    """The scales as the operators take them, and whether b is MX."""
    check_tensors(operator, a=a, b=b, offsets=offsets)
    check_dims(operator, "a", a, 2, "[A, K]")
    check_dims(operator, "b", b, 3, "[E, N, K]")
    if rows is not None:
        check_tensors(operator, rows=rows)
    if not isinstance(slots, int) or slots < 1:
        refuse(operator, "slots", f"{slots!r}; needs a positive integer")
    if expected_rows is not None and not (isinstance(expected_rows, int) and expected_rows > 0):
        refuse(operator, "expected_rows", f"{expected_rows!r}; needs a positive integer, or None")
    if b.dtype == torch.uint8 or (isinstance(scale_b, torch.Tensor) and holds_mx(b, scale_b, a)):
        return *mx_scales(operator, a, scale_a, scale_b), True
    return *(_bytes(operator, name, scale) for name, scale in (("scale_a", scale_a), ("scale_b", scale_b))), False


def _bytes(operator: str, name: str, scale: torch.Tensor | None) -> torch.Tensor | None:
    if scale is None:
        return None
    check_tensors(operator, **{name: scale})
    return bytes_of_e8m0(operator, name, scale)
