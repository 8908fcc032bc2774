"""The ROCm variant's block_scaled_gemm, simulated: the shipped library's binding, launcher and machine code on both
chips. Every compiled kernel runs, with tails in all dimensions; the simulator's checks of waits, hazards, races and
coherence are on."""

import itertools

import pytest
import torch

from benchmarks.harness.forms import entry
from benchmarks.harness.gpu_cases import CONFIG_VARIABLE
from benchmarks.harness.simulated_rocm import FORMATS, UNITS
from problems.block_scaled_gemm import GROUP, SQUARE, VALUES, Inputs, draw, row_classes, run
from problems.buffers import Guarded, same_bytes
from problems.gemm import (
    BIASES,
    SHAPES,
    Problem,
    Scaling,
    any_sign,
    assert_nan_stays_in_its_row_or_column,
    bias_of,
    no_bias,
    powers_of_two,
)
from problems.inputs import FLOATS, positive, random_codes, random_fp8, short
from problems.pairwise import SAMPLE, by_form, pairwise
from scripts.host_configs import configs
from tests.gpu.simulated_kernels import simulated
from tests.settings import SEED

kernel = simulated  # the package on each chip
CPU = torch.device("cpu")
ARCHS = tuple(FORMATS)
TABLES = configs().tables
TILES, STREAMS, DIRECT = TABLES["tiles"], TABLES["streams"], TABLES["direct"]
FORMS_OF = TILES + STREAMS + DIRECT  # by the number that a configuration names
FIRST_DIRECT = len(TILES + STREAMS)


def shapes_of(arch: str) -> range:
    """Direct tiles are gfx950's."""
    return range(FIRST_DIRECT if arch == "gfx942" else len(FORMS_OF))


CHIPLETS = 8


@pytest.fixture
def fp8_of_gfx950() -> torch.dtype:
    return FORMATS["gfx950"]


@pytest.fixture
def config(environment):
    return lambda shape, parts: environment(CONFIG_VARIABLE, entry("block_scaled_gemm", "rocm", shape, parts))


SCALE_LAYOUTS = ("dense", "padded", "columns", "strided")
# Every form on both chips. The fast kernels take scale_b of blocks, of all, of channels.
FORMS = by_form(
    [
        (arch, shape, *rest)
        for (arch, shape), *rest in pairwise(
            *(tuple((arch, shape) for arch in ARCHS for shape in shapes_of(arch)), (1, 2, 3), ("few", "many"), FLOATS),
            *(("one", "flat", "vector", "square"), VALUES, VALUES, (0, 64), (random_fp8, random_codes)),
            seed=SAMPLE,
        )
    ]
)


@pytest.mark.parametrize(
    "arch, shape, parts, sizes, dtype, shape_b, values_a, values_b, pad, values, number",
    [(*form, i) for i, form in enumerate(FORMS)],
    indirect=["arch"],
    ids=lambda value: short(value) if isinstance(value, torch.dtype) else getattr(value, "__name__", str(value)),
)
def test_every_configuration(
    kernel, fp8, generator, config, shape, parts, sizes, dtype, shape_b, values_a, values_b, pad, values, number
):
    """Rows, columns and k beyond the last, in every form of the kernel; all kinds of scales, biases and results."""
    config(shape, parts)
    tile = FORMS_OF[shape]
    # Part of a tile; or two of columns, and more than a period of blocks.
    m, n, k = (tile["rows"] - 5, 40, 400) if sizes == "few" else (tile["rows"] // 2, tile["columns"] + 8, 128 * 9 + 16)
    if shape >= FIRST_DIRECT:
        k -= k % 128  # whole blocks, and float32 scales
        values_a, values_b = (positive if values is powers_of_two else values for values in (values_a, values_b))
    place_a, place_b = SCALE_LAYOUTS[number % 4], SCALE_LAYOUTS[number // 4 % 4]
    shape_a = tuple(SHAPES)[number % len(SHAPES)]
    scales = Scaling(shape_a, values_a, place_a), Scaling(shape_b, values_b, place_b)
    inputs = draw(Problem(m, n, k, fp8), generator, *scales, BIASES[number % len(BIASES)], values)
    how = "apart" if pad else "dense"
    there, buffers = inputs.placed(CPU, how, how, place_a, place_b)
    out = Guarded((m, n), dtype, CPU, pad=16)
    run(kernel, there, out=out.t)
    inputs.assert_right(out.t, f"{m}x{n}x{k}")
    out.assert_guards_intact("out")
    for each in buffers:
        each.assert_unchanged(f"{m}x{n}x{k}")


GENERAL = sorted({configs().block_scaled_fallback_shape(shape) for shape in range(len(FORMS_OF))})
TURNED = (("columns", "columns-apart"), ("dense", "columns"), ("columns-apart", "dense"))
TURNED_SHAPES = [shape for shape in range(len(TILES)) if shape not in GENERAL]
TURNED_FORMS = by_form(pairwise(ARCHS, TURNED_SHAPES, (1, 2), TURNED, ("few", "many"), FLOATS, seed=SAMPLE))
# One with fewer waves than the general form has room for.
FEW_WAVES = len(TILES) + next(i for i, stream in enumerate(STREAMS) if stream["rows"] == 32 and stream["waves"] == 4)
LAYOUTS = ("dense", "padded", "columns", "columns-padded")
GENERAL_FORMS = by_form(
    pairwise(
        *(
            ARCHS,
            (*GENERAL, FEW_WAVES),
            (1, 2),
            ((1, 1), (7, 17), (20, 70)),
            (1, 17, 130, 300),
            FLOATS,
            tuple(SHAPES),
            tuple(SHAPES),
        ),
        *(VALUES, SCALE_LAYOUTS, LAYOUTS, LAYOUTS, ("dense", "padded"), (no_bias, bias_of(torch.float16))),
        seed=SAMPLE,
    )
)


@pytest.mark.parametrize(
    "arch, shape, parts, size, k, dtype, shape_a, shape_b, values, place, a, b, out_place, bias",
    GENERAL_FORMS,
    indirect=["arch"],
    ids=lambda value: short(value) if isinstance(value, torch.dtype) else getattr(value, "__name__", str(value)),
)
def test_any_layout_and_any_scales(
    kernel, fp8, generator, config, shape, parts, size, k, dtype, shape_a, shape_b, values, place, a, b, out_place, bias
):
    """The forms that take what the fast ones do not: odd k, strides and alignment, columns first, scales of columns."""
    config(shape, parts)
    size = min(size[0], FORMS_OF[shape]["rows"]), size[1]
    scales = Scaling(shape_a, values, place), Scaling(shape_b, values, place)
    inputs = draw(Problem(*size, k, fp8), generator, *scales, bias)
    there, _ = inputs.placed(CPU, a, b, place, place)
    out = Guarded(size, dtype, CPU, **(dict(pad=37, shift=3) if out_place == "padded" else {}))
    run(kernel, there, out=out.t)
    inputs.assert_right(out.t, f"{size} {k}")
    out.assert_guards_intact("out")


@pytest.mark.parametrize(
    "arch, shape, parts, layouts, sizes, dtype",
    TURNED_FORMS,
    indirect=["arch"],
    ids=lambda value: (
        short(value) if isinstance(value, torch.dtype) else "-".join(value) if isinstance(value, tuple) else str(value)
    ),
)
def test_rows_contiguous(kernel, launched, fp8, generator, config, shape, parts, layouts, sizes, dtype):
    """Column-major operands, whose dwords are aligned, and the same bits as with k contiguous."""
    config(shape, parts)
    tile = TILES[shape]
    few = (36, 24, 384)
    many = (max(40, tile["rows"] - 4), tile["columns"] + 8, 128 * 9)
    m, n, k = few if sizes == "few" else many
    inputs = draw(Problem(m, n, k, fp8), generator, GROUP, SQUARE, bias_of(torch.float32))
    wanted = run(kernel, inputs, out_dtype=dtype)
    inputs.assert_right(wanted, "k contiguous")
    there, buffers = inputs.placed(CPU, *layouts, "columns", "dense")
    launched.names()
    assert same_bytes(run(kernel, there, out_dtype=dtype), wanted)
    turned = ", ".join(str(how.startswith("columns")).lower() for how in layouts)
    assert launched.names() == [f"block_scaled_gemm_tiles<{shape}, false, false, {turned}>"]
    for each in buffers:
        each.assert_unchanged("operands")


@pytest.mark.parametrize("arch", ["gfx950"], indirect=True)
@pytest.mark.parametrize("shape", range(FIRST_DIRECT, len(FORMS_OF)))
@pytest.mark.parametrize("m, n, blocks, parts", [(1, 1, 1, 1), (300, 520, 2, 1), (256, 256, 3, 1), (257, 130, 19, 2)])
def test_direct_tiles_have_the_bits_of_others(kernel, fp8, generator, config, shape, m, n, blocks, parts):
    """As few blocks as there are buffers, fewer and more; more than two periods of scales; tails of both sizes."""
    inputs = draw(Problem(m, n, 128 * blocks, fp8), generator, GROUP, SQUARE, bias_of(torch.float32))
    config(0, parts)
    wanted = run(kernel, inputs, out_dtype=torch.float32)
    inputs.assert_right(wanted, "tiles")
    config(shape, parts)
    assert same_bytes(run(kernel, inputs, out_dtype=torch.float32), wanted)


def test_what_direct_tiles_do_not_take(simulated_rocm, fp8_of_gfx950, launched, generator):
    """A size for which they are chosen: other layouts and scales go to tiles that add in the same order."""
    m, n, k = 129, 65536, 128
    assert configs().block_scaled_config(m, n, k, 1) == (FIRST_DIRECT, 1)
    inputs = draw(Problem(m, n, k, fp8_of_gfx950), generator, GROUP, Scaling("square", powers_of_two))
    as_float = Inputs(inputs.a, inputs.b, inputs.scale_a, inputs.scale_b.float(), inputs.bias)
    turned = as_float.placed(CPU, "dense", "columns", "dense", "dense")[0]
    results = []
    with simulated_rocm.on("gfx950", seed=SEED, sample=lambda grid: [0]) as kernel:
        for each in (as_float, inputs, turned):
            results.append(run(kernel, each, out_dtype=torch.float32)[:, :128])
    tiles = "block_scaled_gemm_tiles<0, false, false, false, "
    assert launched.names() == sorted(["block_scaled_gemm_direct<0>", f"{tiles}false>", f"{tiles}true>"])
    assert all(same_bytes(results[0], other) for other in results[1:])


@pytest.mark.parametrize("arch, m", [("gfx942", 20), ("gfx950", 5)], indirect=["arch"])
def test_layout_does_not_change_bits(kernel, fp8, generator, m):
    """With the configuration that the launcher chooses, K in parts."""
    inputs = draw(Problem(m, 37, 4112, fp8), generator, GROUP, Scaling("square", any_sign))
    assert configs().block_scaled_config(m, 37, 4112, 0)[1] > 1
    wanted = run(kernel, inputs, out_dtype=torch.float32)
    inputs.assert_right(wanted, "dense")
    for layouts in (("padded", "dense"), ("dense", "columns"), ("columns", "columns-padded")):
        there, _ = inputs.placed(CPU, *layouts, "columns", "padded")
        assert same_bytes(run(kernel, there, out_dtype=torch.float32), wanted), str(layouts)
    # The same scales, said for each column.
    rows = inputs.scale_b[torch.arange(37) // 128].contiguous()
    each = Inputs(inputs.a, inputs.b, inputs.scale_a, rows, None)
    assert same_bytes(run(kernel, each, out_dtype=torch.float32), wanted)


@pytest.mark.parametrize(
    "arch, shape, parts",
    [("gfx942", 0, 1), ("gfx942", 1, 3), ("gfx950", 2, 2), ("gfx942", len(TILES), 4), ("gfx950", FEW_WAVES, 2)]
    + [("gfx950", shape, 2) for shape in range(FIRST_DIRECT, len(FORMS_OF))],
    indirect=["arch"],
)
def test_the_schedule_does_not_change_bits(simulated_rocm, arch, fp8, generator, config, shape, parts):
    config(shape, parts)
    k = 784 if shape < FIRST_DIRECT else 768
    inputs = draw(Problem(FORMS_OF[shape]["rows"], 34, k, fp8), generator)
    results = []
    for seed, resident in ((SEED, 1), (SEED + 1, 2), (SEED + 2, 16)):
        with simulated_rocm.on(arch, seed=seed, resident=resident) as kernel:
            results.append(run(kernel, inputs, out_dtype=torch.float32))
    inputs.assert_right(results[0], "one workgroup at a time")
    assert all(same_bytes(results[0], other) for other in results[1:])


# The chip changes nothing here but numbers of compute units.
@pytest.mark.parametrize("arch", ARCHS[:1], indirect=True)
@pytest.mark.parametrize("n, k", [(20, 1552), (24, 160)])
def test_a_row_does_not_depend_on_its_batch(kernel, fp8, generator, n, k):
    """As the launcher chooses, within each class of rows."""
    inputs = draw(Problem(130, n, k, fp8), generator)
    for sizes in row_classes("rocm")[:4]:
        most = run(kernel, inputs.rows(slice(0, sizes[-1])), out_dtype=torch.float32)
        for m in {sizes[0], sizes[len(sizes) // 2]}:
            got = run(kernel, inputs.rows(slice(0, m)), out_dtype=torch.float32)
            assert same_bytes(got, most[:m]), f"{m}"


@pytest.mark.parametrize("arch, m, k", pairwise(ARCHS, (1, 17, 60), (32, 300, 528), seed=SAMPLE), indirect=["arch"])
def test_nan_stays_in_its_row_or_column(kernel, fp8, generator, m, k):
    inputs = draw(Problem(m, 37, k, fp8), generator)
    assert_nan_stays_in_its_row_or_column(
        lambda inputs: run(kernel, inputs, out_dtype=torch.float32), inputs, generator
    )
    clean = run(kernel, inputs, out_dtype=torch.float32)
    inputs.scale_a[m - 1, -1] = torch.nan
    got = run(kernel, inputs, out_dtype=torch.float32)
    assert got[m - 1].isnan().all() and torch.equal(got[: m - 1], clean[: m - 1])


def test_the_counters_are_left_at_zero(kernel, fp8, generator, config):
    """One stream's launches follow one another with the same counters: each finds them as the first did."""
    for shape, parts in ((3, 3), (len(TILES), 2), (max(GENERAL), 2), (FEW_WAVES, 3), (3, 3)):
        config(shape, parts)
        inputs = draw(Problem(9, 40, 400, fp8), generator)
        first = run(kernel, inputs, out_dtype=torch.float32)
        inputs.assert_right(first, f"{shape},{parts}")
        assert same_bytes(run(kernel, inputs, out_dtype=torch.float32), first)


@pytest.mark.parametrize(
    "arch, shape",
    [("gfx942", 0), ("gfx942", 3), ("gfx950", 0), ("gfx950", 3), ("gfx950", FIRST_DIRECT)],
    indirect=["arch"],
)
def test_a_workgroup_makes_one_tile_after_the_other(simulated_rocm, arch, shape, fp8, generator, config):
    """More tiles than the chip has room for: the first workgroup has two of them, of which the second is far away."""
    config(shape, 1)
    units = UNITS[arch] * FORMS_OF[shape]["per_unit"]
    width = FORMS_OF[shape]["columns"]
    n = width * (units + 3)
    inputs = draw(Problem(3, n, 144 if shape < FIRST_DIRECT else 384, fp8), generator, bias=bias_of(torch.float32))
    out = torch.full((3, n), torch.nan)
    with simulated_rocm.on(arch, seed=SEED, sample=lambda grid: [0]) as kernel:
        run(kernel, inputs, out=out)
        assert simulated_rocm.runtime.launches[-1][1] == (units, 1, 1)
    ran = torch.zeros(n, dtype=torch.bool)
    second = units // CHIPLETS * width
    ran[:width] = ran[second : second + width] = True
    assert out[:, ~ran].isnan().all()
    part = Inputs(inputs.a, inputs.b[ran], inputs.scale_a, inputs.scale_b, inputs.bias[ran])
    # The columns' blocks: those of the tiles that ran.
    part.scale_b = inputs.scale_b[torch.arange(n)[ran] // 128]
    part.assert_right(out[:, ran], "two tiles")


def test_tensors_beyond_two_gib(simulated_rocm, arch, fp8, generator, config):
    """Rows 3 MiB apart, of memory that is never touched: the last tile begins beyond 2^31 bytes."""
    config(3, 1)
    m, n, k, stride = 1024, 16, 128, 3 << 20
    few = draw(Problem(64, n, k, fp8), generator, bias=no_bias)
    a = torch.zeros((m - 1) * stride + k, dtype=torch.uint8).view(fp8).as_strided((m, k), (stride, 1))
    a.view(torch.uint8)[-64:] = few.a.view(torch.uint8)
    scale_a = torch.ones(m, 1)
    scale_a[-64:] = few.scale_a
    out = torch.full((m, n), torch.nan)
    with simulated_rocm.on(arch, seed=SEED, sample=lambda grid: [grid[0] - 1]) as kernel:
        kernel.block_scaled_gemm(a, few.b, scale_a, few.scale_b, out=out)
    few.assert_right(out[-64:], "the last rows")
    assert out[:-64].isnan().all()


def test_weights_beyond_two_gib(simulated_rocm, arch, fp8, generator, config):
    config(FEW_WAVES, 1)
    m, n, k, stride = 20, 1024, 144, 3 << 20
    width = FORMS_OF[FEW_WAVES]["columns"]
    few = draw(Problem(m, width, k, fp8), generator, bias=no_bias)
    b = torch.zeros((n - 1) * stride + k, dtype=torch.uint8).view(fp8).as_strided((n, k), (stride, 1))
    b.view(torch.uint8)[-width:] = few.b.view(torch.uint8)
    scale_b = torch.ones(n // 128, 2)
    scale_b[-1:] = few.scale_b
    out = torch.full((m, n), torch.nan)
    with simulated_rocm.on(arch, seed=SEED, sample=lambda grid: [grid[0] - 1]) as kernel:
        kernel.block_scaled_gemm(few.a, b, few.scale_a, scale_b, out=out)
    few.assert_right(out[:, -width:], "the last columns")
    assert out[:, :-width].isnan().all()


def test_a_format_that_the_chip_does_not_multiply(kernel, arch, fp8, generator):
    other = next(f for f in FORMATS.values() if f != fp8)
    inputs = draw(Problem(3, 5, 64, other), generator)
    with pytest.raises(RuntimeError, match=rf"a: dtype {str(other).split('.')[1]}; this GPU \({arch}\) multiplies"):
        run(kernel, inputs)


def test_a_forced_configuration_that_cannot_take_it_is_refused(kernel, arch, fp8, generator, config):
    config(next(shape for shape in range(len(TILES)) if shape not in GENERAL), 1)
    for scale_b, k in ((Scaling("group", positive), 256), (SQUARE, 255)):
        with pytest.raises(RuntimeError, match="cannot take these arguments"):
            run(kernel, draw(Problem(3, 16, k, fp8), generator, scale_b=scale_b))
    config(FEW_WAVES, 1)
    with pytest.raises(RuntimeError, match="cannot take these arguments"):
        run(kernel, draw(Problem(33, 16, 256, fp8), generator))
    config(FIRST_DIRECT, 1)
    powers = Scaling("group", powers_of_two)
    refused = [(256, SQUARE, SQUARE)] if arch == "gfx942" else [(272, SQUARE, SQUARE), (256, powers, SQUARE)]
    for k, *scales in refused:
        with pytest.raises(RuntimeError, match="cannot take these arguments"):
            run(kernel, draw(Problem(33, 16, k, fp8), generator, *scales))


def test_every_kernel_has_run(simulated_rocm, kernels, launched, arch, fp8, generator, config):
    """Of each name in the library: the forms above take them all."""
    with simulated_rocm.on(arch, seed=SEED) as kernel:
        for shape in shapes_of(arch):
            config(shape, 1)
            run(kernel, draw(Problem(3, 5, 48 if shape < FIRST_DIRECT else 128, fp8), generator))
        for shape in GENERAL:
            config(shape, 1)
            run(kernel, draw(Problem(3, 5, 48, fp8), generator, scale_b=Scaling("group", positive)))
            run(kernel, draw(Problem(3, 5, 47, fp8), generator))
        for shape, layouts in itertools.product(sorted(set(range(len(TILES))) - set(GENERAL)), TURNED):
            config(shape, 1)
            run(kernel, draw(Problem(36, 8, 128, fp8), generator).placed(CPU, *layouts, "dense", "dense")[0])
    families = "block_scaled_gemm_tiles", "block_scaled_gemm_stream", "block_scaled_gemm_direct"
    assert set(launched.names()) == kernels.names(arch, *families)
