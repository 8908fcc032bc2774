"""The fused operators with computed scales of the ROCm variant, simulated: every compiled kernel on both chips.

`pytest --simulate gfx942 tests/operators/test_dynamic.py` runs the CPU's tests there.
"""

import itertools
from dataclasses import replace

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS
from problems.buffers import same_bytes
from problems.dynamic import (
    LIMITS,
    NORMS,
    OPERATORS,
    SWIGLU,
    NormProblem,
    Operands,
    SwigluProblem,
    assert_norm_as_defined,
    assert_quantised_from,
    assert_same_without_y,
    assert_swiglu_as_defined,
    both_products,
    draw,
    gated,
)
from problems.inputs import HALF, normal, short, weights
from problems.pairwise import SAMPLE, pairwise
from problems.quantize import KINDS, PLACES, SCALINGS, Problem, assert_as_defined, special_values, values
from problems.rms_norm import assert_normalised
from tests.gpu.simulated_kernels import (
    LANES,
    Results,
    gated_source,
    norm_arguments,
    pieces_of,
    row_launch,
    row_width,
    simulated,
)
from tests.settings import SEED

kernel = simulated  # the package on each chip
CPU = torch.device("cpu")
ARCHS = tuple(FORMATS)
TYPES = {short(dtype): dtype for dtype in (torch.float32, *HALF)}


# --- kernels by themselves ---

ROW_FORMS = [*(("wave", n) for n in (1, 2, 4)), *(("workgroup", n) for n in (1, 2, 4, 8))]
NORM_KERNELS = [
    f"rms_norm_fast<{t}, {w}, computed, {residual}, {holder}, {held}>"
    for t in ("f16", "bf16")
    for w, residual, (holder, held) in itertools.product(
        (t, "f32"), ("true", "false"), [("quarter_wave", 1), *ROW_FORMS]
    )
]
SWIGLU_ROWS = [f"swiglu_rows<{short(t)}, {holder}, {held}>" for t in HALF for holder, held in ROW_FORMS]
SWIGLU_GROUPS = [f"swiglu_groups<{short(t)}, {size}, 1>" for t, size in itertools.product(HALF, (32, 64, 128))]


def parameters(name: str) -> list[str]:
    return name.removesuffix(">").partition("<")[2].split(", ")


def test_the_lists_are_complete(kernels, arch):
    computed = {name for name in kernels.names(arch, "rms_norm_fast") if parameters(name)[2] == "computed"}
    assert computed == set(NORM_KERNELS)
    assert kernels.names(arch, "swiglu_rows", "swiglu_groups") == {*SWIGLU_ROWS, *SWIGLU_GROUPS}


@pytest.mark.parametrize("name", NORM_KERNELS)
def test_every_norm_kernel(kernels, kernel, host_arguments, arch, fp8, generator, name):
    """Lanes without work, a workgroup not full; each form with every scaling and every kind of scale."""
    dtype, weight_dtype, _, residual, holder, held = parameters(name)
    number, d, rows = NORM_KERNELS.index(name), row_width(holder, int(held)), 2
    if holder != "workgroup":
        rows = 256 // LANES[holder] + 1
    flags = bool(number % 2), bool(number // 2 % 2)
    problem = Problem(
        TYPES[dtype], fp8, rows, d, SCALINGS[number % 5], KINDS[number // 5 % 3], "columns", "dense", *flags
    )
    x, added = (values(problem, generator) for _ in range(2))
    weight = weights((d,), TYPES[weight_dtype], generator)
    h = x + added if residual == "true" else x
    results, y = Results.of(problem), torch.full((rows, d), torch.nan, dtype=TYPES[dtype])
    if problem.scaling[0] == "tensor":  # the largest of each row takes the place of a scale
        results.scales = torch.full((rows, 1), torch.nan)
    arguments = host_arguments.rms_norm(x, added, weight, None, results.out, 1e-6, results.dynamic(host_arguments), y)
    tensors = [x, added, weight, y, *results.tensors]
    groups, threads = row_launch(holder, rows)
    kernels.launch(arch, name, groups, threads, norm_arguments(x, added, weight, threads, arguments), tensors)
    if residual == "true":
        assert same_bytes(added, h)
    assert_normalised(y, h, weight, 1e-6, name)
    if problem.scaling[0] == "tensor":
        assert same_bytes(results.scales[:, 0], y.float().abs().amax(-1))
    else:
        wanted = kernel.reference.quantize_fp8(y, **problem.arguments(CPU))
        assert_as_defined(results.quantised, wanted, f"{name} {problem.id}")


def launch_swiglu(kernels, host_arguments, arch, generator, name: str, problem: SwigluProblem, launch, *more) -> None:
    x, results = gated(problem, generator), Results.of(problem)
    arguments = host_arguments.quantized_rows(None, results.dynamic(host_arguments), results.out)
    kernels.launch(arch, name, *launch, [gated_source(x, problem.limit), arguments, *more], [x, *results.tensors])
    assert_quantised_from(results.quantised, *both_products(x, problem.limit), problem)


def swiglu_problem(dtype: str, fp8, rows: int, d: int, scaling, number: int) -> SwigluProblem:
    flags = bool(number % 2), bool(number // 2 % 2)
    modes = scaling, KINDS[number % 3], "columns", "dense", *flags
    return SwigluProblem(TYPES[dtype], fp8, rows, d, *modes, LIMITS[number // 3 % 3])


@pytest.mark.parametrize("name", SWIGLU_ROWS)
def test_every_swiglu_kernel_of_rows(kernels, host_arguments, arch, fp8, generator, name):
    """Lanes without work; waves without a row; d of an odd number of vectors."""
    dtype, holder, held = parameters(name)
    rows, d = 2 if holder == "workgroup" else 5, row_width(holder, int(held)) - 8
    problem = swiglu_problem(dtype, fp8, rows, d, ("row", 128), SWIGLU_ROWS.index(name))
    launch_swiglu(kernels, host_arguments, arch, generator, name, problem, row_launch(holder, rows))


@pytest.mark.parametrize("name", SWIGLU_GROUPS)
def test_every_swiglu_kernel_of_groups(kernels, host_arguments, arch, fp8, generator, name):
    """Rows of whole groups; of a group and a bit, down to a vector."""
    dtype, size, _ = parameters(name)
    for number, (rows, d) in enumerate(((3, 256), (7, 264))):
        scaling = ("group", int(size))
        problem = swiglu_problem(dtype, fp8, rows, d, scaling, SWIGLU_GROUPS.index(name) + 5 * number)
        a_row, count = pieces_of(problem)
        more = host_arguments.flat_work(a_row, count), host_arguments.maxima(None)
        launch_swiglu(kernels, host_arguments, arch, generator, name, problem, (-(-count // 128), 128), *more)


# --- the operators ---

FORMAT = ("own", "other")
ROWS = (1, 2, 19)
WIDTHS = (7, 96, 136, 528, 2064)
LAYOUT = ("dense", "strided", "padded", "unaligned")
AXES = (ARCHS, HALF, FORMAT, ROWS, WIDTHS, SCALINGS, KINDS, PLACES, LAYOUT, (False, True), (False, True))
NORM_SAMPLE = pairwise(*AXES, NORMS, (False, True), ("dense", "strided", "padded"), ("dense", "strided"), seed=SAMPLE)
SWIGLU_SAMPLE = pairwise(*AXES, LIMITS, seed=SAMPLE)


def sized(problem, arch: str, form: str):
    """Of the format; smaller where it goes element by element, which is slow to simulate."""
    fp8 = next(f for a, f in FORMATS.items() if (a == arch) == (form == "own"))
    slow = form == "other" or problem.layout in ("padded", "unaligned") or problem.d % 8
    rows, d = (min(problem.rows, 3), min(problem.d, 136)) if slow else (problem.rows, problem.d)
    return replace(problem, fp8=fp8, rows=rows, d=d)


@pytest.mark.parametrize("arch, dtype, form, rest", [(*c[:3], c[3:]) for c in NORM_SAMPLE], indirect=["arch"])
def test_a_norm_is_as_defined(kernel, arch, generator, dtype, form, rest):
    problem = sized(NormProblem(dtype, FORMATS[arch], *rest), arch, form)
    assert_norm_as_defined(kernel, CPU, problem, generator)


@pytest.mark.parametrize("arch, dtype, form, rest", [(*c[:3], c[3:]) for c in SWIGLU_SAMPLE], indirect=["arch"])
def test_swiglu_is_as_defined(kernel, arch, generator, dtype, form, rest):
    problem = sized(SwigluProblem(dtype, FORMATS[arch], *rest), arch, form)
    assert_swiglu_as_defined(kernel, CPU, problem, gated(problem, generator))


FAST = {"rms_norm_dynamic_fp8": "rms_norm_fast", "add_rms_norm_dynamic_fp8": "rms_norm_fast", SWIGLU: "swiglu_rows"}
ANY = {"rms_norm_fast": "rms_norm_fallback", "swiglu_rows": "swiglu_fallback_computed"}


@pytest.mark.parametrize("operator", OPERATORS)
def test_how_many_launches(kernel, launched, arch, generator, operator):
    """One; with a scale for a tensor of several rows two, by any path."""
    row, first = FAST[operator], "swiglu_largest" if operator == SWIGLU else "rms_norm_fast"
    careful = "swiglu_largest" if operator == SWIGLU else "rms_norm_fallback"
    groups = "swiglu_groups" if operator == SWIGLU else "rms_norm_fast"
    for shape, scaling, expected in (
        ((1, 272), "tensor", [row]),
        ((3, 272), "row", [row]),
        ((3, 272), "group", [groups]),
        ((3, 272), "tensor", [first, "quantize_flat"]),
        ((1, 271), "tensor", [ANY[row]]),
        ((2, 271), "row", [ANY[row]]),
        ((2, 271), "group", [ANY[row]]),
        ((2, 271), "tensor", [careful, "quantize_fallback"]),
    ):
        operands = draw(operator, shape, torch.bfloat16, generator)
        launched.names()
        operands.call(kernel, scaling=scaling)
        assert [name.partition("<")[0] for name in launched.names()] == expected, f"{shape} {scaling}"


def with_special_values(ordinary: torch.Tensor, generator) -> torch.Tensor:
    """In a tenth of the places of each row but the first."""
    special, mixed = special_values(ordinary.dtype), ordinary.clone()
    places = torch.rand(mixed.shape, generator=generator) < 0.1
    places[0] = False
    bits = {2: torch.int16, 4: torch.int32}[mixed.element_size()]  # a signalling NaN stays one
    drawn = special.view(bits)[torch.randint(len(special), mixed.shape, generator=generator)]
    mixed.view(bits)[places] = drawn[places]
    return mixed


SPECIAL_SCALINGS = (("tensor", 128), ("row", 128), ("group", 32))


@pytest.mark.parametrize("arch, dtype, scaling, d", pairwise(ARCHS, HALF, SPECIAL_SCALINGS, (104, 528), seed=SAMPLE))
def test_special_values(simulated_rocm, generator, arch, dtype, scaling, d):
    """NaN of both kinds, infinities, zeros and subnormals among other values, in x, the residual, the weights, gates
    and `up`."""
    with simulated_rocm.on(arch, seed=SEED) as kernel:
        problem = swiglu_problem(short(dtype), FORMATS[arch], 5, d, scaling, 0)
        x = with_special_values(normal((5, 2 * d), dtype, generator, 2.0), generator)
        for limit in (None, 1.0):
            assert_swiglu_as_defined(kernel, CPU, replace(problem, limit=limit, bound=False, lower=False), x)
        options = dict(scaling=scaling[0], group_size=scaling[1], out_dtype=FORMATS[arch])
        for operator, weight_dtype in itertools.product(NORMS, (dtype, torch.float32)):
            usual = draw(operator, (5, d), dtype, generator, weight_dtype)
            # Whole rows of NaN show little: few in x, most in the weights, whose columns they are.
            one = usual.x.clone()
            one[1, 3], one[2, 7], one[3] = torch.nan, torch.inf, 0.0
            weight = with_special_values(usual.weight.expand(2, -1).contiguous(), generator)[1]
            for case in (replace(usual, x=one), replace(usual, weight=weight)):
                assert_same_without_y(kernel, case, operator, **options)


@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_zeros_and_the_smallest_maxima(kernel, fp8, dtype):
    """Scales of nothing but zeros, and of values below 1e-10: the smallest, or a scale outside the usual ones."""
    for size, kind in itertools.product((0.0, 1e-15, 2.0**-24), KINDS):
        options = dict(scale_dtype=kind[0], power_of_two=kind[1], scaling="group", group_size=64, out_dtype=fp8)
        rows = torch.cat([torch.ones(2, 144), torch.zeros(1, 144)]).to(dtype)
        operands = Operands(NORMS[0], rows, None, torch.full((144,), size))
        assert_same_without_y(kernel, operands, f"{size}", **options)
        x = torch.cat([torch.full((2, 144), 32.0), torch.full((2, 144), size / 32)], dim=-1).to(dtype)
        problem = SwigluProblem(dtype, fp8, 2, 144, ("group", 64), kind, "rows", "dense", False, False, None)
        assert_swiglu_as_defined(kernel, CPU, problem, x)
