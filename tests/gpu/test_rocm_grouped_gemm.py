"""The ROCm variant's grouped_gemm, simulated: every compiled kernel on both chips, with the checks of waits, hazards,
races and coherence; and SwiGLU's pass."""

import itertools

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS, UNITS
from problems import grouped_gemm as problems
from problems.buffers import Guarded, same_bytes, same_codes
from problems.grouped_gemm import Case, draw
from problems.inputs import normal, positive, random_fp8
from scripts.host_configs import configs
from tests.gpu.simulated_kernels import readable, simulated
from tests.settings import SEED

kernel = simulated  # the package on each chip
CPU = torch.device("cpu")
ARCHS = tuple(FORMATS)
CONFIG = "ROCM_FP8_KERNELS_CONFIG"
TABLES = configs().tables
TILES, STREAMS, GATED = TABLES["grouped_tiles"], TABLES["grouped_streams"], TABLES["grouped_gated"]
SHORT = [form["name"] for form in TABLES["grouped_short"]]
FORMS = {form["name"]: form for form in TILES + STREAMS}
# Unaligned tiles are the fallback's, which is the last one.
LAID_OUT = [(form, "dense") for form in FORMS] + [(each["name"], "odd") for each in TILES[-1:] + STREAMS]
SCALES = (("group", "block"), ("row", "channel"), ("one", "tensor"))


def case(rows: int, n: int, k: int, which: int, scales=SCALES[0], **kwargs) -> Case:
    given = dict(
        routing=problems.random,
        slots=2,
        exponents=False,
        biased=torch.bfloat16,
        dtype=torch.float32,
        values=random_fp8,
        layout="dense",
        expected=None,
    )
    return Case(rows, 3, n, k, which, scale_a=scales[0], scale_b=scales[1], **(given | kwargs))


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
@pytest.mark.parametrize("which", range(3), ids=("fp8", "bf16", "f16"))
@pytest.mark.parametrize("form, layout", LAID_OUT)
def test_every_kernel(kernel, arch, environment, generator, which, form, layout):
    """Tails of rows, columns and k; a group with more than a tile; gathers. "odd": the careful loads."""
    environment(CONFIG, f"grouped_gemm:{form}")
    rows, columns = FORMS[form]["rows"], FORMS[form]["columns"]
    k = 9 * 128 + 16 if form.startswith("s") else 3 * 128 + 16
    scales = SCALES[(list(FORMS).index(form) + which) % len(SCALES)]
    problem = case(rows + 20, columns + 8, k // (1 if which == 0 else 2), which, scales, layout=layout)
    inputs, held = draw(problem, (FORMATS[arch],), generator).placed(CPU, layout)
    inputs.offsets = problems.offsets_of([rows + 3, 0, 10])
    out = Guarded((rows + 20, columns + 8), torch.float32, CPU)
    inputs.call(kernel, out=out.t)
    out.assert_guards_intact()
    for each in held:
        each.assert_unchanged()
    inputs.assert_right(out.t[: rows + 13], form)
    assert out.t[rows + 13 :].isnan().all()


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
def test_all_tiles_give_the_same_bits(kernel, arch, environment, generator):
    for which in range(3):
        inputs = draw(case(70, 72, 272, which), (FORMATS[arch],), generator)
        results = []
        for tile in TILES:
            environment(CONFIG, f"grouped_gemm:{tile['name']}")
            results.append(inputs.call(kernel, out_dtype=torch.float32)[: inputs.live()])
        assert all(same_bytes(results[0], other) for other in results[1:])


def of_columns(inputs: problems.Inputs, columns: torch.Tensor) -> problems.Inputs:
    """With scales of channels."""
    kept = {name: getattr(inputs, name) for name in ("scale_b", "bias")}
    kept = {name: None if t is None else t[:, columns] for name, t in kept.items()}
    return problems.replace(inputs, b=inputs.b.view(torch.uint8)[:, columns].view(inputs.b.dtype), **kept)


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
@pytest.mark.parametrize("form, which", [*((tile["name"], 0) for tile in TILES), ("t128x128", 1), ("t64x128", 2)])
def test_a_workgroup_makes_tiles_of_several_experts(simulated_rocm, arch, environment, generator, form, which):
    """More tiles than workgroups. What two of these write has the bytes of a launch with these columns alone."""
    tile = FORMS[form]
    workgroups = UNITS[arch] * tile["per_unit"]
    n = tile["columns"] * (workgroups * 3 // 4)  # of three tiles of rows: two turns and a quarter
    inputs = draw(case(tile["rows"] + 8, n, 272 if which == 0 else 136, which, SCALES[1]), (FORMATS[arch],), generator)
    inputs.offsets = problems.offsets_of([tile["rows"] + 3, 0, 5])
    environment(CONFIG, f"grouped_gemm:{form}")
    poison = 12345.678
    out = torch.full((inputs.count, n), poison)
    with simulated_rocm.on(arch, seed=SEED, sample=lambda grid: [0, 9]) as kernel:
        inputs.call(kernel, out=out)
        assert simulated_rocm.runtime.launches[-1][1] == (workgroups, 1, 1)
    written = out != poison
    columns = written.any(0)
    part = of_columns(inputs, columns)
    with simulated_rocm.on(arch, seed=SEED) as kernel:
        wanted = part.call(kernel, out_dtype=torch.float32)
    part.assert_right(wanted[: inputs.live()], form)
    assert same_bytes(out[written], wanted[written[:, columns]])
    firsts = [0, tile["rows"], tile["rows"] + 3]  # of tiles of rows
    assert int(written[firsts].sum()) >= 4 * tile["columns"], "the workgroups had two tiles each"
    assert not written[inputs.live() :].any()


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
@pytest.mark.parametrize("k", [256, 144, 128, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "biased, scales", [(None, SCALES[0]), (torch.float16, SCALES[0]), (None, SCALES[1]), (torch.float16, SCALES[2])]
)
@pytest.mark.parametrize("exponents", [False, True], ids=["f32", "e8m0"])
@pytest.mark.parametrize("slots", [0, 2])
def test_short_k(kernel, arch, environment, generator, k, dtype, biased, scales, exponents, slots):
    """All forms, and the careful loads, give the same bits: one block and two, tails of rows, columns and k, last turns
    beyond the columns."""
    n = 512 + 72
    kwargs = dict(biased=biased, dtype=dtype, exponents=exponents, slots=slots)
    inputs = draw(case(80, n, k, 0, scales, **kwargs), (FORMATS[arch],), generator)
    inputs.offsets = problems.offsets_of([67, 0, 10])
    results = {}
    for form, layout in [*((form, "dense") for form in SHORT), (SHORT[-1], "odd")]:
        placed, held = inputs.placed(CPU, layout)
        environment(CONFIG, f"grouped_gemm:{form}")
        out = Guarded((80, n), dtype, CPU)
        placed.call(kernel, out=out.t)
        out.assert_guards_intact()
        for each in held:
            each.assert_unchanged()
        results[form, layout] = out.t[: inputs.live()].contiguous()
        assert out.t[inputs.live() :].isnan().all()
    first, *others = results.values()
    inputs.assert_right(first, "short")
    assert all(same_bytes(first, other) for other in others)


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
def test_a_block_that_is_missing_makes_no_nan(kernel, arch, generator):
    """Products by an infinite scale are infinities; zeros of a second block would make NaN of them."""
    inputs = draw(case(20, 64, 128, 0, slots=0, biased=None), (FORMATS[arch],), generator)
    inputs.scale_a.fill_(float("inf"))
    got, wanted = (
        inputs.call(module, out_dtype=torch.float32)[: inputs.live()] for module in (kernel, kernel.reference)
    )
    assert wanted.isinf().any() and same_bytes(got, wanted)


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
def test_short_k_is_chosen(kernel, arch, launched, generator):
    """Of FP8 alone, whatever the rows; results whose rows do not begin at 16 bytes take the careful stores."""
    for which, k, n, expected, wanted in (
        *((0, 256, 64, rows, f"grouped_gemm_short<{i}, plain>") for i, rows in enumerate((1, 16, 60))),
        (0, 256, 60, 60, "grouped_gemm_short<0, any>"),
        (0, 272, 64, 1, None),
        (1, 128, 64, 1, None),
    ):
        inputs = draw(case(20, n, k, which, biased=None), (FORMATS[arch],), generator)
        inputs.call(kernel, out_dtype=torch.bfloat16, expected_rows=expected)
        (name,) = launched.names()
        assert name == wanted or (wanted is None and "short" not in name)


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
@pytest.mark.parametrize("experts", [1, 64, 65, 130, 1024])
def test_any_number_of_experts(kernel, arch, generator, experts):
    """A lane looks at one, two, three or sixteen of them."""
    for expected in (1, 100):
        problem = case(40, 24, 144, 0, routing=problems.some_dropped)
        inputs = draw(problems.replace(problem, experts=experts), (FORMATS[arch],), generator)
        got = inputs.call(kernel, out_dtype=torch.float32, expected_rows=expected)
        inputs.assert_right(got[: inputs.live()], f"{experts} experts")


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
@pytest.mark.parametrize(
    "d, scaling", [*itertools.product((64, 4096, 130), ({"scaling": "row"}, {"scaling": "group"}))]
)
def test_the_swiglu_pass(kernel, arch, generator, d, scaling):
    """Rows held by waves and by workgroups; element by element."""
    a = normal((9, 64), torch.bfloat16, generator)
    b = normal((2, 2 * d, 64), torch.bfloat16, generator, 0.2)
    offsets = problems.offsets_of([4, 3])
    q, scales = kernel.grouped_gemm_swiglu_fp8(a, b, None, None, offsets, **scaling)
    c = kernel.grouped_gemm(a, b, None, None, offsets)[:7]
    wanted, wanted_scales = kernel.swiglu_dynamic_fp8(c, **scaling)
    assert same_bytes(q[:7], wanted) and same_bytes(scales[:7], wanted_scales)


SCALINGS = (
    dict(scaling="group"),
    dict(scale=True),
    dict(scaling="group", group_size=32, power_of_two=True, limit=0.5),
    dict(scaling="group", group_size=64, scale_dtype=torch.float8_e8m0fnu),
    dict(scaling="group", column_major_scales=True, scale_ub=True, fp8_max=200.0),
)


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
@pytest.mark.parametrize("form", [tile["name"] for tile in GATED])
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("keywords", SCALINGS, ids=str)
def test_gated_tiles(kernel, simulated_rocm, arch, environment, generator, form, dtype, keywords):
    """One launch, whose bytes are those of the product's and of SwiGLU's: tails of rows and k, two tiles of hidden
    values, numbers that are not finite."""
    rows, d = next(tile["rows"] for tile in GATED if tile["name"] == form), 256
    scales = SCALES[(SCALINGS.index(keywords) + (dtype == torch.float16)) % len(SCALES)]
    problem = case(rows + 20, 2 * d, 3 * 128 + 16, 0, scales, biased=None)
    inputs = draw(problem, (FORMATS[arch],), generator)
    inputs.offsets = problems.offsets_of([rows + 3, 0, 10])
    inputs.scale_b *= 0.01
    for token, factor in enumerate((float("nan"), float("inf"), 1e-30, 1e5)):
        if inputs.scale_a.numel() > 4:
            inputs.scale_a[token] *= factor
    inputs, held = inputs.placed(CPU, "dense")
    keywords = dict(keywords)
    for name in {"scale", "scale_ub"} & keywords.keys():
        keywords[name] = positive((1,), generator)

    def made(config: str) -> tuple:
        environment(CONFIG, f"grouped_gemm:{config}")
        simulated_rocm.runtime.launches.clear()
        out = Guarded((rows + 20, d), FORMATS[arch], CPU)
        call = dict(inputs.gather(), dtype=dtype, expected_rows=100, **keywords, out=out.t)
        _, found = kernel.grouped_gemm_swiglu_fp8(*inputs.operands(), **call)
        out.assert_guards_intact()
        live = inputs.live()
        untouched = Guarded((rows + 20, d), FORMATS[arch], CPU).t[live:]
        assert same_bytes(out.t[live:].contiguous(), untouched.contiguous()), "rows beyond the last were written"
        names = readable([name for name, *_ in simulated_rocm.runtime.launches])
        return out.t[:live].contiguous(), found, [name.partition("<")[0] for name in names]

    got, got_scales, launched = made(form)
    assert launched == ["grouped_gemm_gated"]
    wanted, wanted_scales, launched = made("t64x128")
    assert launched == ["grouped_gemm_tiles", "grouped_swiglu_flat"]
    for each in held:
        each.assert_unchanged()
    assert same_codes(got, wanted)
    if "scale" not in keywords:
        live = inputs.live()
        assert same_bytes(got_scales[:live].contiguous(), wanted_scales[:live].contiguous())


@pytest.mark.parametrize("arch", ARCHS, indirect=True)
@pytest.mark.parametrize("form", [tile["name"] for tile in GATED])
def test_a_workgroup_makes_gated_tiles_of_several_experts(simulated_rocm, arch, environment, generator, form):
    """As of plain tiles, above. No result is NaN, which is what nobody has written."""
    tile = next(tile for tile in GATED if tile["name"] == form)
    workgroups = UNITS[arch] * tile["per_unit"]
    hidden = 128 * (workgroups * 3 // 4)
    problem = case(tile["rows"] + 8, 2 * hidden, 272, 0, SCALES[1], biased=None)
    inputs = draw(problem, (FORMATS[arch],), generator)
    inputs.offsets = problems.offsets_of([tile["rows"] + 3, 0, 5])
    keywords = dict(inputs.gather(), expected_rows=100, scale=positive((1,), generator))
    environment(CONFIG, f"grouped_gemm:{form}")
    out = torch.full((inputs.count, hidden), torch.nan).to(FORMATS[arch])
    with simulated_rocm.on(arch, seed=SEED, sample=lambda grid: [0, 9]) as kernel:
        kernel.grouped_gemm_swiglu_fp8(*inputs.operands(), **keywords, out=out)
        assert simulated_rocm.runtime.launches[-1][1] == (workgroups, 1, 1)
    written = ~out.float().isnan()
    columns = written.any(0)
    part = of_columns(inputs, columns.repeat(2))
    with simulated_rocm.on(arch, seed=SEED) as kernel:
        wanted, _ = kernel.grouped_gemm_swiglu_fp8(*part.operands(), **keywords)
    assert same_codes(out.float()[written].to(out.dtype), wanted.float()[written[:, columns]].to(out.dtype))
    assert int(written[[0, tile["rows"], tile["rows"] + 3]].sum()) >= 4 * 128, "the workgroups had two tiles each"
    assert not written[inputs.live() :].any()
