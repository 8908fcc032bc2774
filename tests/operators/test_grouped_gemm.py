"""grouped_gemm and grouped_gemm_swiglu_fp8: sums against float64, routings of every kind, bits that do not depend on
them, special values, SwiGLU byte for byte."""

import itertools

import pytest
import torch

from problems import grouped_gemm as problems
from problems.buffers import Guarded, same_bytes, same_codes
from problems.grouped_gemm import Case, cases, draw, offsets_of
from problems.inputs import positive, random_fp8

F32, BF16 = torch.float32, torch.bfloat16

# Nothing; one row; the ends of classes and what surrounds them; several tiles.
CASES = cases(
    rows=(0, 1, 5, 16, 17, 33, 64, 65, 130),
    experts=(1, 2, 7, 65),
    n=(1, 4, 16, 33, 64, 128, 130, 256),
    k=(1, 16, 100, 128, 129, 256, 384),
    expected=(None, 1, 20, 64, 200),
)
FULL = cases(
    rows=(300, 513),
    experts=(1, 3, 130, 1024),
    n=(48, 200, 513),
    k=(64, 144, 512, 650),
    expected=(None, 16, 32, 100, 1000),
    layouts=("dense", "shifted", "padded"),
)
each_case = pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(c, marks=pytest.mark.full) for c in FULL)], ids=lambda c: c.id
)


@each_case
def test_sums_are_right_and_nothing_else_is_written(kernel, device, formats, generator, case):
    inputs, held = draw(case, formats, generator).placed(device, case.layout)
    out = Guarded((inputs.count, case.n), case.dtype, device, pad=3 if case.layout == "odd" else 0)
    result = inputs.call(kernel, out=out.t, expected_rows=case.expected)
    assert result is out.t
    out.assert_guards_intact()
    for each in held:
        each.assert_unchanged()
    live = inputs.live()
    inputs.assert_right(out.t[:live], case.id)
    untouched = Guarded((inputs.count, case.n), case.dtype, device).t[live:]
    assert same_bytes(out.t[live:].contiguous(), untouched.contiguous()), "rows beyond the last were written"


def plain(rows: int, experts: int, n: int, k: int, which: int = 0, **kwargs) -> Case:
    given = dict(
        routing=problems.random, slots=3, scale_a="group", scale_b="block", exponents=False, biased=None, dtype=F32,
        values=random_fp8, layout="dense", expected=None,
    )  # fmt: skip
    return Case(rows, experts, n, k, which, **(given | kwargs))


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("expected", [3, 30, 60, 300])
@pytest.mark.parametrize("scale_b", ["block", "channel"])
def test_a_row_does_not_depend_on_the_routing(kernel, device, formats, generator, which, expected, scale_b):
    """The same rows with their experts, in another order and in experts that have more rows or fewer."""
    case = plain(150, 4, 72, 272, which, scale_b=scale_b)
    inputs = draw(case, formats, generator).to(device)
    out = inputs.call(kernel, out_dtype=F32, expected_rows=expected)
    bounds = inputs.offsets.tolist()
    for _ in range(3):
        # Some rows of each expert, in an order of their own.
        kept = [
            b + torch.randperm(e - b, generator=generator)[: max(1, (e - b) // 3)]
            for b, e in itertools.pairwise(bounds)
        ]
        kept = [k if e > b else k[:0] for k, (b, e) in zip(kept, itertools.pairwise(bounds))]
        some = problems.Inputs(
            *inputs.operands()[:4], offsets_of([len(k) for k in kept]).to(device),
            inputs.rows[torch.cat(kept).to(device)], inputs.slots, None,
        )  # fmt: skip
        got = some.call(kernel, out_dtype=F32, expected_rows=expected)
        assert same_bytes(got, out[torch.cat(kept).to(device)])


@pytest.mark.parametrize("which", range(4))
def test_a_class_of_expected_rows_gives_the_same_bits(kernel, device, formats, generator, which):
    inputs = draw(plain(90, 3, 136, 272, which), formats, generator).to(device)
    for numbers in ((1, 2, 4), (5, 8, 9, 16, 21, 48, 49, 96, 600)):
        first, *others = (inputs.call(kernel, out_dtype=F32, expected_rows=n)[: inputs.live()] for n in numbers)
        assert all(same_bytes(first, other) for other in others)


@pytest.mark.parametrize("tile", [16, 32, 64, 128, 256])
def test_one_row_more_than_a_tile(kernel, device, formats, generator, tile):
    counts = [tile + 1, 1, tile, tile - 1, 0, 2 * tile + 1]
    case = plain(sum(counts), len(counts), 136, 144, slots=1, routing=lambda rows, experts, g: counts)
    for expected in (1, 20, tile):
        inputs = draw(case, formats, generator).to(device)
        inputs.assert_right(inputs.call(kernel, out_dtype=F32, expected_rows=expected), f"expected {expected}")


@pytest.mark.parametrize("which", range(4))
def test_nan_stays_in_its_token(kernel, device, formats, generator, which):
    case = plain(60, 3, 40, 300, which, slots=2)
    inputs = draw(case, formats, generator).to(device)
    for expected in (1, 64):
        clean = inputs.call(kernel, out_dtype=F32, expected_rows=expected)
        token = int(torch.randint(len(inputs.a), (), generator=generator))
        spoiled = problems.replace(inputs, a=inputs.a.clone())
        place = int(torch.randint(300, (), generator=generator))
        if inputs.a.itemsize == 1:
            code = 0x80 if inputs.a.dtype == torch.float8_e4m3fnuz else 0xFF
            spoiled.a.view(torch.uint8)[token, place] = code
        else:
            spoiled.a[token, place] = float("nan")
        got = spoiled.call(kernel, out_dtype=F32, expected_rows=expected)[: inputs.live()]
        hit = inputs.rows[: inputs.live()] // inputs.slots == token
        assert got[hit].isnan().all()
        assert same_bytes(got[~hit], clean[: inputs.live()][~hit])


def test_infinities_and_subnormals_of_sixteen_bits(kernel, device, formats, generator):
    for which, dtype in ((len(formats), BF16), (len(formats) + 1, torch.float16)):
        inputs = draw(plain(40, 2, 24, 80, which), formats, generator)
        tiny = torch.finfo(dtype).smallest_normal / 4
        inputs.a[::3] = (inputs.a[::3].float() * tiny).to(dtype)
        inputs.a[1, 5] = float("inf")
        inputs = inputs.to(device)
        got = inputs.call(kernel, out_dtype=F32)
        wanted = inputs.call(kernel.reference, out_dtype=F32)
        finite = wanted.isfinite()
        # One infinity a row: with finite numbers it gives an infinity, never NaN.
        assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got[~finite], wanted[~finite])
        size = wanted[finite].abs().max()
        assert (got[finite] - wanted[finite]).abs().max() <= 1e-4 * size


@pytest.mark.parametrize("expected", [1, 100])
def test_bad_offsets_and_rows_reach_nothing_outside(kernel, device, formats, generator, expected):
    """What they give is undefined; what lies beside the operands and the result is not touched."""
    inputs, held = draw(plain(50, 5, 40, 64), formats, generator).placed(device, "dense")
    for bad in (
        dict(offsets=torch.tensor([-5, 100, 3, 2**31 - 1, -(2**31), 60])),
        dict(offsets=torch.tensor([50, 40, 30, 20, 10, 0])),
        dict(rows=torch.randint(-(2**31), 2**31 - 1, (50,), generator=generator)),
    ):
        spoiled = problems.replace(inputs, **{name: t.int().to(device) for name, t in bad.items()})
        out = Guarded((50, 40), BF16, device)
        spoiled.call(kernel, out=out.t, expected_rows=expected)
        out.assert_guards_intact()
    for each in held:
        each.assert_unchanged()


SCALINGS = [
    dict(scaling="row"),
    dict(scaling="row", limit=0.5, fp8_max=200.0),
    dict(scaling="group"),
    dict(scaling="group", group_size=32, power_of_two=True),
    dict(scaling="group", group_size=64, scale_dtype=torch.float8_e8m0fnu),
    dict(scaling="group", column_major_scales=True, limit=2.0),
    dict(scale=True),
    dict(scale=True, limit=0.75),
]


@pytest.mark.parametrize("keywords", SCALINGS, ids=str)
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("d", [48, 130, 256])
@pytest.mark.parametrize("expected", [1, 50])
def test_swiglu_byte_for_byte(kernel, device, formats, generator, keywords, dtype, d, expected):
    case = plain(70, 4, 2 * d, 160, int(torch.randint(4, (), generator=generator)), routing=problems.some_dropped)
    inputs = draw(case, formats, generator)
    if inputs.scale_b is not None:
        inputs.scale_b *= 0.01
    inputs, live = inputs.to(device), inputs.live()
    keywords = dict(keywords)
    if "scale" in keywords:
        keywords["scale"] = positive((1,), generator).to(device)
    kind = kernel.fp8_dtype(device)
    out = Guarded((inputs.count, d), kind, device)
    q, scales = kernel.grouped_gemm_swiglu_fp8(
        *inputs.operands(), **inputs.gather(), dtype=dtype, out=out.t, expected_rows=expected, **keywords
    )
    out.assert_guards_intact()
    c = inputs.call(kernel, out_dtype=dtype, expected_rows=expected)[:live]
    if "scale" in keywords:
        if "limit" in keywords:  # swiglu_fp8 has none
            gate, up = c.chunk(2, -1)
            c = torch.cat([gate.clamp(max=keywords["limit"]), up.clamp(-keywords["limit"], keywords["limit"])], -1)
        wanted, wanted_scales = kernel.swiglu_fp8(c, keywords["scale"]), scales
    else:
        wanted, wanted_scales = kernel.swiglu_dynamic_fp8(c, **keywords)
        scales = scales[:live]
    assert same_bytes(q[:live].contiguous(), wanted)
    assert same_bytes(scales.contiguous(), wanted_scales.contiguous())
    untouched = Guarded((inputs.count, d), kind, device).t[live:]
    assert same_bytes(q[live:].contiguous(), untouched.contiguous()), "rows beyond the last were written"


# Forms whose epilogue gates, and rows of their tiles.
GATED = {"t64x256": 64, "t128x256": 128}
GROUPS = [k for k in SCALINGS if k.get("scaling") != "row"]


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("slots", [0, 2])
@pytest.mark.parametrize("form", [None, *GATED])  # None: what the backend picks
def test_swiglu_in_the_epilogue(kernel, device, backend, environment, formats, generator, form, slots, dtype):
    """Byte for byte the product and its SwiGLU: tails of rows and of k, several groups, numbers that are not finite
    in single rows and single hidden values, channels' scales too; rows beyond the last are not written."""
    if form and backend != "rocm":
        pytest.skip("a form of ROCm's")
    rows, d, k = GATED.get(form, 64), 384, 400
    counts = [rows + 3, 0, 10, 1]
    for number, keywords in enumerate(GROUPS):
        environment("ROCM_FP8_KERNELS_CONFIG", form and f"grouped_gemm:{form}")
        scale_b = ("block", "channel", "tensor")[number % 3]
        case = plain(sum(counts) + 20, len(counts), 2 * d, k, slots=slots, scale_b=scale_b)
        case = problems.replace(case, routing=lambda rows, experts, g: counts)
        inputs = draw(case, formats, generator)
        inputs.scale_b *= 0.01
        for token, factor in enumerate((float("nan"), float("inf"), 1e-30, 1e6)):
            inputs.scale_a[token] *= factor
        nan = 0x80 if formats[0] == torch.float8_e4m3fnuz else 0x7F
        for expert, column in ((0, 5), (0, d + 77), (2, d - 1), (2, 2 * d - 128), (3, 130)):
            inputs.b.view(torch.uint8)[expert, column, (7 * column) % k] = nan
        inputs, held = inputs.placed(device, "dense")
        keywords, live = dict(keywords), inputs.live()
        if "scale" in keywords:
            keywords["scale"] = positive((1,), generator).to(device)
        out = Guarded((inputs.count, d), formats[0], device)
        q, scales = kernel.grouped_gemm_swiglu_fp8(
            *inputs.operands(), **inputs.gather(), dtype=dtype, out=out.t, expected_rows=60, **keywords
        )
        out.assert_guards_intact()
        for each in held:
            each.assert_unchanged()
        untouched = Guarded((inputs.count, d), formats[0], device).t[live:]
        assert same_bytes(q[live:].contiguous(), untouched.contiguous()), "rows beyond the last were written"
        environment("ROCM_FP8_KERNELS_CONFIG", None)
        c = inputs.call(kernel, out_dtype=dtype, expected_rows=60)[:live]
        if "scale" in keywords:
            if "limit" in keywords:
                gate, up = c.chunk(2, -1)
                c = torch.cat([gate.clamp(max=keywords["limit"]), up.clamp(-keywords["limit"], keywords["limit"])], -1)
            wanted = kernel.swiglu_fp8(c, keywords["scale"])
        else:
            wanted, wanted_scales = kernel.swiglu_dynamic_fp8(c, **keywords)
            assert same_bytes(scales[:live].contiguous(), wanted_scales.contiguous()), keywords
        assert same_codes(q[:live].contiguous(), wanted), keywords
        assert wanted.float().isnan().any() and not wanted.float().isnan().all()


@pytest.mark.full
@pytest.mark.parametrize("expected", [1, 100])
def test_weights_beyond_four_gib(kernel, device, backend, formats, generator, expected):
    experts, n, k = 68, 8192, 8192
    b = torch.zeros((experts, n, k), dtype=torch.uint8, device=device)
    small = random_fp8((3, n, k), formats[0], generator)
    for e, w in zip((0, 33, 67), small):
        b[e] = w.view(torch.uint8).to(device)
    b = b.view(formats[0])
    counts = [0] * experts
    for e in (0, 33, 67):
        counts[e] = 2
    a = random_fp8((6, k), formats[0], generator).to(device)
    one = torch.tensor(0.01, device=device)
    got = kernel.grouped_gemm(a, b, one, one, offsets_of(counts).to(device), out_dtype=F32, expected_rows=expected)
    for i, w in enumerate(small):
        of_expert = kernel.block_scaled_gemm(a[2 * i : 2 * i + 2], w.to(device), one, one, out_dtype=F32)
        size = of_expert.abs().max()
        assert (got[2 * i : 2 * i + 2] - of_expert).abs().max() <= 1e-4 * size


def test_on_a_graph_that_is_replayed_with_other_routings(kernel, device, backend, formats, generator):
    if backend == "cpu":
        pytest.skip("a CPU has no graphs")
    if device.type != "cuda":
        pytest.skip("the simulator captures nothing")
    for expected in (1, 60):
        inputs = draw(plain(60, 6, 72, 256), formats, generator).to(device)
        out = torch.empty(inputs.count, 72, dtype=F32, device=device)
        inputs.call(kernel, out=out, expected_rows=expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            inputs.call(kernel, out=out, expected_rows=expected)
        for routing in problems.ROUTINGS:
            counts = routing(60, 6, generator)
            inputs.offsets.copy_(offsets_of(counts))
            inputs.rows.copy_(torch.randint(60, (60,), generator=generator))
            out.fill_(0)
            graph.replay()
            assert same_bytes(
                out[: sum(counts)], inputs.call(kernel, out_dtype=F32, expected_rows=expected)[: sum(counts)]
            )
            assert (out[sum(counts) :] == 0).all()
