"""The operator against its reference, with bad input, and under torch.compile.

Needs a build and the variable that says where it is: see README.md.
"""

import math
import os
import random
from types import ModuleType

import pytest
import torch
from kernels import get_kernel

REPO_ID = "rocm-fp8-kernels/increment"

if f"{REPO_ID}=" not in os.environ.get("LOCAL_KERNELS", ""):
    pytest.skip(f"set LOCAL_KERNELS={REPO_ID}=FOLDER to test the build in FOLDER/build", allow_module_level=True)


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return get_kernel(REPO_ID, version=1, backend="cpu")


@pytest.fixture
def generator() -> torch.Generator:
    # A new seed each run; pytest shows the line when the test fails.
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)


def poisoned(shape: tuple[int, ...]) -> torch.Tensor:
    """NaN everywhere: an element that the kernel does not write shows."""
    return torch.full(shape, math.nan)


# No dimension, nothing to do, less than a vector, an odd tail, and enough for several threads.
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7,), (5, 33), (2, 3, 257), (300_001,)], ids=str)
def test_matches_the_reference(kernel, generator, shape):
    x = torch.randn(shape, generator=generator)
    before = x.clone()
    out = poisoned(shape)
    assert kernel.increment(x, out=out) is out
    # One float32 addition has one right result: no tolerance.
    assert torch.equal(out, kernel.reference.increment(x))
    assert torch.equal(x, before)
    assert torch.equal(kernel.increment(x), out)


def test_special_values(kernel):
    x = torch.tensor([math.nan, math.inf, -math.inf, -1.0, -0.0, 2.0**24, 1e-45])
    torch.testing.assert_close(kernel.increment(x), kernel.reference.increment(x), rtol=0, atol=0, equal_nan=True)


def test_writes_nothing_beside_out(kernel, generator):
    x = torch.randn(1000, generator=generator)
    buffer = poisoned((1200,))
    kernel.increment(x, out=buffer[100:1100])
    assert buffer[:100].isnan().all() and buffer[1100:].isnan().all()
    assert torch.equal(buffer[100:1100], x + 1)


BAD = {
    "x is float64": (lambda x: (x.double(), None), "x: dtype Double; allowed: float32"),
    "x is strided": (lambda x: (x.t(), None), r"x: shape \[6, 4\] is not contiguous"),
    "out is float16": (lambda x: (x, torch.empty(4, 6, dtype=torch.float16)), "out: dtype Half; allowed: float32"),
    "out is strided": (lambda x: (x, torch.empty(4, 12)[:, ::2]), r"out: shape \[4, 6\] is not contiguous"),
    "out has another shape": (lambda x: (x, torch.empty(6, 4)), r"out: shape \[6, 4\]; needs x's, \[4, 6\]"),
    "out has fewer dimensions": (lambda x: (x, torch.empty(24)), r"out: shape \[24\]; needs x's, \[4, 6\]"),
    "out is x": (lambda x: (x, x), "out: overlaps x in memory"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(kernel, case):
    make, message = BAD[case]
    x, out = make(torch.zeros(4, 6))
    written = x if out is None else out
    written.fill_(5)
    with pytest.raises(RuntimeError, match=message):
        kernel.increment(x, out=out)
    assert (written == 5).all()


def test_overlap_in_part(kernel):
    buffer = torch.zeros(100)
    with pytest.raises(RuntimeError, match="out: overlaps x in memory"):
        kernel.increment(buffer[:60], out=buffer[40:])
    assert (buffer == 0).all()


def test_torch_compile(kernel, generator):
    def twice(x: torch.Tensor) -> torch.Tensor:
        return kernel.increment(kernel.increment(x * 2)) - 1

    x = torch.randn(3, 50, generator=generator)
    torch.testing.assert_close(torch.compile(twice, fullgraph=True)(x), twice(x))


def test_opcheck(kernel, generator):
    x = torch.randn(5, 7, generator=generator)
    torch.library.opcheck(kernel._ops.ops.increment.default, (poisoned((5, 7)), x))
