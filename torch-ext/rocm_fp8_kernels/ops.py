"""The operators' Python functions: allocate what was not given, call the kernel. The GEMMs: gemm.py; int8: int8.py."""

import functools

import torch

from .arguments import FP8, check_dims, check_no_self_overlap, check_tensors, refuse, result, rows
from .calls import ops
from .gemm import SKINNY_GEMM_MAX_ROWS, block_scaled_gemm, skinny_gemm
from .int8 import (
    bmm_ab_i8_e_f32,
    bmm_abe_i8,
    int8_gemm,
    layer_norm_int8,
    linear_ab_i8_de_f32,
    linear_abde_i8,
    linear_relu_abde_i8,
    quantize_int8,
    softmax_int8,
)
from .scales import computed_scales

__all__ = [
    "SKINNY_GEMM_MAX_ROWS",
    "add_rms_norm_dynamic_fp8",
    "add_rms_norm_fp8",
    "backend",
    "block_scaled_gemm",
    "bmm_ab_i8_e_f32",
    "bmm_abe_i8",
    "fp8_dtype",
    "int8_gemm",
    "layer_norm_int8",
    "linear_ab_i8_de_f32",
    "linear_abde_i8",
    "linear_relu_abde_i8",
    "quantize_fp8",
    "quantize_int8",
    "reread_environment",
    "rms_norm",
    "rms_norm_dynamic_fp8",
    "rms_norm_fp8",
    "skinny_gemm",
    "softmax_int8",
    "swiglu_dynamic_fp8",
    "swiglu_fp8",
]


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
    if not isinstance(device, torch.device):
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


def fp8_result(
    operator: str, x: torch.Tensor, width: int, out: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        dtype = dtype or fp8_dtype(x.device)
        if width == x.shape[-1]:
            return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)  # 1 us less than torch.empty
        return x.new_empty((*x.shape[:-1], width), dtype=dtype)

    return result(operator, out, out_dtype, FP8, allocate)


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
    out = fp8_result(operator, x, x.shape[-1], out, out_dtype)
    if scale is not None:
        check_tensors(operator, scale=scale)
        ops.quantize_static_fp8(out, rows(operator, "x", x, out=out), scale)
        return out, scale
    scales = computed_scales(
        operator,
        x,
        x.shape[-1],
        out.dtype,
        scaling=scaling,
        group_size=group_size,
        scale_dtype=scale_dtype,
        power_of_two=power_of_two,
        scale_ub=scale_ub,
        fp8_max=fp8_max,
        column_major_scales=column_major_scales,
        scale_out=scale_out,
    )
    kept = rows(operator, "x", x, out=out, scale_out=scales.returned)
    ops.quantize_fp8(out, scales.written, kept, *scales.arguments)
    if x.numel() == 0:
        scales.of_zeros()
    return out, scales.returned


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
    out = result("rms_norm", out, None, (), lambda _: torch.empty_like(x, memory_format=torch.contiguous_format))
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
    out = fp8_result("rms_norm_fp8", x, x.shape[-1], out, out_dtype)
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
    out = fp8_result(operator, x, x.shape[-1], out, out_dtype)
    updated = rows(operator, "residual", residual, out=out)
    if updated is not residual:
        check_no_self_overlap(operator, "residual", residual)
    ops.add_rms_norm_fp8(out, rows(operator, "x", x, out=out, residual=residual), updated, weight, scale, epsilon)
    if updated is not residual:
        residual.copy_(updated)
    return out


def rms_norm_dynamic_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    scaling: str = "row",
    group_size: int = 128,
    scale_dtype: torch.dtype = torch.float32,
    power_of_two: bool = False,
    scale_ub: torch.Tensor | None = None,
    fp8_max: float | None = None,
    column_major_scales: bool = False,
    normalized_out: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm quantised to FP8 by scales that it computes: `quantize_fp8(y)` of `y = rms_norm(x, weight, epsilon)`.

    One launch; two with scaling="tensor".

    Args:
        x, weight, epsilon: as in rms_norm.
        normalized_out: x's dtype [..., d], overlapping no other argument; takes y itself, where given.
        scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max: as in quantize_fp8, of y.
        column_major_scales, out, scale_out, out_dtype: as in quantize_fp8.

    Returns: (out, scales).
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "rms_norm_dynamic_fp8"
    check_tensors(operator, x=x, weight=weight)
    check_dims(operator, "x", x, 1, "[..., d]")
    out = fp8_result(operator, x, x.shape[-1], out, out_dtype)
    scales = computed_scales(
        operator,
        x,
        x.shape[-1],
        out.dtype,
        scaling=scaling,
        group_size=group_size,
        scale_dtype=scale_dtype,
        power_of_two=power_of_two,
        scale_ub=scale_ub,
        fp8_max=fp8_max,
        column_major_scales=column_major_scales,
        scale_out=scale_out,
    )
    written = dict(out=out, scale_out=scales.returned, **_given(operator, normalized_out))
    kept = rows(operator, "x", x, **written)
    ops.rms_norm_dynamic_fp8(out, scales.written, kept, weight, epsilon, normalized_out, *scales.arguments)
    if x.numel() == 0:
        scales.of_zeros()
    return out, scales.returned


def add_rms_norm_dynamic_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    scaling: str = "row",
    group_size: int = 128,
    scale_dtype: torch.dtype = torch.float32,
    power_of_two: bool = False,
    scale_ub: torch.Tensor | None = None,
    fp8_max: float | None = None,
    column_major_scales: bool = False,
    normalized_out: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual += x`, in place, then `rms_norm_dynamic_fp8(residual, ...)`, in one pass over memory.

    Args:
        residual: x's dtype and shape, strides of its own; holds round(x + residual) afterwards.
        x, weight, epsilon: as in rms_norm.
        normalized_out: as in rms_norm_dynamic_fp8.
        scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max: as in quantize_fp8, of y.
        column_major_scales, out, scale_out, out_dtype: as in quantize_fp8.

    Returns: (out, scales).
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "add_rms_norm_dynamic_fp8"
    check_tensors(operator, x=x, residual=residual, weight=weight)
    check_dims(operator, "x", x, 1, "[..., d]")
    out = fp8_result(operator, x, x.shape[-1], out, out_dtype)
    scales = computed_scales(
        operator,
        x,
        x.shape[-1],
        out.dtype,
        scaling=scaling,
        group_size=group_size,
        scale_dtype=scale_dtype,
        power_of_two=power_of_two,
        scale_ub=scale_ub,
        fp8_max=fp8_max,
        column_major_scales=column_major_scales,
        scale_out=scale_out,
    )
    written = dict(out=out, scale_out=scales.returned, **_given(operator, normalized_out))
    updated = rows(operator, "residual", residual, **written)
    if updated is not residual:
        check_no_self_overlap(operator, "residual", residual)
    kept = rows(operator, "x", x, residual=residual, **written)
    ops.add_rms_norm_dynamic_fp8(out, scales.written, kept, updated, weight, epsilon, normalized_out, *scales.arguments)
    if updated is not residual:
        residual.copy_(updated)
    if x.numel() == 0:
        scales.of_zeros()
    return out, scales.returned


def _given(operator: str, normalized_out: torch.Tensor | None) -> dict[str, torch.Tensor]:
    if normalized_out is None:
        return {}
    check_tensors(operator, normalized_out=normalized_out)
    return {"normalized_out": normalized_out}


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
    out = fp8_result("swiglu_fp8", x, x.shape[-1] // 2, out, out_dtype)
    ops.swiglu_fp8(out, rows("swiglu_fp8", "x", x, out=out), scale)
    return out


def swiglu_dynamic_fp8(
    x: torch.Tensor,
    *,
    limit: float | None = None,
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
    """SwiGLU quantised to FP8 by scales that it computes: `quantize_fp8(y)` of `y = round(round(silu(gate)) * up)`.

    One launch; two with scaling="tensor".

    Args:
        x: float16 or bfloat16 [..., 2 d]: gate = x[..., :d], up = x[..., d:]; last dimension contiguous.
        limit: clamps gate to at most `limit` and up to [-limit, limit] beforehand; positive, rounded to x's dtype.
        scaling, group_size, scale_dtype, power_of_two, scale_ub, fp8_max: as in quantize_fp8, of y.
        column_major_scales, out, scale_out, out_dtype: as in quantize_fp8.

    Returns: (out, scales).
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "swiglu_dynamic_fp8"
    check_tensors(operator, x=x)
    check_dims(operator, "x", x, 1, "[..., 2 d]")
    if limit is not None and not (isinstance(limit, (int, float)) and limit > 0):
        refuse(operator, "limit", f"{limit!r}; needs a positive number, or None")
    out = fp8_result(operator, x, x.shape[-1] // 2, out, out_dtype)
    scales = computed_scales(
        operator,
        x,
        x.shape[-1] // 2,
        out.dtype,
        scaling=scaling,
        group_size=group_size,
        scale_dtype=scale_dtype,
        power_of_two=power_of_two,
        scale_ub=scale_ub,
        fp8_max=fp8_max,
        column_major_scales=column_major_scales,
        scale_out=scale_out,
    )
    kept = rows(operator, "x", x, out=out, scale_out=scales.returned)
    ops.swiglu_dynamic_fp8(out, scales.written, kept, limit, *scales.arguments)
    if x.numel() == 0:
        scales.of_zeros()
    return out, scales.returned
