"""Problems of block_scaled_gemm: sizes, kinds of scales, and the check against float64."""

import torch

from problems import gemm
from problems.comparisons import assert_block_scaled_gemm_close
from problems.gemm import (
    BLOCK,
    SHAPES,
    VECTOR,
    Gemm,
    Problem,
    Scaling,
    any_sign,
    assert_close,
    draw_fp8_case,
    fp8_cases,
    no_bias,
    powers_of_two,
)
from problems.inputs import positive, random_fp8

# Nothing; few rows; each end of a row class and what surrounds it; more than one block of rows.
M = (0, 1, 2, 3, 5, 8, 16, 17, 32, 33, 64, 65, 128, 129, 200)
# Less than a tile of columns; a block of columns and what surrounds it; several and a remainder.
N = (1, 3, 4, 13, 48, 64, 127, 128, 129, 200, 272)
# One 16-byte load and what surrounds it; a block and what surrounds it; several blocks, whole or not.
K = (1, 15, 16, 17, 64, 100, 127, 128, 129, 144, 255, 256, 384, 512, 650)


def row_classes(backend: str) -> tuple[tuple[int, ...], ...]:
    """Numbers of rows for which a row has the same bits: the ends of each class and some between."""
    if backend == "cpu":
        return ((1, 2, 3, 4, 5, 15, 16, 17, 32, 33, 64, 100, 128, 129, 200),)
    return (1, 2, 7, 16), (17, 25, 32), (33, 50, 64), (65, 100, 128), (129, 200)


# The AMD FP8 GEMM challenge's tests (gpu-mode/reference-kernels, problems/amd/fp8-mm): the linears of DeepSeek-V3 on 8
# devices, with 64 to 512 rows. Columns and K of the linears: queries down and up, keys and values down, both MLPs.
CHALLENGE = [
    (64, 64, 128),
    *((64, n, k) for n, k in ((1536, 7168), (3072, 1536), (576, 7168))),
    *((96, n, k) for n, k in ((7168, 256), (7168, 2048), (4608, 7168))),
    *((128, n, k) for n, k in ((7168, 2304), (512, 7168))),
    *((512, n, k) for n, k in ((4096, 512), (1536, 7168))),
]


class Inputs(gemm.Inputs):
    def scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """In float64 [M, blocks] and [N, blocks]: what the shapes of the scales say."""
        (m, k), n = self.a.shape, len(self.b)
        blocks_first = self.scale_a.dim() == 2 and self.scale_a.shape[1] > 1
        of_a = by_block(self.scale_a, m, k, (m, 1), blocks_first=True)
        return of_a, by_block(self.scale_b, n, k, (1, n), blocks_first=blocks_first)

    def assert_right(self, out: torch.Tensor, what: str) -> None:
        assert_block_scaled_gemm_close(out, self.a, self.b, *self.scales(), self.bias, what)


def by_block(scale: torch.Tensor, rows: int, k: int, vector: tuple[int, int], blocks_first: bool) -> torch.Tensor:
    """float64 [rows, blocks]. `vector`: the shape of a scale a row in two dimensions; with `blocks_first` a shape that
    could be blocks as well is blocks."""
    blocks, row_blocks = -(-k // BLOCK), -(-rows // BLOCK)
    shape, values = tuple(scale.shape), scale.float().double()
    squares = shape == (row_blocks, blocks)
    if scale.numel() == 1:
        return values.reshape(1, 1).expand(rows, blocks)
    if shape == (rows,) or (shape == vector and not (squares and blocks_first)):
        return values.reshape(rows, 1).expand(rows, blocks)
    if shape == (rows, blocks):
        return values
    assert squares, f"{shape} for {rows} rows and {blocks} blocks"
    return values[torch.arange(rows, device=scale.device) // BLOCK]


VALUES = (positive, any_sign, powers_of_two)
# How a tensor of rows lies: K contiguous or (columns) the other dimension; 16-byte aligned or off any alignment.
OPERANDS = ("dense", "apart", "padded", "columns", "columns-apart", "columns-padded")
SCALES = ("dense", "padded", "columns", "strided", "one-row", "one-block")
GROUP, SQUARE = Scaling("group"), Scaling("square")


def draw(problem: Problem, generator, scale_a=GROUP, scale_b=SQUARE, bias=no_bias, values=random_fp8) -> Inputs:
    return gemm.draw_fp8(Inputs, problem, generator, scale_a, scale_b, bias, values)


GEMM = Gemm(
    name="block_scaled_gemm",
    draw=draw,
    draw_case=draw_fp8_case(draw),
    assert_right=assert_close,
    cases=fp8_cases(M, N, K, shapes=tuple(SHAPES), values=VALUES, places=SCALES, operands=OPERANDS),
    rows=(1, 3, 4, 5, 20, 33, 70, 130),
    inner=(1, 17, 128, 300),
    row_classes=row_classes,
    of_a_row=((13, 1), (12, 100), (130, 257), (5, 1024)),
    uneven=((1, 1000, 4096), (4, 515, 1031), (33, 1000, 520), (300, 270, 700)),
    moved=((1, 37, 1000), (7, 37, 272), (33, 13, 257), (130, 140, 400)),
    of_rows=(VECTOR._replace(values=any_sign), GROUP._replace(values=any_sign)),
    operands=OPERANDS,
    orders=("dense", "columns"),
    places=tuple(how for how in SCALES if not how.startswith("one")),
    scales_parts=True,
)
run = GEMM.run
