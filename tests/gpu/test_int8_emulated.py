"""int8_gemm's CUDA kernels without a GPU: every tile and form, emulated on the host, against the reference's bytes.

What an emulation cannot find says host/emulated_cuda.h; on a GPU the operator's own tests run.
"""

import ctypes

import pytest
import torch

from problems.buffers import Guarded, same_bytes
from problems.inputs import FLOATS, normal
from problems.int8 import INT8, RESULTS, any_bytes, extremes, spread
from problems.pairwise import SAMPLE, pairwise
from tests.gpu.emulated_cuda import emulated_library

TILES, FORMS = 4, 14
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, INT8: 6}  # common/types.h
ACTIVATIONS = {None: 0, "relu": 1}

# M, N, K, batch, the result's type, the bias's, activation, zero points, scale_out, values, elements between rows.
CASES = pairwise(
    *((1, 7, 16, 17, 40, 64, 65, 129, 150), (1, 3, 31, 32, 64, 66, 128, 130), (1, 16, 63, 64, 80, 520, 1100), (1, 3)),
    *(RESULTS, (None, *FLOATS), (None, "relu"), (False, True), (False, True), (any_bytes, extremes), (0, 16, 5)),
    seed=SAMPLE,
)
# Of one matrix, rows of multiples of 16 bytes; more of a tile's rows and columns, parts of K, CTAs at once,
# even pieces.
FORM_CASES = pairwise(
    *((1, 7, 16, 17, 40, 64, 65, 129, 270), (1, 3, 31, 32, 64, 66, 128, 130, 264), (1, 16, 80, 128, 520, 1100), (1,)),
    *(RESULTS, (None, *FLOATS), (None, "relu"), (False, True), (False, True), (any_bytes, extremes), (0, 16)),
    *((1, 2, 3, 8), (1, 3), (0, 1)),
    seed=SAMPLE,
)


INT64, INT32 = ctypes.c_int64, ctypes.c_int32


class Rows(ctypes.Structure):
    """Of zero points, sums, an addend, a result."""

    _fields_ = [("group_stride", INT64), ("data", ctypes.c_void_p), ("row_stride", INT64)]


class Operand(ctypes.Structure):
    """common/gemm/args.h's; so is Scales."""

    _fields_ = [*Rows._fields_, ("k_stride", INT64)]


class Scales(ctypes.Structure):
    _fields_ = [
        *(*Rows._fields_, ("block_stride", INT64)),
        *(("rows", INT32), ("type", INT32), ("value", ctypes.c_float)),
    ]


class Addend(ctypes.Structure):
    _fields_ = [*Rows._fields_, ("type", INT32), ("beta", Scales)]


class Output(ctypes.Structure):
    _fields_ = [*Rows._fields_, ("type", INT32)]


class Args(ctypes.Structure):
    """int8_gemm.h's."""

    _fields_ = [
        *(("a", Operand), ("b", Operand)),
        *((name, ctypes.c_int64) for name in ("batch", "m", "n", "k")),
        *(("scale_a", Scales), ("scale_b", Scales), ("zero_a", Rows), ("sum_b", Rows), ("addend", Addend)),
        *(("activation", ctypes.c_int32), ("divides", ctypes.c_bool), ("scale_out", Scales), ("out", Output)),
        ("constant_b", ctypes.c_bool),
    ]


def of_groups(t: torch.Tensor) -> tuple[int, int, int]:
    return t.stride(0), t.data_ptr(), t.stride(1)


@pytest.fixture(scope="module")
def emulated() -> ctypes.CDLL:
    return emulated_library("int8_gemm")


def test_all_kernels_are_here(emulated):
    assert emulated.tile_count() == TILES and emulated.form_count() == FORMS


class Problem:
    """One case: operands in rows of multiples of 16 bytes and `pad` more, and what the launcher makes of them."""

    def __init__(self, generator, m, n, k, batch, dtype, bias_type, activation, zeros, divided, values, pad):
        self.what = f"{batch}x{m}x{n}x{k} {dtype} {bias_type} {activation} {zeros} {divided} {pad}"
        self.a, self.b = (Guarded((batch, rows, k), INT8, "cpu", pad=-k % 16 + pad) for rows in (m, n))
        self.a.holding(values((batch, m, k), generator)), self.b.holding(values((batch, n, k), generator))
        self.scales = spread((m, 1), generator, k), spread((1, n), generator, k)
        self.bias = None if bias_type is None else normal((n,), torch.float32, generator, 20.0).to(bias_type)
        self.options: dict = dict(activation=activation)
        if zeros:
            self.options["zero_a"] = torch.randint(-128, 128, (m, 1), generator=generator).int()
            self.options["sum_b"] = self.b.t.sum(-1, dtype=torch.int32)[:, None].contiguous()
        if divided and dtype == INT8:
            self.options["scale_out"] = torch.rand(1, generator=generator) + 0.3
        self.out = Guarded((batch, m, n), dtype, "cpu", pad=pad)

    def args(self) -> Args:
        (batch, m, k), n = self.a.t.shape, self.b.t.shape[1]
        scale_a, scale_b = self.scales
        zero_a, sum_b, scale_out = (self.options.get(name) for name in ("zero_a", "sum_b", "scale_out"))
        bias = None if self.bias is None else self.bias.data_ptr()
        bias_type = TYPES[torch.float32 if self.bias is None else self.bias.dtype]
        return Args(
            a=Operand(*of_groups(self.a.t), 1),
            b=Operand(*of_groups(self.b.t), 1),
            **dict(batch=batch, m=m, n=n, k=k),
            scale_a=Scales(0, scale_a.data_ptr(), 1),
            scale_b=Scales(0, scale_b.data_ptr(), 1),
            zero_a=Rows() if zero_a is None else Rows(0, zero_a.data_ptr(), 1),
            sum_b=Rows() if sum_b is None else Rows(n, sum_b.data_ptr(), 1),
            addend=Addend(0, bias, 0, bias_type, Scales(value=1.0)),
            activation=ACTIVATIONS[self.options["activation"]],
            divides=scale_out is not None,
            scale_out=Scales(0, None if scale_out is None else scale_out.data_ptr(), value=1.0),
            out=Output(*of_groups(self.out.t), TYPES[self.out.t.dtype]),
        )

    def assert_right(self, kernel) -> None:
        wanted = kernel.int8_gemm(
            self.a.t, self.b.t, *self.scales, self.bias, **self.options, out_dtype=self.out.t.dtype
        )
        assert same_bytes(self.out.t, wanted), self.what
        self.out.assert_guards_intact(self.what)


@pytest.mark.parametrize("tile", range(TILES))
def test_a_tile_gives_the_references_bytes(kernel, emulated, generator, tile):
    """Each tile has its share of the cases, and each case a tile."""
    for case in CASES[tile::TILES]:
        problem = Problem(generator, *case)
        operands = problem.a.t, problem.b.t
        vectors = all((t.data_ptr() | t.stride(0) | t.stride(1)) % 16 == 0 for t in operands)
        emulated.run(tile, vectors, ctypes.byref(problem.args()))
        problem.assert_right(kernel)


@pytest.mark.covering
@pytest.mark.parametrize("form", range(FORMS))
def test_a_form_gives_the_references_bytes(kernel, emulated, generator, form):
    for *case, splits, multiprocessors, even in FORM_CASES[form % 4 :: 4]:
        problem = Problem(generator, *case)
        splits = min(splits, -(-case[2] // 128)) if emulated.form_splits(form) else 1
        emulated.run_form(form, splits, even, multiprocessors, ctypes.byref(problem.args()))
        problem.what += f", {splits} parts, {multiprocessors} CTAs, even {even}"
        problem.assert_right(kernel)
