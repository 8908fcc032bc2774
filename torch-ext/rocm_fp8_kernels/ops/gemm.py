"""The GEMMs' Python functions: allocate what was not given, call the kernel."""

import torch

from .arguments import WIDE, bytes_of_e8m0, check_dims, check_tensors, result
from .calls import ops
from .mx import holds_mx, mx_scales

# The most rows that one skinny_gemm takes.
SKINNY_GEMM_MAX_ROWS = 32


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
    out = gemm_result("skinny_gemm", a, b, scale_a, scale_b, bias, out, out_dtype)
    ops.skinny_gemm(out, a, b, scale_a, scale_b, bias, constant_b)
    return out


def block_scaled_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    constant_b: bool = False,
) -> torch.Tensor:
    """`out = a @ b.T + bias` for any number of rows, with scales for blocks of 128 k, or of 32 (MX).

        p[m, n, j] = sum over the k of block j of a[m, k] * b[n, k]                      in float32
        out[m, n]  = sum over j of scale_a[m, j] * scale_b[n, j] * p[m, n, j] + bias[n]  in float32, then rounded

    A row's bits do not depend on the other rows. On a GPU they depend on M through its class alone: up to 16, 32, 64,
    and then each multiple of 128. On a CPU they do not depend on M. With MX weights blocks j are of 32 k, and M's
    class matters on Hopper GPUs alone.

    Args:
        a: FP8 [M, K], M >= 0, K >= 1; one of the dimensions contiguous. On a GPU the device's own format (`fp8_dtype`),
            on a CPU either. With K contiguous it is faster on a GPU.
        b: a's dtype [N, K] (torch.nn.Linear's weight), likewise.
        scale_a: float32 or float8_e8m0fnu, any strides, any sign. The shape says what has a scale: one element;
            [M] or [M, 1], a row; [M, ceil(K / 128)], 128 k of a row; [ceil(M / 128), ceil(K / 128)], a square block.
            On an H200 scales for 128 k of a row are read faster in columns, which `column_major_scales=True` computes:
            from 256 rows on quantisation and product together are up to 1.18 times as fast.
        scale_b: the same with N; [N] or [1, N] is a channel. [1, N] that could be blocks as well is blocks where
            scale_a's are, too.
        bias: float16, bfloat16 or float32 [N], or None.
        out: float16, bfloat16 or float32 [M, N], overlapping no input; allocated if None, need not be zeroed.
        out_dtype: dtype of the result: out's if None, bfloat16 if out is None too.
        constant_b: promises that whatever wrote b and scale_b has ended, as in skinny_gemm.

    MX weights: b is MXFP4 (uint8 [N, K / 2], the even k in the low four bits of a byte) or MXFP8 (FP8 [N, K]), scale_b
    float8_e8m0fnu (or its bytes as uint8) [N, K / 32]; K is a multiple of 32. Then a is float16 or bfloat16 [M, K]
    without scale_a; FP8 with a float32 scale_a of one element, [M] or [M, 1]; MXFP8 (scale_a [M, K / 32]); or, with b
    of MXFP4, MXFP4. Last dimensions are contiguous.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: the scales of DeepSeek-V3 (1x128 of activations, 128x128 of weights), and the AMD FP8 GEMM challenge.
    """
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and isinstance(scale_b, torch.Tensor)
    if tensors and holds_mx(b, scale_b, a):
        out = gemm_result("block_scaled_gemm", a, b, b if scale_a is None else scale_a, scale_b, bias, out, out_dtype)
        ops.block_scaled_gemm_mx(out, a, b, *mx_scales("block_scaled_gemm", a, scale_a, scale_b), bias)
        return out
    out = gemm_result("block_scaled_gemm", a, b, scale_a, scale_b, bias, out, out_dtype)
    scales = (
        bytes_of_e8m0("block_scaled_gemm", "scale_a", scale_a),
        bytes_of_e8m0("block_scaled_gemm", "scale_b", scale_b),
    )
    ops.block_scaled_gemm(out, a, b, *scales, bias, constant_b)
    return out


def gemm_result(
    operator: str,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    check_tensors(operator, a=a, b=b, scale_a=scale_a, scale_b=scale_b)
    if bias is not None:
        check_tensors(operator, bias=bias)

    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        check_dims(operator, "a", a, 2, "[M, K]")
        check_dims(operator, "b", b, 2, "[N, K]")
        return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype or torch.bfloat16)

    return result(operator, out, out_dtype, WIDE, allocate)
