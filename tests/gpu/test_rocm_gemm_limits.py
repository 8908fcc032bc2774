"""GEMMs of more rows, columns or K than the ROCm variant's kernels count: each is refused by name, or taken by a form
that counts in 64 bits. A launch has its real size, but no workgroup runs. The tensors are addresses without memory."""

import re

import pytest
import torch

from problems.reserved import reserved
from scripts.host_configs import configs

BF16 = torch.bfloat16


@pytest.fixture
def kernel(simulated_rocm, arch):
    with simulated_rocm.on(arch, sample=lambda grid: []) as module:
        yield module


ONE = torch.ones(1)


def assert_refused(why: str, call, out: torch.Tensor) -> None:
    written = out.view(torch.uint8)[:, :2]
    written.fill_(7)
    with pytest.raises(RuntimeError, match=why):
        call()
    assert (written == 7).all(), "written before it was refused"


def test_more_k_than_is_counted(kernel, launched, fp8):
    """block_scaled_gemm counts k in 32 bits."""
    for k, refused in ((2**32, True), (2**32 - 128, False)):
        a, b, out = reserved((1, k), fp8), reserved((1, k), fp8), reserved((1, 1), BF16)

        def call():
            kernel.block_scaled_gemm(a, b, ONE, ONE, out=out)

        launched.names()
        if refused:
            assert_refused(r"^block_scaled_gemm: a: K is more than 4294967168", call, out)
            assert launched.names() == []
        else:
            call()
            assert len(launched.names()) == 1


# (operator, rows): columns of the result that a launch does not number, and what it does: the most, or far more than a
# model has.
WIDE = {
    ("block_scaled_gemm", 1): (2**31 + 16, 2**28),
    ("block_scaled_gemm", 33): (2**34, 2**34 - 64),
    ("skinny_gemm", 1): (2**31 + 16, 2**26),
    ("int8_gemm", 1): (2**34, 2**34 - 64),
    ("int8_gemm", 33): (2**34, 2**34 - 64),
}


@pytest.mark.parametrize("operator, m", WIDE)
def test_more_columns_than_are_numbered(kernel, launched, fp8, operator, m):
    for n, refused in zip(WIDE[operator, m], (True, False)):
        integers = operator == "int8_gemm"
        dtype = torch.int8 if integers else fp8
        a, b = reserved((m, 1), dtype), reserved((n, 1), dtype)
        out = reserved((m, n), torch.int8 if integers else BF16)

        def call():
            getattr(kernel, operator)(a, b, ONE, ONE, out=out)

        launched.names()
        if refused:
            assert_refused(rf"^{operator}: b has more rows than", call, out)
            assert launched.names() == []
        else:
            call()
            assert len(launched.names()) == 1


def test_more_columns_than_grouped_tiles_number(kernel, launched, fp8, environment):
    """Eight rows of tiles are numbered in 31 bits, as those of the other GEMMs. Short K has wider tiles of its own."""
    environment("ROCM_FP8_KERNELS_CONFIG", "grouped_gemm:fallback")
    a, offsets = reserved((5, 1), fp8), torch.tensor([0, 5], dtype=torch.int32)
    for n, refused in ((2**34, True), (2**34 - 64, False)):
        b, out = reserved((1, n, 1), fp8), reserved((5, n), BF16)

        def call():
            kernel.grouped_gemm(a, b, ONE, ONE, offsets, out=out, expected_rows=100)

        launched.names()
        if refused:
            assert_refused("^grouped_gemm: b has more rows than", call, out)
            assert launched.names() == []
        else:
            call()
            assert len(launched.names()) == 1


def test_more_rows_than_grouped_tiles_number(kernel, launched, fp8):
    """In 31 bits, those of the last tile behind its last row, too."""
    tallest = max(form["rows"] for form in configs().tables["grouped_tiles"])
    b, offsets = reserved((1, 1, 16), fp8), torch.tensor([0, 5], dtype=torch.int32)
    for m, refused in ((2**31 - 1, True), (2**31 - tallest - 1, False)):
        a, out = reserved((m, 16), fp8), reserved((m, 1), BF16)

        def call():
            kernel.grouped_gemm(a, b, ONE, ONE, offsets, out=out)

        launched.names()
        if refused:
            assert_refused("^grouped_gemm: a and b have more rows than", call, out[:5])
            assert launched.names() == []
        else:
            call()
            assert len(launched.names()) == 1


@pytest.mark.parametrize("k, fast", [(2**22 + 16, True), (2**28 - 16, False)])
def test_rows_that_overlap_far(kernel, launched, fp8, k, fast):
    """k is larger than the stride: the place that stands for "nowhere" must lie behind all rows of a tile. Where it
    does not, the careful form takes them."""
    stride, m = 2**22 - 16, 256
    a = reserved(((m - 1) * stride + k,), fp8).as_strided((m, k), (stride, 1))
    b, out = reserved((k + 240,), fp8).as_strided((16, k), (16, 1)), reserved((m, 16), BF16)
    launched.names()
    kernel.block_scaled_gemm(a, b, ONE, ONE, out=out)
    (name,) = launched.names()
    careful = re.fullmatch(r"block_scaled_gemm_tiles<\d, true, true, false, false>", name) is not None
    assert careful != fast, name
