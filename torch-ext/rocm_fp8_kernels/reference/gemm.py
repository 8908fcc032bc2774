"""The GEMMs of FP8: by scales of tensors, rows and channels, and by scales of blocks."""

import torch

from ..ops.mx import holds_mx
from .mx import mx_product
from .quantize import into


def skinny_gemm(a, b, scale_a, scale_b, bias=None, *, out=None, out_dtype=None, constant_b=False):
    c = a.float() @ b.float().t() * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    if bias is not None:
        c = c + bias.float()
    return into(out, c.to(out_dtype or (torch.bfloat16 if out is None else out.dtype)))


def fp8_linear(a, weight, scale_a, scale_b, bias, *, out_dtype, constant_b=False):
    return skinny_gemm(a, weight, scale_a, scale_b, bias, out_dtype=out_dtype)


def _block_scales(scale: torch.Tensor, rows: int, blocks: int, by_row: tuple[int, int], by_blocks: bool):
    """float32 [rows, blocks], or with one column where blocks share a scale."""
    row_blocks = -(-rows // 128)
    shape, scale = tuple(scale.shape), scale.float()
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if shape in ((rows,), by_row) and shape != (rows, blocks) and not (by_blocks and shape == (row_blocks, blocks)):
        return scale.reshape(rows, 1)
    return scale if shape == (rows, blocks) else scale.repeat_interleave(128, 0)[:rows]


def block_scaled_gemm(a, b, scale_a, scale_b, bias=None, *, out=None, out_dtype=None, constant_b=False):
    if holds_mx(b, scale_b, a):
        c = mx_product(a, b, scale_a, scale_b, bias)
        return into(out, c.to(out_dtype or (torch.bfloat16 if out is None else out.dtype)))
    (m, k), n = a.shape, b.shape[0]
    blocks = -(-k // 128)
    scale_a = _block_scales(scale_a, m, blocks, (m, 1), by_blocks=True)
    scale_b = _block_scales(scale_b, n, blocks, (1, n), by_blocks=scale_a.shape[1] > 1)
    c = torch.zeros(m, n, device=a.device)
    for j, (rows, columns) in enumerate(zip(a.float().split(128, 1), b.float().split(128, 1))):
        of_a, of_b = (scale[:, min(j, scale.shape[1] - 1)] for scale in (scale_a, scale_b))
        c += (rows @ columns.t()) * (of_a[:, None] * of_b)
    if bias is not None:
        c = c + bias.float()
    return into(out, c.to(out_dtype or (torch.bfloat16 if out is None else out.dtype)))
