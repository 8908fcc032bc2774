"""quantize_fp8 of the ROCm variant, simulated: every compiled kernel on both chips, the bytes of the reference.

`pytest --simulate gfx942 tests/operators/test_quantize.py` runs the CPU's tests there.
"""

import pytest
import torch

from benchmarks.simulated_rocm import FORMATS
from scripts import machine_code
from tests.problems.buffers import Guarded, guarded, same_bytes
from tests.problems.inputs import FLOATS, positive, short
from tests.problems.quantize import Problem, special_values, values
from tests.settings import SEED, needs_rocm_toolchain

pytestmark = needs_rocm_toolchain
CPU = torch.device("cpu")
KIND = (torch.float32, False)


@pytest.fixture(params=FORMATS)
def arch(request) -> str:
    return request.param


@pytest.fixture
def kernel(simulated_rocm, arch):
    with simulated_rocm.on(arch, seed=SEED) as module:
        yield module


def launched(simulated_rocm) -> list[str]:
    """The kernels that have run since the last call, by readable names."""
    launches = simulated_rocm.runtime.launches
    names = machine_code.tool("llvm-cxxfilt", text="\n".join(launch[0] for launch in launches)).splitlines()
    launches.clear()
    return [machine_code.readable(name) for name in names]


# scaling and group size -> the kernels that take rows which fit, in order. {} is the type.
FLAT = {
    None: ["quantize_flat<{}, 0>"],
    ("group", 32): ["quantize_flat<{}, 4>"],
    ("group", 64): ["quantize_flat<{}, 8>"],
    ("group", 128): ["quantize_flat<{}, 16>"],
    ("tensor", 0): ["quantize_largest<{}, true>", "quantize_flat<{}, 1>"],
}
ANY = {
    None: ["quantize_any<{}, 0>"],
    ("row", 0): ["quantize_any<{}, 2>"],
    ("group", 32): ["quantize_any<{}, 3>"],
    ("tensor", 0): ["quantize_largest<{}, false>", "quantize_any<{}, 1>"],
}
# Columns -> (by a whole workgroup, vectors a thread) of a row's kernel.
ROWS = {
    120: "1, false",
    1016: "2, false",
    2048: "4, false",
    2056: "1, true",
    8200: "2, true",
    16392: "4, true",
    32776: "8, true",
}


def check(kernel, simulated_rocm, problem: Problem, layout: dict, generator, expected: list[str]) -> None:
    x = guarded(values(problem, generator), CPU, **layout)
    out = Guarded((problem.rows, problem.d), problem.fp8, CPU, **layout)
    if problem.scaling is None:
        arguments = dict(scale=positive((1,), generator))
    else:
        name, size = problem.scaling
        arguments = dict(scaling=name, group_size=size or 128)
    launched(simulated_rocm)
    q, scale = kernel.quantize_fp8(x.t, **arguments, out=out.t)
    assert launched(simulated_rocm) == [name.format(short(problem.dtype)) for name in expected]
    wanted = kernel.reference.quantize_fp8(x.t, **arguments, out_dtype=problem.fp8)
    assert same_bytes(q, wanted[0]) and same_bytes(scale, wanted[1])
    out.assert_guards_intact()


def problem(dtype, fp8, rows, d, scaling) -> Problem:
    return Problem(dtype, fp8, rows, d, scaling, KIND, "rows", "dense", False, False)


@pytest.mark.parametrize("scaling", FLAT, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_vectors(kernel, simulated_rocm, arch, generator, dtype, scaling):
    """Rows of whole groups, and of a group and a bit; several workgroups."""
    for rows, d in ((3, 1024), (5, 264)):
        case = problem(dtype, FORMATS[arch], rows, d, scaling)
        check(kernel, simulated_rocm, case, dict(pad=8), generator, FLAT[scaling])


@pytest.mark.parametrize("d", ROWS)
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_rows(kernel, simulated_rocm, arch, generator, dtype, d):
    if dtype == torch.float32 and d > 32768:
        expected = ["quantize_any<{}, 2>"]  # too many registers
    else:
        expected = [f"quantize_rows<{{}}, {ROWS[d]}>"]
    rows = 5 if ROWS[d].endswith("false") else 2  # waves without a row; a row a workgroup
    case = problem(dtype, FORMATS[arch], rows, d, ("row", 0))
    check(kernel, simulated_rocm, case, dict(pad=8), generator, expected)


@pytest.mark.parametrize("scaling", ANY, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_odd_rows_and_the_other_format(kernel, simulated_rocm, arch, generator, dtype, scaling):
    (other,) = set(FORMATS.values()) - {FORMATS[arch]}
    for fp8, d, layout in ((FORMATS[arch], 131, dict(pad=37, shift=3)), (other, 136, {})):
        case = problem(dtype, fp8, 2, d, scaling)
        check(kernel, simulated_rocm, case, layout, generator, ANY[scaling])


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
        assert same_bytes(got[1], wanted[1]) and torch.equal(got[0].float().isnan(), wanted[0].float().isnan())
        both = ~wanted[0].float().isnan()
        assert torch.equal(got[0].view(torch.uint8)[both], wanted[0].view(torch.uint8)[both])
