"""mx_gemm's tiles for Hopper without a GPU: their launcher, the ordering of rows and every form, emulated on the host,
against float64. What an emulation cannot find says host/emulated_cuda.h; on a GPU the operators' own tests run.
"""

import ctypes
import math

import pytest
import torch

from problems.buffers import Guarded, same_bytes, same_codes
from problems.grouped_gemm import offsets_of
from problems.inputs import FP8
from problems.mx import GATES, KINDS, Inputs, draw, plain, values
from scripts.load import load_kernel
from tests.gpu.emulated_cuda import TYPES, Bias, Divider, Operand, Output, Scales, emulated_library, structure

q, p, i, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32, ctypes.c_float
Gate = structure(i, ctypes.c_bool, *[real] * 4)
# mx_gemm.h
Args = structure(
    Operand, Operand, i, i, *[q] * 5, Scales, Scales, Bias, q, Output, p, p, Divider, q, Gate, ctypes.c_bool
)
EXPECTED = {8: 2, 32: 16, 64: 48, 128: 49}  # rows of a tile: rows of a group up to which, or from which, it is taken
F32, U8, E8M0 = torch.float32, torch.uint8, torch.float8_e8m0fnu
each_kind = pytest.mark.parametrize("kinds", KINDS, ids="-".join)


@pytest.fixture(scope="module")
def emulated() -> ctypes.CDLL:
    library = emulated_library("mx_gemm", "grouped_gemm", "moe_gate", "swiglu_fp8")
    library.run.restype = ctypes.c_char_p
    return library


def scales(t: torch.Tensor | None) -> Scales:
    """As the binding reads them."""
    if t is None:
        return Scales()
    if t.dtype != E8M0:
        return Scales(0, t.data_ptr(), 0 if t.numel() == 1 else t.stride(0), 0, 1, TYPES[F32], 0)
    return Scales(t.stride(0) if t.dim() == 3 else 0, t.data_ptr(), *t.stride()[-2:], 1, TYPES[E8M0], 0)


def run(
    emulated, inputs: Inputs, out: torch.Tensor, expected: int, multiprocessors: int, gate: dict | None = None
) -> None:
    """expected: 0 without offsets, of the first matrix."""
    (a_rows, _), (groups, n, _), bias = inputs.a.shape, inputs.b.shape, inputs.bias
    k = inputs.scale_b.shape[-1] * 32
    grouped, gated, gate = expected > 0, gate is not None, dict(gate or {})
    kind = ("silu", "oai", "situ").index(gate.pop("gate", "silu"))
    by = dict(interleaved=False, limit=math.inf, alpha=1.702, beta=1.0, linear_beta=0.0) | gate
    args = Args(
        *(Operand(t.stride(0) * t.itemsize if t.dim() == 3 else 0, t.data_ptr(), t.stride(-2) * t.itemsize, 1)
          for t in (inputs.a, inputs.b)),
        *(TYPES[inputs.a.dtype], TYPES[inputs.b.dtype]),
        *(a_rows, inputs.count if grouped else a_rows, n, k, groups if grouped else 1),
        *(scales(inputs.scale_a), scales(inputs.scale_b)),
        Bias(None, 0, 0) if bias is None else Bias(bias.data_ptr(), bias.stride(1), TYPES[bias.dtype]),
        0 if bias is None else bias.stride(0),
        Output(0, out.data_ptr(), out.stride(0), TYPES[out.dtype]),
        inputs.offsets.data_ptr() if grouped else None,
        None if inputs.rows is None or not grouped else inputs.rows.data_ptr(),
        *(Divider(), expected or a_rows, Gate(kind, *by.values()), gated),
    )  # fmt: skip
    error = emulated.run(ctypes.byref(args), inputs.slots if grouped else 1, multiprocessors)
    assert error is None, error


def uneven(height: int) -> list[int]:
    """Rows of groups that a quarter, a half or all of a tile holds, and one more; one without rows."""
    quarter = max(8, height // 4)
    return [quarter, quarter + 1, 0, 2 * quarter, 2 * quarter + 1, height, height + 1, 1]


@each_kind
@pytest.mark.parametrize("height", EXPECTED)
@pytest.mark.covering(pairs=True)
@pytest.mark.parametrize("n, k, slots", [(144, 288, 2), (37, 32, 0), (130, 160, 3)])
def test_groups_of_any_rows(emulated, generator, kinds, height, n, k, slots):
    counts = uneven(height)
    rows = sum(counts) + 5
    dtype, biased = (torch.bfloat16, F32) if slots == 2 else (F32, None)
    case = plain(rows, n, k, kinds, experts=len(counts), slots=slots, biased=biased)
    inputs = draw(case, FP8[0], generator)
    inputs.offsets = offsets_of(counts)
    if slots:
        inputs.rows = torch.randperm(rows, generator=generator).int()
    results = []
    for multiprocessors in (1, 1000):
        out = Guarded((rows, n), dtype, "cpu")
        run(emulated, inputs, out.t, EXPECTED[height], multiprocessors)
        out.assert_guards_intact()
        inputs.assert_right(out.t[:-5], f"{height} rows a tile")
        assert out.t[-5:].isnan().all(), "rows beyond the last were written"
        results.append(out.t[:-5].contiguous())
    assert same_bytes(*results), "how many CTAs there are changes bits"


@pytest.mark.parametrize("kinds", [("bf16", "mxfp4"), ("f16", "mxfp8")], ids="-".join)
def test_all_forms_give_the_same_bits(emulated, generator, kinds):
    inputs = draw(plain(150, 72, 288, kinds, experts=3), FP8[0], generator)
    inputs.offsets = offsets_of([9, 0, 141])
    results = []
    for expected in EXPECTED.values():
        results.append(torch.full((150, 72), torch.nan))
        run(emulated, inputs, results[-1], expected, 3)
    assert all(same_bytes(results[0], each) for each in results[1:])


@pytest.mark.parametrize("kinds", [("bf16", "mxfp4"), ("f16", "mxfp8"), ("mxfp4", "mxfp4")], ids="-".join)
@pytest.mark.parametrize("rows", [5, 12, 31, 50, 100, 200, 300])
@pytest.mark.parametrize("multiprocessors", [1, 12])
@pytest.mark.covering(pairs=True)
def test_one_matrix(emulated, generator, kinds, rows, multiprocessors):
    """Its K whole, or shared out over the CTAs of a cluster."""
    inputs = draw(plain(rows, 130, 2080, kinds, biased=torch.float16), FP8[0], generator)
    inputs.offsets = offsets_of([rows])
    out = Guarded((rows, 130), F32, "cpu")
    run(emulated, inputs, out.t, 0, multiprocessors)
    out.assert_guards_intact()
    inputs.assert_right(out.t, f"{rows} rows")


@pytest.mark.parametrize("kinds", [("bf16", "mxfp4"), ("f16", "mxfp4"), ("row", "mxfp8")], ids="-".join)
@pytest.mark.parametrize("gate", GATES, ids=lambda gate: "-".join(map(str, gate.values())))
@pytest.mark.parametrize("height", EXPECTED)
@pytest.mark.covering(pairs=True)
def test_gated_products(emulated, generator, kinds, gate, height):
    """The bytes of moe_gate's, of the product."""
    counts = uneven(height)
    rows, hidden = sum(counts), 68
    inputs = draw(plain(rows, 2 * hidden, 160, kinds, experts=len(counts), biased=torch.bfloat16), FP8[0], generator)
    inputs.offsets = offsets_of(counts)
    product, out = torch.full((rows, 2 * hidden), torch.nan), Guarded((rows, hidden), torch.bfloat16, "cpu")
    run(emulated, inputs, product, EXPECTED[height], 3)
    run(emulated, inputs, out.t, EXPECTED[height], 3, gate)
    out.assert_guards_intact()
    assert same_codes(out.t, load_kernel("cpu").moe_gate(product, **gate, out_dtype=torch.bfloat16))


@pytest.mark.parametrize("kinds", [("bf16", "mxfp4"), ("row", "mxfp8")], ids="-".join)
@pytest.mark.parametrize("height", EXPECTED)
def test_nan_stays_in_its_row_or_column(emulated, generator, kinds, height):
    inputs = draw(plain(20, 24, 96, kinds, experts=3), FP8[0], generator)
    inputs.offsets = offsets_of([0, 20, 0])
    inputs.scale_b.view(U8)[1, 5, 1] = 255
    if kinds[1] == "mxfp8":
        inputs.b.view(U8)[1, 9, 40], inputs.a.view(U8)[3, 70] = 0x7F, 0xFF
    else:
        inputs.a[3, 70], inputs.a[4, 1] = float("nan"), float("inf")
    got = torch.zeros(20, 24)
    run(emulated, inputs, got, EXPECTED[height], 2)
    exact = values(inputs.a, inputs.scale_a) @ values(inputs.b[1], inputs.scale_b[1]).t()
    assert torch.equal(got.isnan(), exact.isnan()) and torch.equal(got.isinf(), exact.isinf())
    assert exact.isnan().any() and not exact.isnan().all()
