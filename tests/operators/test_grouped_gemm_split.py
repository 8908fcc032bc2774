"""grouped_gemm where few rows split K: sums against float64, and bits that depend on the class of rows alone."""

import itertools

import pytest
import torch

from problems import grouped_gemm as problems
from problems.buffers import Guarded, same_bytes
from problems.grouped_gemm import Case, draw, offsets_of
from problems.inputs import random_fp8

F32, BF16 = torch.float32, torch.bfloat16
CONFIG = "ROCM_FP8_KERNELS_CONFIG"
FORM, ROWS = "n16x64", 16  # of a tile
CLASSES = ((1, 2), (3, 4), (5, 8), (9, 10), (11, 20))


@pytest.fixture
def on_hopper(device, backend):
    if backend != "cuda" or (device.type == "cuda" and torch.cuda.get_device_capability() != (9, 0)):
        pytest.skip("only Hopper's form splits K")


def plain(rows: int, experts: int, n: int, k: int, which: int = 0, **kwargs) -> Case:
    given = dict(
        routing=problems.random, slots=2, scale_a="group", scale_b="block", exponents=False, biased=None, dtype=F32,
        values=random_fp8, layout="dense", expected=1,
    )  # fmt: skip
    return Case(rows, experts, n, k, which, **(given | kwargs))


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("splits", [2, 3, 5, 8])
@pytest.mark.parametrize("routing", problems.ROUTINGS)
def test_sums_of_parts(kernel, device, environment, formats, generator, on_hopper, which, splits, routing):
    """Parts of different lengths, tails of rows, columns and k, experts of more rows than a tile, gathered or not; the
    same bits each time, and nothing else is written."""
    environment(CONFIG, f"grouped_gemm:{FORM},split={splits}")
    number = (which + splits + problems.ROUTINGS.index(routing)) % 3
    scales = (("group", "block"), ("row", "channel"), ("one", "tensor"))[number]
    case = plain(
        2 * ROWS + 5, 4, 136, 1296, which, routing=routing, slots=(0, 1, 3)[number], scale_a=scales[0],
        scale_b=scales[1], exponents=splits == 3, biased=(BF16, None, F32)[number], dtype=(F32, F32, BF16)[number],
        layout="near" if splits == 5 else "dense",
    )  # fmt: skip
    inputs, held = draw(case, formats, generator).placed(device, case.layout)
    out = Guarded((inputs.count, case.n), case.dtype, device)
    inputs.call(kernel, out=out.t)
    out.assert_guards_intact()
    for each in held:
        each.assert_unchanged()
    live = inputs.live()
    inputs.assert_right(out.t[:live], case.id)
    untouched = Guarded((inputs.count, case.n), case.dtype, device).t[live:]
    assert same_bytes(out.t[live:].contiguous(), untouched.contiguous()), "rows beyond the last were written"
    for _ in range(3):
        assert same_bytes(inputs.call(kernel, out_dtype=case.dtype)[:live], out.t[:live].contiguous())


@pytest.mark.parametrize("splits", [2, 4])
def test_bad_offsets_end_and_reach_nothing_outside(kernel, device, environment, formats, generator, on_hopper, splits):
    """Offsets that fall name more tiles than there are workgroups of a launch that splits K."""
    environment(CONFIG, f"grouped_gemm:{FORM},split={splits}")
    inputs, held = draw(plain(50, 5, 72, 640), formats, generator).placed(device, "dense")
    for offsets in ([-5, 100, 3, 2**31 - 1, -(2**31), 60], [0, 50, 0, 50, 0, 50], [50, 40, 30, 20, 10, 0]):
        spoiled = problems.replace(inputs, offsets=torch.tensor(offsets).int().to(device))
        out = Guarded((50, 72), BF16, device)
        spoiled.call(kernel, out=out.t)
        out.assert_guards_intact()
    for each in held:
        each.assert_unchanged()


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("experts, n, k", [(30, 128, 2048), (2, 200, 2096)])
def test_a_class_of_rows_gives_a_row_the_same_bits(kernel, device, formats, generator, which, experts, n, k):
    """At sizes that split: all rows of a class, some of them in an order of their own, and alone in a wider result."""
    for first, last in CLASSES:
        inputs = draw(plain(last, experts, n, k, which), formats, generator)
        inputs.offsets = offsets_of(problems.random(last, experts, generator))
        bounds = inputs.offsets.tolist()
        inputs = inputs.to(device)
        out = inputs.call(kernel, out_dtype=F32, expected_rows=1)
        inputs.assert_right(out, f"{last} rows")
        for count, expected in ((first, 1), (last, 2), ((first + last) // 2, 4)):
            chosen = torch.randperm(last, generator=generator)[:count].tolist()
            kept = [[i for i in chosen if b <= i < e] for b, e in itertools.pairwise(bounds)]
            order = torch.tensor([*itertools.chain(*kept)], dtype=torch.long, device=device)
            some = problems.Inputs(
                *inputs.operands()[:4], offsets_of([len(own) for own in kept]).to(device), inputs.rows[order],
                inputs.slots, None,
            )  # fmt: skip
            assert same_bytes(some.call(kernel, out_dtype=F32, expected_rows=expected), out[order])


@pytest.mark.parametrize("scaling", ["row", "group"])
def test_swiglu_of_a_product_of_parts(kernel, device, formats, generator, scaling):
    inputs = draw(plain(9, 30, 2 * 256, 2048, slots=9), formats, generator)
    inputs.scale_b *= 0.01
    inputs, live = inputs.to(device), inputs.live()
    q, scales = kernel.grouped_gemm_swiglu_fp8(*inputs.operands(), **inputs.gather(), scaling=scaling)
    wanted, of_wanted = kernel.swiglu_dynamic_fp8(inputs.call(kernel, out_dtype=BF16)[:live], scaling=scaling)
    assert same_bytes(q[:live].contiguous(), wanted) and same_bytes(scales[:live].contiguous(), of_wanted)


@pytest.mark.parametrize("inputs", ["group", "none"])
def test_a_token_of_fused_moe_does_not_depend_on_its_batch(kernel, device, formats, generator, inputs):
    """Two slots a token: three tokens and four are in one class of rows, six and eight in another."""
    problem = problems.Moe(8, 24, 2, 1024, 256, inputs, BF16)
    arguments, keywords = problems.draw_moe(problem, formats[0], generator)
    x, w13, w2, weights, experts = (t.to(device) for t in arguments)
    keywords = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in keywords.items()}
    for batch, fewer in ((4, 3), (8, 6)):
        all_of, some = (
            kernel.fused_moe(x[:count], w13, w2, weights[:count], experts[:count], **keywords)
            for count in (batch, fewer)
        )
        assert same_bytes(all_of[:fewer].contiguous(), some)
