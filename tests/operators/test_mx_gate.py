"""grouped_gemm_gate: the bytes of grouped_gemm in float32 and moe_gate, whichever kernels a backend has for it."""

import pytest
import torch

from problems import grouped_gemm
from problems.grouped_gemm import offsets_of
from problems.inputs import FLOATS, HALF, short
from problems.mx import GATES, KINDS, Case, assert_gates_the_product, draw, plain
from problems.pairwise import SAMPLE, pairwise

BF16, F32, U8 = torch.bfloat16, torch.float32, torch.uint8
AXES = (
    (1, 5, 33, 150),  # rows
    (1, 3, 40),  # experts
    (1, 13, 32, 97, 200),  # I
    (32, 128, 160, 416),  # K
    KINDS,
    grouped_gemm.ROUTINGS,
    (0, 1, 3),  # slots
    (None, *FLOATS),
    ("dense", "odd", "near"),
    (1, 8, 20, 40, 200),  # expected rows: each form
    GATES,
    HALF,
)


def name_of(case: tuple) -> str:
    return "-".join(getattr(v, "__name__", str(v.get("gate")) if isinstance(v, dict) else str(v)) for v in case)


@pytest.mark.parametrize("case", pairwise(*AXES, seed=SAMPLE), ids=name_of)
def test_the_bytes_of_two_calls(kernel, device, formats, generator, case):
    rows, experts, hidden, k, kinds, routing, slots, biased, layout, expected, gate, dtype = case
    if k == 32 and kinds[1] == "mxfp8" and not kinds[0].endswith("16"):
        k = 64  # FP8 by FP8 of one block is no MX
    case = Case(rows, experts, 2 * hidden, k, kinds, False, routing, slots, biased, dtype, layout, expected)
    inputs, held = draw(case, formats[0], generator).placed(device, layout)
    assert_gates_the_product(kernel, inputs, gate, dtype, device, expected)
    for each in held:
        each.assert_unchanged()


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: "-".join(map(str, gate.values())))
@pytest.mark.parametrize("expected", (1, 10, 30, 100))
def test_special_values_stay_in_their_place(kernel, device, formats, generator, gate, expected):
    """NaN of a row, of a gate's column and of an up's; infinities; both zeros, from a bias."""
    inputs = draw(plain(20, 80, 96, ("bf16", "mxfp4"), experts=2, biased=F32), formats[0], generator)
    inputs.offsets = offsets_of([13, 7])
    inputs.a[3], inputs.a[4, 1], inputs.a[5] = torch.nan, torch.inf, 0
    inputs.bias[:, ::3], inputs.bias[:, 1::3] = -0.0, 0
    inputs.scale_b.view(U8)[0, 9, 1], inputs.scale_b.view(U8)[0, 62, 0] = 255, 255
    inputs = inputs.to(device)
    assert_gates_the_product(kernel, inputs, gate, BF16, device, expected)
    got = kernel.grouped_gemm_gate(*inputs.operands(), bias=inputs.bias, **gate, expected_rows=expected).cpu()
    assert bool(got[3].isnan().all()) and not bool(got[6].isnan().all())
    ours = {9 // 2, 62 // 2} if gate.get("interleaved") else {9, 62 - 40}
    assert set(got[6].isnan().nonzero().flatten().tolist()) == ours


@pytest.mark.parametrize("dtype", (*HALF, "fp8"), ids=lambda v: v if isinstance(v, str) else short(v))
def test_weights_that_are_no_mx(kernel, device, formats, generator, dtype):
    experts, hidden, k = 3, 24, 128
    a, b = torch.randn(9, k, generator=generator), torch.randn(experts, 2 * hidden, k, generator=generator)
    a, b = (t.to(formats[0] if dtype == "fp8" else dtype).to(device) for t in (a, b))
    scales = (torch.ones(1, device=device), torch.ones(1, device=device)) if dtype == "fp8" else (None, None)
    operands = a, b, *scales, offsets_of([4, 0, 5]).to(device)
    for gate in GATES:
        product = kernel.grouped_gemm(*operands, out_dtype=F32)
        wanted = kernel.moe_gate(product, operands[-1], **gate, out_dtype=BF16)
        got = kernel.grouped_gemm_gate(*operands, **gate)
        assert got.dtype == BF16 and torch.equal(got.view(torch.int16), wanted.view(torch.int16))
