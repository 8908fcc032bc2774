"""grouped_gemm's CUDA kernels without a GPU: every form for FP8, and the plain kernel for 16 bits, too, emulated on the
host, against float64. What an emulation cannot find says host/emulated_cuda.h; on a GPU the operator's own tests run.
"""

import ctypes

import pytest
import torch

from problems import grouped_gemm as problems
from problems.buffers import Guarded, same_bytes
from problems.gemm import BLOCK
from problems.inputs import FP8, random_fp8
from tests.gpu.emulated_cuda import TYPES, Bias, Divider, Operand, Output, Scales, emulated_library, structure

PLAIN, FORMS, FROM_COLUMNS = -1, 4, 2  # forms from there on have 128 rows a tile or more
CASES = problems.cases(
    rows=(1, 9, 17, 65, 200),
    experts=(1, 2, 7, 40),
    n=(1, 16, 130, 200),
    k=(1, 100, 272),
    expected=(None,),
    layouts=("dense", "padded"),
)
q, p, i = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
Args = structure(Operand, Operand, *[q] * 5, Scales, Scales, Bias, q, Output, i, p, p, Divider, q)  # grouped_gemm.h


def scales(t: torch.Tensor, rows: int, of_b: bool) -> Scales:
    """As the binding reads them."""
    group = row = block = 0
    height, width = (1, 1) if t.numel() == 1 else (len(t), 1) if t.dim() == 1 else t.shape[-2:]
    if height == rows and t.numel() > 1:
        row, block = t.stride(-1 if t.dim() == 1 else -2), 0 if of_b or width == 1 else t.stride(-1)
    elif t.numel() > 1 and (height, width) != (1, 1):
        row, block = t.stride(-2), t.stride(-1)
    if of_b and t.dim() == 3 and t.numel() > 1:
        group = t.stride(0)
    squares = height != rows
    return Scales(group, t.data_ptr(), row, block, BLOCK if squares else 1, TYPES[t.dtype], 0)


@pytest.fixture(scope="module")
def emulated() -> ctypes.CDLL:
    return emulated_library("grouped_gemm", "block_scaled_gemm", "swiglu_fp8")


def run(emulated, inputs: problems.Inputs, out: torch.Tensor, form: int, splits: int, ctas: int, columns: bool) -> None:
    (a_rows, k), (groups, n, _), bias, size = inputs.a.shape, inputs.b.shape, inputs.bias, inputs.a.itemsize
    scaled = inputs.scale_a is not None
    args = Args(
        Operand(0, inputs.a.data_ptr(), inputs.a.stride(0) * size, size),
        Operand(inputs.b.stride(0) * size, inputs.b.data_ptr(), inputs.b.stride(1) * size, size),
        *(a_rows, inputs.count, n, k, groups),
        scales(inputs.scale_a, a_rows, False) if scaled else Scales(),
        scales(inputs.scale_b, n, True) if scaled else Scales(),
        Bias(None, 0, 0) if bias is None else Bias(bias.data_ptr(), bias.stride(1), TYPES[bias.dtype]),
        0 if bias is None else bias.stride(0),
        Output(0, out.data_ptr(), out.stride(0), TYPES[out.dtype]),
        *(TYPES[inputs.a.dtype], inputs.offsets.data_ptr(), None if inputs.rows is None else inputs.rows.data_ptr()),
        *(Divider(), 1),
    )
    emulated.run(ctypes.byref(args), inputs.slots, form, splits, ctypes.c_int64(ctas), columns)


def test_all_forms_are_here(emulated):
    assert emulated.form_count() == FORMS


GATHERED = problems.Case(
    rows=200, experts=3, n=130, k=272, which=0, routing=problems.random, slots=3, scale_a="group", scale_b="block",
    exponents=False, biased=torch.bfloat16, dtype=torch.bfloat16, values=random_fp8, layout="dense", expected=None,
)  # fmt: skip


@pytest.mark.parametrize("form", range(PLAIN, FORMS))
def test_gathered_rows_with_scales_of_blocks(emulated, generator, form):
    check(emulated, generator, form, GATHERED)


@pytest.mark.covering
@pytest.mark.parametrize("case", [case for case in CASES if case.which == 0], ids=lambda case: case.id)
@pytest.mark.parametrize("form", range(PLAIN, FORMS))
def test_against_float64(emulated, generator, form, case):
    check(emulated, generator, form, case)


@pytest.mark.covering
@pytest.mark.parametrize("case", [case for case in CASES if case.which in (1, 2)], ids=lambda case: case.id)
def test_16_bits(emulated, generator, case):
    check(emulated, generator, PLAIN, case)


def check(emulated, generator, form: int, case: problems.Case) -> None:
    inputs, _ = problems.draw(case, FP8[:1], generator).placed("cpu", case.layout)
    results = []
    by_blocks = inputs.scale_a is not None and inputs.scale_a.dim() == 2 and inputs.scale_a.shape[1] > 1
    for splits, ctas, columns in ((1, 3, False), (1, 1000, by_blocks and form >= FROM_COLUMNS), (2, 3, False)):
        if splits > 1 and (form == PLAIN or not emulated.form_splits(form) or case.k <= BLOCK):
            continue
        out = Guarded((inputs.count, case.n), case.dtype, "cpu")
        run(emulated, inputs, out.t, form, splits, ctas, columns)
        what = f"{case.id} form {form} splits {splits} columns {columns}"
        inputs.assert_right(out.t[: inputs.live()], what)
        out.assert_guards_intact(what)
        if splits == 1:
            results.append(out.t[: inputs.live()].contiguous())
    assert same_bytes(results[0], results[1]), "how many CTAs there are, or where scales lie, changes bits"
