"""The GEMMs' Python functions: allocate what was not given, call the kernel."""

import torch

from ._ops import ops
from .arguments import WIDE, check_dims, check_tensors, result

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
