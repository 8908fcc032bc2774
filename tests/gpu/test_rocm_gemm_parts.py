"""Parts of a larger block_scaled_gemm have its bits, simulated: rows and columns of it, by launches of their own."""

import pytest
import torch

from problems import block_scaled_gemm as gemm
from problems.buffers import same_bytes
from problems.gemm import Problem
from tests.gpu.simulated_kernels import simulated

kernel = simulated  # the package on each chip
# K that is split, for the whole in other parts than for its parts alone; few rows and many; columns of no whole tile.
SIZES = ((70, 520, 2064), (300, 264, 1040), (33, 768, 4112))


@pytest.mark.parametrize("m, n, k", SIZES)
def test_parts_have_the_bits_of_the_whole(kernel, fp8, generator, m, n, k):
    overlap = kernel.comm.collectives.overlap
    inputs = gemm.draw(Problem(m, n, k, fp8), generator)
    operands = inputs.a, inputs.b, inputs.scale_a, inputs.scale_b
    whole = kernel.block_scaled_gemm(*operands, out_dtype=torch.float32)
    columns, rows = torch.empty_like(whole), torch.empty_like(whole)
    for begin in range(0, n, 256):
        end = min(begin + 256, n)
        scale = overlap.columns_of(inputs.scale_b, n, begin, end)
        out = columns[:, begin:end]
        overlap.part_of_gemm(out, inputs.a, inputs.b[begin:end], inputs.scale_a, scale, None, False, (m, n), 16)
    for begin in range(0, m, 128):
        part = slice(begin, min(begin + 128, m))
        given = inputs.a[part], inputs.b, inputs.scale_a[part], inputs.scale_b
        overlap.part_of_gemm(rows[part], *given, None, False, (m, n), 1000)
    assert same_bytes(columns, whole) and same_bytes(rows, whole)


def test_a_part_larger_than_the_whole_is_refused(kernel, fp8, generator):
    inputs = gemm.draw(Problem(8, 16, 128, fp8), generator)
    given = inputs.a, inputs.b, inputs.scale_a, inputs.scale_b, None, False
    for whole, spare in (((4, 16), 0), ((8, 8), 0), ((8, 0), 0), ((8, 16), -1)):
        with pytest.raises(RuntimeError, match="^block_scaled_gemm: (whole_m, whole_n|spare_units): "):
            kernel.comm.collectives.overlap.part_of_gemm(torch.empty(8, 16), *given, whole, spare)
