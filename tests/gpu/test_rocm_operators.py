"""The ROCm variant's operators, simulated: the shipped library's binding, launchers and machine code on both chips.

The problems are those of the CPU's tests scaled to what a simulator can do. Every compiled kernel runs at least once.
`pytest --simulate gfx942 tests/operators/test_swiglu.py` runs a whole file of the CPU's tests.
"""

import itertools
import os
import struct

import pytest
import torch

from benchmarks.harness.forms import entry
from benchmarks.harness.gpu_cases import CONFIG_VARIABLE
from benchmarks.harness.simulated_rocm import FORMATS
from problems import rms_norm as rms
from problems import skinny_gemm as gemm
from problems import swiglu
from problems.buffers import Guarded, guarded, same_bytes
from problems.comparisons import assert_between, assert_rounded_alike
from problems.gemm import BIASES, assert_nan_stays_in_its_row_or_column, bias_of
from problems.inputs import FLOATS, HALF, normal, positive, random_codes, random_fp8, short
from problems.pairwise import SAMPLE, by_form, pairwise
from scripts.machine_code_gates import skinny_shapes
from tests.gpu.simulated_kernels import LANES, norm_arguments, row_launch, row_width, simulated
from tests.settings import SEED

kernel = simulated  # the package on each chip
CPU = torch.device("cpu")
ARCHS = tuple(FORMATS)


# How rows lie in memory: the fast kernels' two cases, and the careful ones'.
LAYOUTS = {"dense": {}, "strided": dict(pad=48), "padded": dict(pad=37, shift=3)}

# --- rmsnorm_fp8 ---


@pytest.mark.parametrize("d", [1, 33, 128, 144, 1024, 2880, 16384])
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_rms_norm(kernel, fp8, generator, dtype, d):
    weight_dtype = torch.float32 if d % 3 else dtype
    rows = 3 if d < 10**4 else 1
    inputs = rms.draw((rows, d), dtype, generator, weight_dtype)
    results = []
    for name, layout in LAYOUTS.items():
        x, residual = (guarded(t, CPU, **layout) for t in (inputs.x, inputs.residual))
        out, plain = Guarded((rows, d), fp8, CPU, **layout), Guarded((rows, d), dtype, CPU, **layout)
        kernel.add_rms_norm_fp8(x.t, residual.t, inputs.weight, inputs.scale, out=out.t)
        h = inputs.x + inputs.residual
        assert same_bytes(residual.t, h), name
        rms.assert_right(out.t, None, h, inputs, name) if h.numel() >= 100 else None
        kernel.rms_norm(x.t, inputs.weight, out=plain.t)
        wanted = kernel.reference.rms_norm(inputs.x, inputs.weight)
        rms.assert_right(plain.t, wanted, inputs.x, inputs, name)
        for tensor in (out, plain, residual):
            tensor.assert_guards_intact(name)
        results.append((out.t, plain.t))
    # Neither the layout nor the kernel that takes it changes a bit.
    assert all(same_bytes(a, b) for other in results[1:] for a, b in zip(results[0], other))


def test_rms_norm_of_a_row_among_others(kernel, fp8, generator):
    # From quarter waves to a workgroup a row; enough rows for another configuration.
    for d, many in ((112, 33), (528, 40), (1040, 40)):
        inputs = rms.draw((many, d), torch.bfloat16, generator)
        together = kernel.rms_norm_fp8(inputs.x, inputs.weight, inputs.scale)
        for row in (0, 17, many - 1):
            alone = kernel.rms_norm_fp8(inputs.x[row], inputs.weight, inputs.scale)
            assert same_bytes(alone, together[row]), f"{d} {row}"


def test_the_other_format_is_converted_in_software(kernel, fp8, generator):
    other = next(f for f in FORMATS.values() if f != fp8)
    inputs = rms.draw((33, 272), torch.float16, generator)
    wanted = kernel.reference.rms_norm_fp8(inputs.x, inputs.weight, inputs.scale, out_dtype=other)
    got = kernel.rms_norm_fp8(inputs.x, inputs.weight, inputs.scale, out_dtype=other)
    rms.assert_right(got, wanted, inputs.x, inputs, short(other))
    x = normal((5, 96), torch.bfloat16, generator, 3.0)
    got = kernel.swiglu_fp8(x, inputs.scale, out_dtype=other)
    assert same_bytes(got, kernel.reference.swiglu_fp8(x, inputs.scale, out_dtype=other))


SPECIAL = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65504.0, -65504.0, 6e-8, -6e-8, 1.0)


@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_special_values_and_scales(kernel, fp8, generator, dtype):
    """Infinities, NaN, zeros of both signs, subnormals; scales where the division is a division."""
    x = normal((len(SPECIAL), 128), dtype, generator)
    for i, value in enumerate(SPECIAL):
        x[i, 3 * i] = value
    x[1] = 0
    gates = x.repeat(1, 2)
    weight = torch.ones(128, dtype=dtype)
    weight[5], weight[7], weight[9] = torch.inf, 0, -2
    for value in (1.0, 0.75, 2.0**-70, 2.0**70, 1e-38, 1e-42, 0.0, -0.5, torch.inf, torch.nan):
        scale = torch.tensor(value)
        for name, arguments in (("rms_norm_fp8", (x, weight, scale)), ("swiglu_fp8", (gates, scale))):
            got, wanted = getattr(kernel, name)(*arguments), getattr(kernel.reference, name)(*arguments, out_dtype=fp8)
            g, w = got.float(), wanted.float()
            assert torch.equal(g.isnan(), w.isnan()), f"{name} {value}"
            assert_rounded_alike(got, wanted, f"{name} {value}")


def rms_norm_kernels() -> list[str]:
    """Those without computed scales."""
    types = [(t, w) for t in ("f16", "bf16") for w in (t, "f32")]
    shapes = [("quarter_wave", 1), *(("wave", n) for n in (1, 2, 4)), *(("workgroup", n) for n in (1, 2, 4, 8))]
    outs = ["fp8, true", "fp8, false", "values, false"]
    return [
        f"rms_norm_fast<{t}, {w}, {out}, {holder}, {held}>"
        for (t, w), out, (holder, held) in itertools.product(types, outs, shapes)
    ]


@pytest.mark.parametrize("name", rms_norm_kernels())
def test_every_rms_norm_kernel(kernels, host_arguments, kernel, arch, fp8, generator, name):
    """Each compiled form by itself, whatever pick_rms_norm_config takes it for: lanes without work, a group not
    full."""
    values = name.removesuffix(">").split("<")[1].split(", ")
    dtype, weight_dtype = ({"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[v] for v in values[:2])
    to_fp8, residual, holder, held = values[2] == "fp8", values[3] == "true", values[4], int(values[5])
    d, rows = row_width(holder, held), 2 if holder == "workgroup" else 256 // LANES[holder] + 1
    inputs = rms.draw((rows, d), dtype, generator, weight_dtype)
    out = torch.empty((rows, d), dtype=fp8 if to_fp8 else dtype)
    out.view(torch.uint8).fill_(0x80)
    h = inputs.x + inputs.residual if residual else inputs.x
    tensors = [inputs.x, inputs.residual, inputs.weight, inputs.scale, out]
    args = host_arguments.rms_norm(*tensors, epsilon=1e-6)
    groups, threads = row_launch(holder, rows)
    arguments = norm_arguments(*tensors[:3], threads, args)
    kernels.launch(arch, name, groups, threads, arguments, tensors)
    assert_between(out, *rms.bounds(h, inputs, fp8 if to_fp8 else None), name)
    if residual:
        assert same_bytes(inputs.residual, h)
    # The careful kernel adds in the same order: the same bits. It is slow to simulate: the last row alone.
    shifted = guarded(h[-1:], CPU, shift=1).t
    careful = (
        kernel.rms_norm_fp8(shifted, inputs.weight, inputs.scale) if to_fp8 else kernel.rms_norm(shifted, inputs.weight)
    )
    assert same_bytes(out[-1:], careful)


# --- swiglu_fp8 ---


SWIGLU_SIZES = [(0, 16), (1, 1), (3, 33), (2, 16), (7, 144), (1, 2880)]


@pytest.mark.parametrize("rows, d", SWIGLU_SIZES)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_swiglu(kernel, fp8, generator, dtype, rows, d):
    values, scale = normal((rows, 2 * d), dtype, generator, 3.0), positive((1,), generator)
    wanted = kernel.reference.swiglu_fp8(values, scale, out_dtype=fp8)
    for name, layout in LAYOUTS.items():
        x, out = guarded(values, CPU, **layout), Guarded((rows, d), fp8, CPU, **layout)
        kernel.swiglu_fp8(x.t, scale, out=out.t)
        assert_rounded_alike(out.t, wanted, name)
        out.assert_guards_intact(name)


# Neither the chip nor the type makes a difference to the launch; each machine code runs by itself below.
@pytest.mark.parametrize("arch", ARCHS[:1], indirect=True)
def test_swiglu_in_workgroups_of_four_waves(simulated_rocm, arch, fp8, generator):
    """The first number of rows that goes to them: every ninth workgroup and the last, which write what is theirs."""
    rows, d, elements = 90, 8192, 8 * 256  # elements of a workgroup
    x, scale = normal((rows, 2 * d), HALF[0], generator, 3.0), positive((1,), generator)
    out = torch.empty((rows, d), dtype=fp8)
    out.view(torch.uint8).fill_(0x80)
    ran = torch.zeros(rows * d // elements, dtype=torch.bool)
    ran[::9] = ran[-1] = True
    with simulated_rocm.on(arch, seed=SEED, sample=lambda grid: ran.nonzero()[:, 0].tolist()) as kernel:
        kernel.swiglu_fp8(x, scale, out=out)
        assert simulated_rocm.runtime.launches[-1][1:3] == ((len(ran), 1, 1), (256, 1, 1))
    wanted = kernel.reference.swiglu_fp8(x, scale, out_dtype=fp8)
    parts, wanted_parts = (t.view(torch.uint8).view(len(ran), elements) for t in (out, wanted))
    assert_rounded_alike(parts[ran].view(fp8), wanted_parts[ran].view(fp8), "swiglu_fp8")
    assert (parts[~ran] == 0x80).all()


@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_swiglu_of_every_gate(kernel, fp8, generator, dtype):
    swiglu.assert_every_gate_within_two_ulps(kernel, CPU, generator, dtype, fp8, rounds=2)


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("held", [1, 2])
def test_every_swiglu_kernel(kernels, host_arguments, kernel, arch, fp8, generator, held, dtype):
    """By itself: pick_swiglu_config gives pairs of vectors to many rows only."""
    rows, d = 7, 272
    x, scale = normal((rows, 2 * d), dtype, generator, 3.0), positive((1,), generator)
    out = torch.empty((rows, d), dtype=fp8)
    out.view(torch.uint8).fill_(0x80)
    tensors = [x, scale, out]
    count = rows * d // 8
    divider = struct.unpack("<III", host_arguments.divider(d // 8))
    arguments = [x.data_ptr(), 4 * d, 2 * d, count, 64, *divider, scale.data_ptr(), out.data_ptr(), d]
    kernels.launch(arch, f"swiglu_fast<{short(dtype)}, {held}>", -(-count // (64 * held)), 64, arguments, tensors)
    wanted = kernel.reference.swiglu_fp8(x, scale, out_dtype=fp8)
    assert_rounded_alike(out, wanted, "pairs")


# --- skinny_gemm ---

SHAPES = range(-1, len(skinny_shapes()))


@pytest.fixture
def config(environment):
    return lambda shape, splits: environment(CONFIG_VARIABLE, entry("skinny_gemm", "rocm", shape, splits))


def rows_of(shape: int) -> tuple[int, int]:
    """The least and the most rows for which a shape is meant."""
    most = 32 if shape < 0 else skinny_shapes()[shape]["rows"]
    return (1, most) if shape < 0 or most == 8 else (most // 2 + 1, most)


def tiles_of(shape: int) -> int:
    """Of 16 columns, in a workgroup."""
    return 1 if shape < 0 else skinny_shapes()[shape]["columns"] // 16


# Every form on both chips with every split, at either size, with either layout of the rows.
GEMM_FORMS = by_form(
    [
        (arch, shape, *rest)
        for (arch, shape), *rest in pairwise(
            *(tuple(itertools.product(ARCHS, SHAPES)), (1, 2, 4), ("few", "many"), FLOATS),
            *((random_fp8, random_codes), (0, 16)),
            seed=SAMPLE,
        )
    ]
)


@pytest.mark.parametrize(
    "arch, shape, splits, rows, dtype, values, pad, number",
    [(*form, i) for i, form in enumerate(GEMM_FORMS)],
    indirect=["arch"],
    ids=lambda value: short(value) if isinstance(value, torch.dtype) else getattr(value, "__name__", str(value)),
)
def test_every_gemm_configuration(kernel, fp8, generator, config, shape, splits, rows, dtype, values, pad, number):
    """Columns and k beyond the last, in every form of the kernel; all kinds of scales, biases and results."""
    config(shape, splits)
    # A split is a workgroup of its own, which fills its slots however little k is left to it.
    many = 16 * tiles_of(shape) * (2 if splits == 1 else 1) + 2
    m, n, k = (rows_of(shape)[0], 37, 1040) if rows == "few" else (rows_of(shape)[1], many, 2416)
    scales = gemm.SCALES[number % 5], gemm.SCALES[number // 5 % 5]
    drawn = gemm.draw(gemm.Problem(m, n, k, fp8), generator, *scales, BIASES[number % 7], values)
    how = "near" if pad else "dense"
    inputs, _ = drawn.placed(CPU, how, how, *(scale.place for scale in scales))
    out = Guarded((m, n), dtype, CPU, pad=pad)
    gemm.run(kernel, inputs, out=out.t)
    inputs.assert_right(out.t, f"{m}x{n}x{k}")
    out.assert_guards_intact("out")


@pytest.mark.parametrize("shape, splits", [(-1, 2), (0, 1), (1, 2), (2, 4), (4, 1), (5, 4)])
def test_the_schedule_does_not_change_bits(simulated_rocm, arch, fp8, generator, config, shape, splits):
    config(shape, splits)
    inputs = gemm.draw(gemm.Problem(rows_of(shape)[1], 34, 1808, fp8), generator)
    results = []
    for seed, resident in ((SEED, 1), (SEED + 1, 2), (SEED + 2, 16)):
        with simulated_rocm.on(arch, seed=seed, resident=resident) as kernel:
            results.append(gemm.run(kernel, inputs, out_dtype=torch.float32))
    inputs.assert_right(results[0], "one workgroup at a time")
    assert all(same_bytes(results[0], other) for other in results[1:])


@pytest.mark.parametrize("n, k", [(20, 2064), (16, 100)])
def test_a_gemm_row_does_not_depend_on_its_batch(kernel, fp8, generator, n, k):
    inputs = gemm.draw(gemm.Problem(32, n, k, fp8), generator)
    for sizes in (range(1, 9), range(9, 17), range(17, 33)):
        most = gemm.run(kernel, inputs.rows(slice(0, sizes[-1])), out_dtype=torch.float32)
        for m in (sizes[0], sizes[len(sizes) // 2]):
            got = gemm.run(kernel, inputs.rows(slice(0, m)), out_dtype=torch.float32)
            assert same_bytes(got, most[:m]), f"{m}"


@pytest.mark.parametrize(
    "arch, m, k", pairwise(ARCHS, (1, 8, 9, 32), (1, 17, 300, 304), seed=SAMPLE), indirect=["arch"]
)
def test_nan_in_a_gemm(kernel, fp8, generator, m, k):
    inputs = gemm.draw(gemm.Problem(m, 37, k, fp8), generator)
    assert_nan_stays_in_its_row_or_column(
        lambda inputs: gemm.run(kernel, inputs, out_dtype=torch.float32), inputs, generator
    )


ODD_GEMMS = pairwise(
    *(ARCHS, (1, 15, 16, 17, 48, 63, 65, 144, 257), ((1, 1), (7, 17), (16, 3), (32, 33)), ("dense", "padded")),
    seed=SAMPLE,
)


@pytest.mark.parametrize("arch, k, size, layout", ODD_GEMMS, indirect=["arch"])
def test_odd_gemms(kernel, fp8, generator, k, size, layout):
    inputs = gemm.draw(gemm.Problem(*size, k, fp8), generator, bias=bias_of(torch.float16))
    a, b = (guarded(t, CPU, **LAYOUTS[layout]) for t in (inputs.a, inputs.b))
    moved = gemm.Inputs(a.t, b.t, inputs.scale_a, inputs.scale_b, inputs.bias)
    inputs.assert_right(gemm.run(kernel, moved, out_dtype=torch.float32), f"{size} {k}")


def test_the_counters_are_left_at_zero(simulated_rocm, kernel, fp8, generator, config):
    """One stream's launches follow one another with the same counters: each finds them as the first did."""
    for shape, splits in ((0, 4), (-1, 2), (4, 2), (0, 4)):
        config(shape, splits)
        inputs = gemm.draw(gemm.Problem(rows_of(shape)[0], 20, 272 * splits, fp8), generator)
        first = gemm.run(kernel, inputs, out_dtype=torch.float32)
        inputs.assert_right(first, f"{shape},{splits}")
        assert same_bytes(gemm.run(kernel, inputs, out_dtype=torch.float32), first)


def test_a_format_that_the_chip_does_not_multiply(kernel, arch, fp8, generator):
    other = next(f for f in FORMATS.values() if f != fp8)
    inputs = gemm.draw(gemm.Problem(3, 5, 64, other), generator)
    with pytest.raises(RuntimeError, match=rf"a: dtype {str(other).split('.')[1]}; this GPU \({arch}\) multiplies"):
        gemm.run(kernel, inputs)


def test_a_forced_configuration_that_cannot_take_it_is_refused(kernel, fp8, generator, config):
    config(0, 1)  # 8 rows at most; aligned
    for m, k in ((9, 1024), (1, 1000)):
        with pytest.raises(RuntimeError, match="cannot take these arguments"):
            gemm.run(kernel, gemm.draw(gemm.Problem(m, 16, k, fp8), generator))
    assert os.environ[CONFIG_VARIABLE] == entry("skinny_gemm", "rocm", 0)


@pytest.mark.parametrize("m", [1, 8, 16, 32])
@pytest.mark.full
def test_the_qkv_projection_of_llama_405b(kernel, fp8, generator, m):
    """2304 x 16384 in full, as eight ranks have it."""
    inputs = gemm.draw(gemm.Problem(m, 2304, 16384, fp8), generator)
    inputs.assert_right(gemm.run(kernel, inputs), "QKV")
