"""The collective operators, by a communicator's number and its order: what comm.Communicator calls."""

import torch

from .arguments import check_dims, check_tensors, result, rows
from .calls import ops
from .gemm import gemm_result
from .norms import add_and_quantize
from .scales import with_computed_scales

Handle = tuple[torch.Tensor, int]  # order, which every launch writes as far as torch knows; the communicator's number


def all_reduce(x: torch.Tensor, handle: Handle, out: torch.Tensor | None) -> torch.Tensor:
    check_tensors("all_reduce", x=x)
    out = result("all_reduce", out, None, (), lambda _: torch.empty_like(x, memory_format=torch.contiguous_format))
    written = out
    if out is x or (out.dim() > 2 and not out.is_contiguous()):
        # In place, as torch's compiler takes it: a result of its own.
        written = torch.empty_like(x, memory_format=torch.contiguous_format)
    ops.all_reduce(written, rows("all_reduce", "x", x, out=written), *handle)
    if written is not out:
        out.copy_(written)
    return out


def reduce_scatter(x: torch.Tensor, handle: Handle, ranks: int, out: torch.Tensor | None) -> torch.Tensor:
    check_tensors("reduce_scatter", x=x)
    check_dims("reduce_scatter", "x", x, 2, "[rows, d]")
    out = result("reduce_scatter", out, None, (), lambda _: x.new_empty((x.shape[0] // ranks, *x.shape[1:])))
    ops.reduce_scatter(out, x, *handle)
    return out


def all_gather(x: torch.Tensor, handle: Handle, ranks: int, out: torch.Tensor | None) -> torch.Tensor:
    check_tensors("all_gather", x=x)
    check_dims("all_gather", "x", x, 2, "[rows, d]")
    out = result("all_gather", out, None, (), lambda _: x.new_empty((x.shape[0] * ranks, *x.shape[1:])))
    ops.all_gather(out, x, *handle)
    return out


def all_reduce_add_rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    epsilon: float,
    handle: Handle,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    operands = weight, scale, epsilon, *handle
    return add_and_quantize("all_reduce_add_rms_norm_fp8", x, residual, operands, out, out_dtype)


def all_reduce_add_rms_norm_dynamic_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    operands: tuple,
    scales: tuple,
    results: tuple,
    handle: Handle,
) -> tuple[torch.Tensor, torch.Tensor]:
    """operands: weight, epsilon, normalized_out. scales: quantize_fp8's. results: out, scale_out, out_dtype."""
    operator = "all_reduce_add_rms_norm_dynamic_fp8"
    weight, _, normalized_out = operands
    check_tensors(operator, x=x, residual=residual, weight=weight)
    check_dims(operator, "x", x, 1, "[..., d]")
    return with_computed_scales(
        operator, x, x.shape[-1], operands, scales, *results, normalized_out, residual, last=handle
    )


def skinny_gemm_all_reduce(
    operands: tuple,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    constant_b: bool,
    handle: Handle,
) -> torch.Tensor:
    """operands: skinny_gemm's a, b, scale_a, scale_b, bias."""
    out = gemm_result("skinny_gemm_all_reduce", *operands, out, out_dtype)
    ops.skinny_gemm_all_reduce(out, *operands, constant_b, *handle)
    return out


def skinny_gemm_all_reduce_add_rms_norm_fp8(
    operands: tuple,
    residual: torch.Tensor,
    norm: tuple,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    constant_b: bool,
    handle: Handle,
) -> torch.Tensor:
    """operands: as above; norm: weight, scale, epsilon."""
    operator = "skinny_gemm_all_reduce_add_rms_norm_fp8"
    check_tensors(operator, residual=residual)
    product = gemm_result(operator, *operands, None, residual.dtype)
    return add_and_quantize(operator, product, residual, (*norm, *operands, constant_b, *handle), out, out_dtype)
