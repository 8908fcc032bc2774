"""block_scaled_gemm's CUDA kernels without a GPU: every form, emulated on the host, against float64.

It finds wrong addresses, fragments, sums, stores and deadlocks. What it cannot find, and what an emulation is not, says
host/emulated_cuda.h; on a GPU the operator's own tests run.
"""

import pytest
import torch

from problems.block_scaled_gemm import GROUP, SQUARE, draw
from problems.buffers import Guarded, same_bytes
from problems.gemm import Problem, Scaling, any_sign, bias_of, no_bias, powers_of_two
from problems.inputs import FLOATS, FP8, positive, short
from problems.pairwise import SAMPLE, pairwise
from tests.gpu.emulated_cuda import BlockScaledGemm

PLAIN, FORMS = -1, 18
# Without a scale a row and block of B, which only the swapped forms and the plain kernel take.
SCALES_B = (SQUARE, Scaling("vector", any_sign), Scaling("one", positive), Scaling("square", powers_of_two, "columns"))
GENERAL_B = (*SCALES_B, GROUP, Scaling("group", any_sign, "columns"))
SCALES_A = (GROUP, Scaling("group", any_sign, "columns"), Scaling("vector", positive), Scaling("square", powers_of_two))

CASES = pairwise(
    (1, 7, 16, 17, 64, 100, 129, 200),
    (1, 5, 40, 97, 128, 136, 264),
    (1, 16, 100, 128, 129, 300, 1030),
    *(SCALES_A, range(len(GENERAL_B)), FLOATS, (no_bias, bias_of(torch.bfloat16))),
    *(("dense", "padded", "columns"), ("dense", "padded", "columns")),
    *((1, 2, 3, 8), (0, 1), (1, 3)),
    seed=SAMPLE,
)


@pytest.fixture(scope="module")
def emulated() -> BlockScaledGemm:
    return BlockScaledGemm()


def test_all_forms_are_here(emulated):
    assert len(emulated.forms()) == FORMS


@pytest.mark.covering
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("form", range(PLAIN, FORMS))
def test_against_float64(emulated, generator, form, half):
    """Each form has its share of the cases, and each case a form."""
    cases = CASES[form + 1 :: 4][half::2]
    for m, n, k, scale_a, of_b, dtype, bias, layout_a, layout_b, splits, more, multiprocessors in cases:
        swapped, wide, _, may_split = emulated.forms()[form] if form != PLAIN else (True, 8, 0, False)
        scale_b = GENERAL_B[of_b] if swapped else SCALES_B[of_b % len(SCALES_B)]
        splits = min(splits, -(-k // 128)) if may_split else 1
        pieces = _pieces(n, wide) if swapped and more else 0
        drawn = draw(Problem(m, n, k, FP8[0]), generator, scale_a, scale_b, bias)
        inputs, _ = drawn.placed("cpu", layout_a, layout_b, scale_a.place, scale_b.place)
        out = Guarded((m, n), dtype, "cpu", pad=3 * more)
        emulated.run(inputs, out.t, form, splits, pieces, multiprocessors)
        what = f"{m}x{n}x{k} {scale_a} {scale_b} {short(dtype)} {layout_a} {layout_b} {splits} {pieces}"
        inputs.assert_right(out.t, what)
        out.assert_guards_intact(what)


def _pieces(n: int, wide: int) -> int:
    """One more than the fewest, where pieces of whole groups of 8 columns allow it."""
    most, fewest = -(-n // 8), -(-n // wide)
    height = -(-most // min(fewest + 1, most))
    return -(-most // height)


@pytest.mark.parametrize("splits", [1, 3])
def test_the_form_does_not_change_bits(emulated, generator, splits):
    """Of those that divide K alike: so a row's bits depend on the parts of K alone."""
    inputs = draw(Problem(40, 130, 600, FP8[0]), generator)
    results = []
    for form, (*_, may_split) in enumerate(emulated.forms()):
        if splits > 1 and not may_split:
            continue
        out = torch.empty(40, 130)
        emulated.run(inputs, out, form, splits, 0, 2)
        results.append(out)
    assert all(same_bytes(results[0], other) for other in results[1:])
