"""A linear on FP8 weights with scales of tensors or channels: what multiplies follows from the number of rows."""

import torch

from .._ops import add_op_namespace_prefix
from .._ops import ops as _raw
from .gemm import SKINNY_GEMM_MAX_ROWS, block_scaled_gemm, skinny_gemm

__all__ = ["fp8_linear", "gemm_for"]

_LIBRARY_NEEDS_ROWS = 128  # more than that: on an NVIDIA GPU, for scales of rows or channels


def gemm_for(rows: int, n: int, k: int, *, own_scales: bool, device: torch.device) -> str:
    """What multiplies an FP8 input [rows, k] by a weight [n, k] that has no scales of blocks.

    Args:
        own_scales: whether rows or channels have scales of their own.

    Returns: "skinny_gemm", "block_scaled_gemm", or "library", on a GPU: torch._scaled_mm or another library's GEMM.
    """
    if rows <= SKINNY_GEMM_MAX_ROWS:
        return "skinny_gemm"
    # On a CPU torch._scaled_mm takes 40 times as long as skinny_gemm on parts of the rows, and that twice as long
    # as block_scaled_gemm. On a GPU the libraries behind it want both sizes in multiples of 16.
    if device.type != "cuda" or n % 16 or k % 16:
        return "block_scaled_gemm"
    # With scales of rows or channels block_scaled_gemm is faster on an H200 up to about 128 rows; with one scale,
    # and for more rows, the library is (docs/journal/block_scaled_gemm-cuda.md).
    ours = own_scales and rows <= _LIBRARY_NEEDS_ROWS and torch.version.hip is None
    return "block_scaled_gemm" if ours else "library"


def fp8_linear(
    a: torch.Tensor,
    weight: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    out_dtype: torch.dtype,
    constant_b: bool = False,
) -> torch.Tensor:
    """`a @ weight.T * scale_a * scale_b + bias`, whose arguments are skinny_gemm's, of any number of rows."""
    if torch.compiler.is_exporting():
        return _raw.fp8_linear(a, weight, scale_a, scale_b, bias, out_dtype)
    (n, k), own = weight.shape, scale_a.dim() > 1 or scale_b.numel() > 1
    gemm = gemm_for(a.shape[0], n, k, own_scales=own, device=a.device)
    if gemm == "library":
        return _scaled_mm(a, weight, scale_a, scale_b, bias, out_dtype)
    gemm = skinny_gemm if gemm == "skinny_gemm" else block_scaled_gemm
    return gemm(a, weight, scale_a, scale_b, bias, out_dtype=out_dtype, constant_b=constant_b)


def _scaled_mm(a, weight, scale_a, scale_b, bias, dtype: torch.dtype) -> torch.Tensor:
    # Scales per row go with scales per channel, never with a scalar. Neither line copies what has the shape.
    if scale_b.numel() > 1 or scale_a.dim() > 1:
        scale_a = scale_a.expand(a.shape[0], 1).contiguous()
        scale_b = scale_b.expand(1, weight.shape[0]).contiguous()
    out = torch._scaled_mm(a.contiguous(), weight.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)
    # Not every library behind _scaled_mm takes a bias or float16 together with scales per row.
    if bias is not None:
        out = out + bias
    return out.to(dtype)


# A program that torch.export has made of any number of rows cannot choose by them; this operator does, at each call.
def _at_each_call(a, weight, scale_a, scale_b, bias, dtype: torch.dtype) -> torch.Tensor:
    from ..operators import operators

    return operators().fp8_linear(a, weight, scale_a, scale_b, bias, out_dtype=dtype)


_library = torch.library.Library(_raw.name, "FRAGMENT")
_library.define(
    "fp8_linear(Tensor a, Tensor weight, Tensor scale_a, Tensor scale_b, Tensor? bias, ScalarType dtype) -> Tensor"
)
_library.impl("fp8_linear", _at_each_call, "CompositeExplicitAutograd")
torch.library.register_fake(
    add_op_namespace_prefix("fp8_linear"),
    lambda a, weight, scale_a, scale_b, bias, dtype: a.new_empty((a.shape[0], weight.shape[0]), dtype=dtype),
    lib=_library,
)
