"""The operator against its reference, with bad input, and under torch.compile: on the GPU that torch finds, else on the CPU.

Needs a build for that backend and the variable that says where it is: see README.md. INCREMENT_BACKEND=cpu tests the CPU
variant on a machine with a GPU.
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
def backend() -> str:
    found = "cpu" if not torch.cuda.is_available() else "rocm" if torch.version.hip else "cuda"
    return os.environ.get("INCREMENT_BACKEND", found)


@pytest.fixture(scope="module")
def kernel(backend) -> ModuleType:
    return get_kernel(REPO_ID, version=1, backend=backend)


@pytest.fixture(scope="module")
def device(backend) -> torch.device:
    return torch.device("cpu" if backend == "cpu" else "cuda")  # "cuda" is ROCm's device, too


@pytest.fixture
def normal(device):
    """normal(*shape): random numbers."""
    # A new seed each run; pytest shows the line when the test fails.
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator).to(device)


def poisoned(*shape: int, device: torch.device) -> torch.Tensor:
    """NaN everywhere: an element that the kernel does not write shows."""
    return torch.full(shape, math.nan, device=device)


# No dimension, nothing to do, less than a vec4, odd ends, and enough for several threads and many blocks.
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7,), (5, 33), (2, 3, 257), (1024,), (300_001,)], ids=str)
def test_matches_the_reference(kernel, device, normal, shape):
    x = normal(*shape)
    before = x.clone()
    out = poisoned(*shape, device=device)
    assert kernel.increment(x, out=out) is out
    # One float32 addition has one right result: no tolerance.
    assert torch.equal(out, kernel.reference.increment(x))
    assert torch.equal(x, before)
    assert torch.equal(kernel.increment(x), out)


def test_special_values(kernel, device):
    x = torch.tensor([math.nan, math.inf, -math.inf, -1.0, -0.0, 2.0**24, 1e-45], device=device)
    torch.testing.assert_close(kernel.increment(x), kernel.reference.increment(x), rtol=0, atol=0, equal_nan=True)


# A GPU takes 16 bytes at a time where both tensors start at a multiple of 16 bytes, else an element.
@pytest.mark.parametrize("x_at, out_at", [(0, 100), (0, 1), (3, 0), (2, 101)])
@pytest.mark.parametrize("count", [1, 3, 4, 255, 1000, 1030])
def test_writes_nothing_beside_out(kernel, device, normal, x_at, out_at, count):
    x = normal(x_at + count)[x_at:]
    buffer = poisoned(out_at + count + 100, device=device)
    kernel.increment(x, out=buffer[out_at : out_at + count])
    assert buffer[:out_at].isnan().all() and buffer[out_at + count :].isnan().all()
    assert torch.equal(buffer[out_at : out_at + count], x + 1)


BAD = {
    "x is float64": (lambda x: (x.double(), None), "x: dtype Double; allowed: float32"),
    "x is strided": (lambda x: (x.t(), None), r"x: shape \[6, 4\] is not contiguous"),
    "out is float16": (lambda x: (x, x.half()), "out: dtype Half; allowed: float32"),
    "out is strided": (lambda x: (x, x.new_empty(4, 12)[:, ::2]), r"out: shape \[4, 6\] is not contiguous"),
    "out has another shape": (lambda x: (x, x.new_empty(6, 4)), r"out: shape \[6, 4\]; needs x's, \[4, 6\]"),
    "out has fewer dimensions": (lambda x: (x, x.new_empty(24)), r"out: shape \[24\]; needs x's, \[4, 6\]"),
    "out is x": (lambda x: (x, x), "out: overlaps x in memory"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(kernel, device, case):
    make, message = BAD[case]
    x, out = make(torch.zeros(4, 6, device=device))
    written = x if out is None else out
    written.fill_(5)
    with pytest.raises(RuntimeError, match=message):
        kernel.increment(x, out=out)
    assert (written == 5).all()


def test_overlap_in_part(kernel, device):
    buffer = torch.zeros(100, device=device)
    with pytest.raises(RuntimeError, match="out: overlaps x in memory"):
        kernel.increment(buffer[:60], out=buffer[40:])
    assert (buffer == 0).all()


def test_torch_compile(kernel, normal):
    def twice(x: torch.Tensor) -> torch.Tensor:
        return kernel.increment(kernel.increment(x * 2)) - 1

    x = normal(3, 50)
    torch.testing.assert_close(torch.compile(twice, fullgraph=True)(x), twice(x))


def test_opcheck(kernel, device, normal):
    torch.library.opcheck(kernel._ops.ops.increment.default, (poisoned(5, 7, device=device), normal(5, 7)))


def test_runs_on_the_current_stream(kernel, device, normal):
    """A graph holds what was launched on the stream that captured it."""
    if device.type == "cpu":
        pytest.skip("a CPU has no streams")
    x = normal(1000)
    out = kernel.increment(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.increment(x, out=out)
    x.mul_(2)
    graph.replay()
    assert torch.equal(out, x + 1)
