"""The ROCm variant's int8_gemm and int8 row kernels, simulated: the shipped library's binding, launchers and machine
code on both chips. Every compiled GEMM runs, with tails in all dimensions; the simulator's checks of waits, hazards,
races and coherence are on."""

import itertools

import pytest
import torch

from benchmarks.harness.forms import entry
from benchmarks.harness.gpu_cases import CONFIG_VARIABLE
from benchmarks.harness.simulated_rocm import FORMATS, UNITS
from problems import gemm
from problems.buffers import Guarded, same_bytes
from problems.inputs import FLOATS, normal, short
from problems.int8 import INT8, LAYOUTS, RESULTS, SHAPES, VALUES, Case, any_bytes, draw, extremes, run
from problems.pairwise import SAMPLE, by_form, pairwise
from scripts.host_configs import configs
from tests.gpu.simulated_kernels import simulated
from tests.settings import SEED

kernel = simulated  # the package on each chip
CPU = torch.device("cpu")
ARCHS = tuple(FORMATS)
TILES = configs().tables["int8_tiles"]
GENERAL = sorted({configs().int8_fallback_shape(shape) for shape in range(len(TILES))})


@pytest.fixture
def config(environment):
    return lambda shape, parts: environment(CONFIG_VARIABLE, entry("int8_gemm", "rocm", shape, parts))


EPILOGUE = (
    *(RESULTS, tuple(SHAPES), tuple(SHAPES), (None, *FLOATS), (None, *SHAPES), (None, "relu"), (False, True), VALUES),
    LAYOUTS,
)


def sized(shape: int, sizes: str, layout: str, kinds: tuple) -> Case:
    """Part of a tile; or two of columns, and an odd number of stages."""
    tile = TILES[shape]
    m, n, k = (tile["rows"] - 5, 40, 400) if sizes == "few" else (tile["rows"] // 2, tile["columns"] + 9, 128 * 7 + 16)
    return Case(m, n, k, *kinds[:-1], layout, layout, kinds[-1])


FORMS = by_form(
    [
        (arch, shape, parts, sized(shape, sizes, layout, kinds))
        for (arch, shape), parts, sizes, layout, *kinds in pairwise(
            *(tuple(itertools.product(ARCHS, range(len(TILES)))), (1, 2, 3), ("few", "many"), ("dense", "apart")),
            *EPILOGUE,
            seed=SAMPLE,
        )
    ]
)
GENERAL_FORMS = by_form(
    [
        (arch, shape, parts, Case(*size, k, *kinds[:-1], a, b, kinds[-1]))
        for (arch, shape), parts, size, k, a, b, *kinds in pairwise(
            *(tuple(itertools.product(ARCHS, GENERAL)), (1, 2), ((1, 1), (7, 17), (20, 70)), (1, 17, 130, 301)),
            *(LAYOUTS, LAYOUTS, *EPILOGUE),
            seed=SAMPLE,
        )
    ]
)


@pytest.mark.parametrize(
    "arch, shape, parts, case", FORMS + GENERAL_FORMS, indirect=["arch"], ids=lambda v: getattr(v, "id", str(v))
)
def test_every_configuration(kernel, generator, config, shape, parts, case):
    """Rows, columns and k beyond the last, any k and any alignment, in every form; all kinds of scales, zero points,
    biases and results."""
    config(shape, parts)
    drawn = draw(case, generator)
    wanted = run(kernel.reference, drawn, out_dtype=case.dtype)
    inputs, buffers = drawn.placed(CPU, *case.layouts)
    out = Guarded((case.m, case.n), case.dtype, CPU, **gemm.ROWS[case.layout])
    run(kernel, inputs, out=out.t)
    assert same_bytes(out.t, wanted)
    out.assert_guards_intact("out")
    for each in buffers:
        each.assert_unchanged(case.id)


@pytest.mark.parametrize("arch, d", pairwise(ARCHS, (64, 80, 128), seed=SAMPLE), indirect=["arch"])
def test_heads(kernel, generator, d):
    """Scores and their products with values, of heads that lie between each other."""
    heads, tokens = 3, 37
    q, k = (any_bytes((tokens, heads, d), generator).transpose(0, 1) for _ in range(2))
    wanted = kernel.reference.bmm_ab_i8_e_f32(q, k, 0.01)
    assert same_bytes(kernel.bmm_ab_i8_e_f32(q, k, 0.01), wanted)
    p, v = any_bytes((heads, tokens, tokens), generator), any_bytes((heads, d, tokens), generator)
    out = Guarded((tokens, heads, d), INT8, CPU)
    kernel.bmm_abe_i8(p, v, 0.002, out=out.t.transpose(0, 1))
    assert same_bytes(out.t.transpose(0, 1), kernel.reference.bmm_abe_i8(p, v, 0.002))
    out.assert_guards_intact("out")


@pytest.mark.parametrize(
    "arch, shape, parts", [("gfx942", 0, 1), ("gfx942", 1, 3), ("gfx950", 5, 2)], indirect=["arch"]
)
def test_the_schedule_does_not_change_bits(simulated_rocm, arch, generator, config, shape, parts):
    config(shape, parts)
    a, b = extremes((TILES[shape]["rows"], 784), generator), any_bytes((34, 784), generator)
    one, wanted = torch.ones(1), (a.long() @ b.long().t()).float()
    for seed, resident in ((SEED, 1), (SEED + 1, 2), (SEED + 2, 16)):
        with simulated_rocm.on(arch, seed=seed, resident=resident) as kernel:
            assert torch.equal(kernel.int8_gemm(a, b, one, one, out_dtype=torch.float32), wanted)


def test_a_workgroup_makes_one_tile_after_the_other(simulated_rocm, arch, generator, config):
    """More tiles than the chip has room for: the first workgroup has two, the second one of another batch."""
    config(5, 1)
    tile = TILES[5]
    room = UNITS[arch] * tile["per_unit"]
    batch = room + 8
    a, b = any_bytes((batch, 3, 144), generator), any_bytes((batch, tile["columns"], 144), generator)
    out = torch.full((batch, 3, tile["columns"]), torch.nan)
    with simulated_rocm.on(arch, seed=SEED, sample=lambda grid: [0]) as kernel:
        kernel.bmm_ab_i8_e_f32(a, b, 1.0, out=out)
        assert simulated_rocm.runtime.launches[-1][1] == (room, 1, 1)
    ran = [0, room // 8]  # a chiplet's workgroups take tiles that follow one another
    assert torch.equal(out[ran], (a[ran].long() @ b[ran].long().transpose(1, 2)).float())
    assert out[[i for i in range(batch) if i not in ran]].isnan().all()


def test_every_gemm_has_run(simulated_rocm, kernels, launched, arch, generator, config):
    """Of each name in the library: the forms above take them all."""
    one = torch.ones(1)
    with simulated_rocm.on(arch, seed=SEED) as kernel:
        for shape in range(len(TILES)):
            config(shape, 1)
            kernel.int8_gemm(any_bytes((3, 48), generator), any_bytes((5, 48), generator), one, one)
        for shape in GENERAL:
            config(shape, 1)
            kernel.int8_gemm(any_bytes((3, 47), generator), any_bytes((5, 47), generator), one, one)
    assert set(launched.names()) == kernels.names(arch, "int8_gemm_tiles")


# Of a vector a lane of a wave, of four, of four a thread of a workgroup; element by element.
WIDTHS = (512 - 16, 2048 - 48, 4096 - 8, 100)


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_every_row_kernel_runs(simulated_rocm, kernels, launched, arch, generator, dtype):
    """On rows that leave lanes without work, by both types of weights and masks."""
    with simulated_rocm.on(arch, seed=SEED) as kernel:
        for d in WIDTHS:
            x = normal((3, d), dtype, generator)
            wanted = kernel.reference.quantize_int8(x, symmetric=False)
            got = kernel.quantize_int8(x, symmetric=False)
            assert all(same_bytes(*pair) for pair in zip(got, wanted))
            for other in {dtype, torch.float32}:
                weight, bias = normal((d,), other, generator), normal((d,), other, generator)
                q = kernel.layer_norm_int8(x, weight, bias)[0].int()
                assert ((q - kernel.reference.layer_norm_int8(x, weight, bias)[0].int()).abs() <= 1).all()
                probabilities = kernel.softmax_int8(x, normal((3, d), other, generator))
                assert (probabilities >= 0).all() and probabilities.any()
    types = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[str(dtype).removeprefix("torch.")]
    families = [f"{op}_int8_{form}" for op in ("quantize", "layer_norm", "softmax") for form in ("rows", "fallback")]
    of_type = {n for n in kernels.names(arch, *families) if n.partition("<")[2].rstrip(">").split(", ")[0] == types}
    assert set(launched.names()) == of_type


SIZES = [(1, 1536, 5120), (1, 5120, 1280), (1, 16, 128), (12, 512, 64), (32, 80, 512), (1, 1, 65536), (1, 37, 1040)]
ROWS = (1, 16, 17, 33, 64, 65, 128, 129, 1024, 16384)


@pytest.mark.parametrize("chip", range(len(ARCHS)), ids=ARCHS)
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("batch, n, k", SIZES)
def test_every_choice_can_run_and_none_is_better_by_the_model(batch, n, k, general, chip):
    host = configs()
    for m in ROWS:
        shape, parts = host.int8_config(batch, m, n, k, chip, general)
        best = host.int8_estimate(chip, shape, parts, batch, m, n, k)
        found = False
        for each, tile in enumerate(TILES):
            fits = (tile["rows"] == 16) if m <= 16 else tile["matrix"] == 32 and tile["rows"] // 2 < m
            fits = fits and (each in GENERAL or not general)
            tiles = batch * -(-m // tile["rows"]) * -(-n // tile["columns"])
            for count in range(1, 17):
                room = 2 * UNITS[ARCHS[chip]] * tile["per_unit"]
                split = tiles <= 1024 and tiles * count <= room and -(-k // 128) // count >= 4
                allowed = fits and (count == 1 or split)
                found |= allowed and (each, count) == (shape, parts)
                assert not allowed or best <= host.int8_estimate(chip, each, count, batch, m, n, k)
        assert found
