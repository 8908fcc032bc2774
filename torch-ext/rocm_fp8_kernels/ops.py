"""The operators' Python functions: allocate what was not given, call the kernel."""

import functools
import math

import torch

from ._ops import ops
from .arguments import FP8, SCALES, WIDE, check_dims, check_no_self_overlap, check_tensors, refuse, result, rows

# The most rows that one skinny_gemm takes.
SKINNY_GEMM_MAX_ROWS = 32


@functools.cache
def _fp8_dtype_of(device_type: str, index: int | None) -> torch.dtype:
    if device_type != "cuda" or torch.version.hip is None:
        return torch.float8_e4m3fn
    # The architecture of the device at hand, not of the build: one binary serves several.
    gfx942 = torch.cuda.get_device_properties(index).gcnArchName.startswith("gfx942")
    return torch.float8_e4m3fnuz if gfx942 else torch.float8_e4m3fn


# A device does not change its architecture: torch.compile need not look inside.
@torch.compiler.assume_constant_result
def fp8_dtype(device: torch.device | str) -> torch.dtype:
    """The FP8 format of a device: float8_e4m3fnuz on gfx942 (MI300X), float8_e4m3fn elsewhere."""
    device = torch.device(device)
    return _fp8_dtype_of(device.type, device.index)


def backend() -> str:
    """What this build is for: "cpu", "cuda" or "rocm"."""
    # kernel-builder writes it into the namespace's name: _rocm_fp8_kernels_<backend>_<id>.
    return ops.name.removeprefix("_rocm_fp8_kernels_").split("_")[0]


def reread_environment() -> None:
    """Reads the ROCM_FP8_KERNELS_* variables anew. Otherwise they are read once a process, at the first launch.

    For tests and tuning. ROCM_FP8_KERNELS_CPU is not read again.
    """
    ops.reread_environment()


def _fp8_result(
    operator: str, x: torch.Tensor, width: int, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        return torch.empty((*x.shape[:-1], width), dtype=dtype or fp8_dtype(x.device), device=x.device)

    return result(operator, out, out_dtype, FP8, allocate)


_OF_TENSOR, _OF_ROW = -1, 0  # of the operators' `group`
# The operators take its bytes: Inductor compiles none that writes the type itself.
_E8M0 = torch.float8_e8m0fnu


def _scale_result(
    operator: str,
    x: torch.Tensor,
    d: int,
    scaling: str,
    group_size: int,
    scale_dtype: torch.dtype,
    column_major: bool,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The scales of x's rows of d values, the same memory as the operators take it, and their `group`."""
    if scaling not in ("tensor", "row", "group"):
        refuse(operator, "scaling", f"{scaling!r}; allowed: 'tensor', 'row', 'group'")
    if scaling == "group" and not (isinstance(group_size, int) and group_size in (32, 64, 128)):
        refuse(operator, "group_size", f"{group_size}; allowed: 32, 64, 128")
    group = {"tensor": _OF_TENSOR, "row": _OF_ROW, "group": group_size}[scaling]

    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        dtype = torch.uint8 if dtype == _E8M0 else torch.float32
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

    found = result(operator, out, scale_dtype if out is None else None, SCALES, allocate, name="scale_out")
    if out is None:
        return (found.view(_E8M0) if found.dtype == torch.uint8 else found), found, group
    if out.dtype not in SCALES:
        refuse(operator, "scale_out", f"dtype {out.dtype}; allowed: {', '.join(map(str, SCALES))}")
    return out, (out.view(torch.uint8) if out.dtype == _E8M0 and out.dim() else out), group


def _largest_quotient(operator: str, fp8_max: float | None, dtype: torch.dtype) -> float:
    if fp8_max is None:
        # Another dtype is refused by the binding.
        return torch.finfo(dtype).max if dtype in FP8 else 2.0
    if not isinstance(fp8_max, (int, float)):
        refuse(operator, "fp8_max", f"{type(fp8_max).__name__}; needs a number")
    return float(fp8_max)


def _write_scales_of_zeros(scales: torch.Tensor, fp8_max: float, power_of_two: bool) -> None:
    # On the scales' device: a copy from the host would end a graph capture.
    scale = torch.full_like(scales, 1e-10, dtype=torch.float32)
    scale = scale / torch.full_like(scale, fp8_max)
    bits = scale.view(torch.int32)
    if scales.dtype == torch.uint8:
        scales.copy_((bits + 0x7FFFFF) >> 23)
    else:
        scales.copy_(((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32) if power_of_two else scale)


def quantize_fp8(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises to FP8, by `scale` or by scales that it computes: `fp8(x / scale)`.

        amax  = max |x| over the finite values of the tensor, a row or a group of a row
        amax  = max(min(amax, scale_ub), 1e-10)
        scale = amax / fp8_max, with power_of_two the least power of two that is not smaller
        q     = fp8(x / scale), by the scale that is returned

    Args:
        x: float16, bfloat16 or float32 [..., d], last dimension contiguous, rows strided freely.
        scale: float32, one element, on x's device: x is quantised by it, and the arguments below but for out and
            out_dtype have no effect. None: scales are computed.
        scaling: what has a scale: "tensor" (scales [1]), "row" ([..., 1]) or "group" ([..., ceil(d / group_size)]).
        group_size: 32, 64 or 128; the last group of a row may be shorter.
        scale_dtype: torch.float32 or torch.float8_e8m0fnu, which implies power_of_two.
        power_of_two: rounds scales up to powers of two ("UE8M0" where they are float32).
        scale_ub: float32, one element, on x's device: an upper bound of amax.
        fp8_max: the number that amax becomes, 2 to the format's largest (default: that). vLLM divides by 224 on
            float8_e4m3fnuz.
        column_major_scales: allocates scales of the same shape whose row index is the fastest. Columns begin at
            multiples of 16 bytes, as TMA asks.
        out: FP8 [..., d], overlapping no input; allocated if None.
        scale_out: the scales; its dtype counts, not scale_dtype. Any strides without overlap, if the leading
            dimensions collapse into rows with one stride. Under torch.compile's Inductor it must be float32.
        out_dtype: torch.float8_e4m3fn or torch.float8_e4m3fnuz; the device's own (`fp8_dtype`) if None.

    Returns: (out, scales). Infinities saturate, NaN stays NaN; neither counts in amax. Of an empty x the scales are
    those of zeros.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "quantize_fp8"
    check_tensors(operator, x=x)
    check_dims(operator, "x", x, 1, "[..., d]")
    out = _fp8_result(operator, x, x.shape[-1], out, out_dtype)
    if scale is not None:
        check_tensors(operator, scale=scale)
        ops.quantize_static_fp8(out, rows(operator, "x", x, out=out), scale)
        return out, scale
    if scale_ub is not None:
        check_tensors(operator, scale_ub=scale_ub)
    scales, written, group = _scale_result(
        operator, x, x.shape[-1], scaling, group_size, scale_dtype, column_major_scales, scale_out
    )
    largest = _largest_quotient(operator, fp8_max, out.dtype)
    kept = rows(operator, "x", x, out=out, scale_out=scales)
    ops.quantize_fp8(out, written, kept, scale_ub, group, largest, power_of_two)
    if x.numel() == 0:  # there is nothing to launch
        _write_scales_of_zeros(written, largest, power_of_two)
    return out, scales


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """RMSNorm, with the rounding points of transformers' LlamaRMSNorm.

        n = round(x / sqrt(mean(x^2) + epsilon)),  y = round(n * weight)

    Args:
        x: float16 or bfloat16 [..., d], last dimension contiguous, rows strided freely.
        weight: x's dtype or float32 [d].
        epsilon: added to the mean of squares.
        out: x's dtype [..., d], overlapping no input; allocated if None.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    check_tensors("rms_norm", x=x, weight=weight)
    out = result("rms_norm", out, None, (), lambda _: torch.empty(x.shape, dtype=x.dtype, device=x.device))
    ops.rms_norm(out, rows("rms_norm", "x", x, out=out), weight, epsilon)
    return out


def rms_norm_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """RMSNorm quantised to FP8: `fp8(rms_norm(x, weight, epsilon) / scale)`.

    Args:
        x: float16 or bfloat16 [..., d], last dimension contiguous, rows strided freely.
        weight: x's dtype or float32 [d].
        scale: float32, one element, on x's device: the dequantisation scale.
        epsilon: added to the mean of squares.
        out: FP8 [..., d], overlapping no input; allocated if None.
        out_dtype: torch.float8_e4m3fn or torch.float8_e4m3fnuz; the device's own (`fp8_dtype`) if None.

    Returns: out. Values beyond the format's largest saturate, NaN stays NaN.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: the kernel of "Creating custom kernels for the AMD MI300" (Hugging Face and AMD, 2025), with the
    mean (not the sum) of squares and the scale as divisor.
    """
    check_tensors("rms_norm_fp8", x=x, weight=weight, scale=scale)
    check_dims("rms_norm_fp8", "x", x, 1, "[..., d]")
    out = _fp8_result("rms_norm_fp8", x, x.shape[-1], out, out_dtype)
    ops.rms_norm_fp8(out, rows("rms_norm_fp8", "x", x, out=out), weight, scale, epsilon)
    return out


def add_rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`residual += x`, in place, then `rms_norm_fp8(residual, ...)`, in one pass over memory.

    Args:
        residual: x's dtype and shape, strides of its own; holds round(x + residual) afterwards.
        The others: as in rms_norm_fp8.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "add_rms_norm_fp8"
    check_tensors(operator, x=x, residual=residual, weight=weight, scale=scale)
    check_dims(operator, "x", x, 1, "[..., d]")
    out = _fp8_result(operator, x, x.shape[-1], out, out_dtype)
    updated = rows(operator, "residual", residual, out=out)
    if updated is not residual:
        check_no_self_overlap(operator, "residual", residual)
    ops.add_rms_norm_fp8(out, rows(operator, "x", x, out=out, residual=residual), updated, weight, scale, epsilon)
    if updated is not residual:
        residual.copy_(updated)
    return out


def swiglu_fp8(
    x: torch.Tensor, scale: torch.Tensor, *, out: torch.Tensor | None = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """SwiGLU quantised to FP8: `fp8(round(round(silu(gate)) * up) / scale)`.

    Args:
        x: float16 or bfloat16 [..., 2 d]: gate = x[..., :d], up = x[..., d:]; last dimension contiguous.
        scale: float32, one element, on x's device: the dequantisation scale.
        out: FP8 [..., d], not overlapping x; allocated if None.
        out_dtype: torch.float8_e4m3fn or torch.float8_e4m3fnuz; the device's own (`fp8_dtype`) if None.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: as rms_norm_fp8; silu(v) = v / (1 + exp(-v)).
    """
    check_tensors("swiglu_fp8", x=x, scale=scale)
    check_dims("swiglu_fp8", "x", x, 1, "[..., 2 d]")
    out = _fp8_result("swiglu_fp8", x, x.shape[-1] // 2, out, out_dtype)
    ops.swiglu_fp8(out, rows("swiglu_fp8", "x", x, out=out), scale)
    return out


def skinny_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    constant_b: bool = False,
) -> torch.Tensor:
    """`out = (a @ b.T) * scale_a * scale_b + bias` for few rows, accumulated in float32 in a fixed order.

    A row's bits do not depend on the other rows; nor on M, on an AMD GPU within 1 to 8, 9 to 16 and 17 to 32, on an
    NVIDIA GPU within 1 to 16 and 17 to 32 (or all of them: docs/numerics.md).

    Args:
        a: FP8 [M, K], 0 <= M <= SKINNY_GEMM_MAX_ROWS, K >= 1; last dimension contiguous, rows strided freely. On a GPU
            the device's own format (`fp8_dtype`), on a CPU either.
        b: a's dtype [N, K] (torch.nn.Linear's weight), likewise.
        scale_a: float32, one element or [M, 1].
        scale_b: float32, one element or [1, N].
        bias: float16, bfloat16 or float32 [N], or None.
        out: float16, bfloat16 or float32 [M, N], overlapping no input; allocated if None, need not be zeroed.
        out_dtype: dtype of the result: out's if None, bfloat16 if out is None too.
        constant_b: promises that whatever wrote b has ended, as with weights that were loaded long before
            (docs/numerics.md). On a Hopper GPU the kernel then reads b while the kernel before it ends.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    check_tensors("skinny_gemm", a=a, b=b, scale_a=scale_a, scale_b=scale_b)
    if bias is not None:
        check_tensors("skinny_gemm", bias=bias)

    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        check_dims("skinny_gemm", "a", a, 2, "[M, K]")
        check_dims("skinny_gemm", "b", b, 2, "[N, K]")
        return torch.empty((a.shape[0], b.shape[0]), dtype=dtype or torch.bfloat16, device=a.device)

    out = result("skinny_gemm", out, out_dtype, WIDE, allocate)
    ops.skinny_gemm(out, a, b, scale_a, scale_b, bias, constant_b)
    return out
