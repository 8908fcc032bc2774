"""quantize_fp8 of the ROCm variant, simulated: every compiled kernel on both chips, the bytes of the reference.

`pytest --simulate gfx942 tests/operators/test_quantize.py` runs the CPU's tests there.
"""

import itertools
import re

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS
from problems.buffers import Guarded, guarded, same_bytes
from problems.inputs import FLOATS, positive, short
from problems.quantize import KINDS, SCALINGS, Problem, assert_as_defined, special_values, values
from tests.gpu.simulated_kernels import Results, pieces_of, row_launch, row_width, simulated, values_source

kernel = simulated  # the package on each chip
CPU = torch.device("cpu")


def problem(dtype, fp8, rows, d, scaling, number: int) -> Problem:
    """`number`: which scales, of what bounds."""
    return Problem(
        dtype, fp8, rows, d, scaling, KINDS[number % 3], "columns", "dense", bool(number % 2), bool(number // 2 % 2)
    )


# --- kernels by themselves ---

GIVEN, FROM_MAXIMA = 0, 1  # of quantize_flat's template; else a group's size
FLAT = list(itertools.product(FLOATS, (GIVEN, FROM_MAXIMA, 32, 64, 128)))
# float32 rows of eight vectors do not fit in registers.
ROWS = [
    (dtype, *form)
    for dtype in FLOATS
    for form in (*(("wave", n) for n in (1, 2, 4)), *(("workgroup", n) for n in (1, 2, 4, 8)))
    if (dtype, form[1]) != (torch.float32, 8)
]


def flat(dtype, scale: int) -> str:
    return f"quantize_flat<{short(dtype)}, {scale}, 1>"


def of_rows(dtype, holder: str, held: int) -> str:
    return f"quantize_rows<{short(dtype)}, {holder}, {held}>"


def test_the_lists_are_complete(kernels, arch):
    listed = {flat(*form) for form in FLAT} | {of_rows(*form) for form in ROWS}
    assert listed == kernels.names(arch, "quantize_flat", "quantize_rows")


@pytest.mark.parametrize("dtype, scale", FLAT, ids=lambda v: short(v) if isinstance(v, torch.dtype) else str(v))
def test_every_flat_kernel(kernels, kernel, host_arguments, arch, fp8, generator, dtype, scale):
    """Rows of whole groups; of a group and a bit, down to a vector; more vectors than threads."""
    for number, (rows, d) in enumerate(((3, 256), (40, 264))):
        scaling = {GIVEN: None, FROM_MAXIMA: ("tensor", 128)}.get(scale, ("group", scale))
        case = problem(dtype, fp8, rows, d, scaling or ("row", 128), FLAT.index((dtype, scale)) + number)
        x, given = values(case, generator), positive((1,), generator)
        results = Results.of(case)
        (a_row, count), maxima, groups = pieces_of(case), None, None
        if scale == FROM_MAXIMA:
            # The maxima of parts in any order, more of them than threads.
            maxima = torch.rand(700, generator=generator)
            maxima[int(torch.randint(700, (), generator=generator))] = x.float().abs().max()
            threads, groups = 256, 2  # a loop
        elif scale == GIVEN:
            threads = 256
        else:
            threads = 64 * (1 + number)
        arguments = host_arguments.quantized_rows(
            given if scale == GIVEN else None, results.dynamic(host_arguments), results.out
        )
        kernels.launch(
            arch,
            flat(dtype, scale),
            groups or -(-count // threads),
            threads,
            [values_source(x), arguments, host_arguments.flat_work(a_row, count), host_arguments.maxima(maxima)],
            [x, given, maxima, *results.tensors],
        )
        if scale == GIVEN:
            assert same_bytes(results.out, kernel.reference.quantize_fp8(x, given, out_dtype=fp8)[0])
        else:
            assert_as_defined(results.quantised, kernel.reference.quantize_fp8(x, **case.arguments(CPU)), case.id)


@pytest.mark.parametrize("dtype, holder, held", ROWS, ids=lambda v: short(v) if isinstance(v, torch.dtype) else str(v))
def test_every_row_kernel(kernels, kernel, host_arguments, arch, fp8, generator, dtype, holder, held):
    """Lanes without work; waves without a row; d of an odd number of vectors."""
    rows, d = 2 if holder == "workgroup" else 5, row_width(holder, held) - 8
    case = problem(dtype, fp8, rows, d, ("row", 128), ROWS.index((dtype, holder, held)))
    x, results = values(case, generator), Results.of(case)
    arguments = host_arguments.quantized_rows(None, results.dynamic(host_arguments), results.out)
    launch = row_launch(holder, rows)
    kernels.launch(arch, of_rows(dtype, holder, held), *launch, [values_source(x), arguments], [x, *results.tensors])
    assert_as_defined(results.quantised, kernel.reference.quantize_fp8(x, **case.arguments(CPU)), case.id)


# --- the operator ---

GROUPS = [scaling for scaling in SCALINGS if scaling[0] == "group"]
# How scales are computed -> the kernels of rows that fit vectors, in order, and those of others. How many vectors a
# thread takes, and who holds a row, is the launcher's matter. {} is the type.
LAUNCHED = {
    None: ([r"quantize_flat<{}, 0, \d>"], ["quantize_fallback<{}, 0>"]),
    ("row", 128): ([r"quantize_rows<{}, (wave|workgroup), \d>"], ["quantize_fallback<{}, 2>"]),
    **{(name, size): ([rf"quantize_flat<{{}}, {size}, \d>"], ["quantize_fallback<{}, 2>"]) for name, size in GROUPS},
    ("tensor", 128): (
        ["quantize_largest<{}, true>", r"quantize_flat<{}, 1, \d>"],
        ["quantize_largest<{}, false>", "quantize_fallback<{}, 1>"],
    ),
}


def check(kernel, launched, case: Problem, layout: dict, generator, expected: list[str]) -> None:
    x = guarded(values(case, generator), CPU, **layout)
    out = Guarded((case.rows, case.d), case.fp8, CPU, **layout)
    if case.scaling is None:
        arguments, column_major = dict(scale=positive((1,), generator), out_dtype=case.fp8), {}
    else:
        arguments, column_major = case.arguments(CPU), dict(column_major_scales=True)
    launched.names()
    got = kernel.quantize_fp8(x.t, **arguments, **column_major, out=out.t)
    names, patterns = launched.names(), [pattern.format(short(case.dtype)) for pattern in expected]
    assert len(names) == len(patterns) and all(map(re.fullmatch, patterns, names)), names
    assert_as_defined(got, kernel.reference.quantize_fp8(x.t, **arguments), str(case))
    out.assert_guards_intact()
    x.assert_unchanged()


@pytest.mark.parametrize("scaling", LAUNCHED, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_vectors(kernel, launched, fp8, generator, dtype, scaling):
    """d of an odd and of an even number of vectors, with space between rows."""
    for number, (rows, d) in enumerate(((3, 1032), (5, 272))):
        case = Problem(dtype, fp8, rows, d, scaling, KINDS[number], "columns", "padded", False, False)
        check(kernel, launched, case, dict(pad=16 if d % 16 == 0 else 8), generator, LAUNCHED[scaling][0])


@pytest.mark.parametrize("scaling", LAUNCHED, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_odd_rows_and_the_other_format(kernel, launched, arch, fp8, generator, dtype, scaling):
    (other,) = set(FORMATS.values()) - {fp8}
    for number, (form, d, layout) in enumerate(((fp8, 131, dict(pad=37, shift=3)), (other, 136, {}))):
        case = Problem(dtype, form, 2, d, scaling, KINDS[number + 1], "columns", "padded", bool(number), False)
        expected = LAUNCHED[scaling][1]
        if scaling == ("tensor", 128) and not layout:  # a row, of as many numbers
            expected = LAUNCHED["row", 128][1]
        check(kernel, launched, case, layout, generator, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_a_tensor_of_one_row_is_one_launch(kernel, launched, fp8, generator, dtype):
    """As are few rows without space between them."""
    for rows, d, layout in ((1, 1032, dict(pad=8)), (4, 264, {})):
        case = Problem(dtype, fp8, rows, d, ("tensor", 128), KINDS[2], "columns", "dense", True, True)
        check(kernel, launched, case, layout, generator, LAUNCHED["row", 128][0])


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_rows_of_any_length(kernel, launched, fp8, generator, dtype):
    """Longer than any holder's registers: element by element."""
    for d, expected in ((8 * 1024 + 8, LAUNCHED["row", 128][0]), (8 * 8 * 1024 + 8, LAUNCHED["row", 128][1])):
        case = Problem(dtype, fp8, 1, d, ("row", 128), KINDS[0], "columns", "dense", False, False)
        check(kernel, launched, case, {}, generator, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_special_values(kernel, arch, generator, dtype):
    """Both kinds of NaN, infinities, zeros and subnormals beside ordinary numbers, in every place of a vector."""
    special = special_values(dtype)
    x = torch.randn(17, 256, generator=generator).to(dtype)
    places = torch.rand(x.shape, generator=generator) < 0.1
    x[places] = special[torch.randint(len(special), (int(places.sum()),), generator=generator)]
    for arguments in (
        dict(scaling="row"),
        dict(scaling="group", group_size=32, power_of_two=True),
        dict(scaling="tensor"),
    ):
        got, wanted = (module.quantize_fp8(x, **arguments) for module in (kernel, kernel.reference))
        assert_as_defined(got, wanted, str(arguments))
