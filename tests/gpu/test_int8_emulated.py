"""int8_gemm's CUDA kernel without a GPU: every tile, emulated on the host, against the reference's bytes.

What an emulation cannot find says host/emulated_cuda.h; on a GPU the operator's own tests run.
"""

import ctypes

import pytest
import torch

from tests.gpu.emulated_cuda import emulated_library
from tests.problems.buffers import Guarded, same_bytes
from tests.problems.inputs import FLOATS, normal
from tests.problems.int8 import INT8, RESULTS, any_bytes, extremes, spread
from tests.problems.pairwise import pairwise
from tests.settings import SEED

TILES = 4
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, INT8: 6}  # common/types.h
ACTIVATIONS = {None: 0, "relu": 1}

# M, N, K, batch, the result's type, the bias's, activation, zero points, scale_out, values, elements between rows.
CASES = pairwise(
    *((1, 7, 16, 17, 40, 64, 65, 129, 150), (1, 3, 31, 32, 64, 66, 128, 130), (1, 16, 63, 64, 80, 520, 1100), (1, 3)),
    *(RESULTS, (None, *FLOATS), (None, "relu"), (False, True), (False, True), (any_bytes, extremes), (0, 16, 5)),
    seed=SEED,
)


class Operand(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("batch_stride", ctypes.c_int64), ("row_stride", ctypes.c_int64)]


class Scale(ctypes.Structure):
    _fields_ = [*Operand._fields_, ("value", ctypes.c_float)]


class Addend(ctypes.Structure):
    _fields_ = [*Operand._fields_, ("type", ctypes.c_int32), ("beta", Scale)]


class Output(ctypes.Structure):
    _fields_ = [*Operand._fields_, ("type", ctypes.c_int32)]


class Args(ctypes.Structure):
    """int8_gemm.h's."""

    _fields_ = [
        *(("a", Operand), ("b", Operand)),
        *((name, ctypes.c_int64) for name in ("batch", "m", "n", "k")),
        *(("scale_a", Scale), ("scale_b", Scale), ("zero_a", Operand), ("sum_b", Operand), ("addend", Addend)),
        *(("activation", ctypes.c_int32), ("divides", ctypes.c_bool), ("scale_out", Scale), ("out", Output)),
        ("constant_b", ctypes.c_bool),
    ]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> ctypes.CDLL:
    return emulated_library(tmp_path_factory.mktemp("int8"), "int8_gemm")


def test_all_tiles_are_here(emulated):
    assert emulated.tile_count() == TILES


@pytest.mark.parametrize("tile", range(TILES))
def test_every_byte_is_the_references(kernel, emulated, generator, tile):
    """Each tile has its share of the cases, and each case a tile."""
    for m, n, k, batch, dtype, bias_type, activation, zeros, divided, values, pad in CASES[tile::TILES]:
        a, b = (Guarded((batch, rows, k), INT8, "cpu", pad=-k % 16 + pad) for rows in (m, n))
        a.holding(values((batch, m, k), generator)), b.holding(values((batch, n, k), generator))
        scale_a, scale_b = spread((m, 1), generator, k), spread((1, n), generator, k)
        bias = None if bias_type is None else normal((n,), torch.float32, generator, 20.0).to(bias_type)
        options: dict = dict(activation=activation)
        if zeros:
            options["zero_a"] = torch.randint(-128, 128, (m, 1), generator=generator).int()
            options["sum_b"] = b.t.sum(-1, dtype=torch.int32)[:, None].contiguous()
        if divided and dtype == INT8:
            options["scale_out"] = torch.rand(1, generator=generator) + 0.3
        wanted = kernel.int8_gemm(a.t, b.t, scale_a, scale_b, bias, **options, out_dtype=dtype)

        out = Guarded((batch, m, n), dtype, "cpu", pad=pad)
        scale_out = options.get("scale_out")
        args = Args(
            a=Operand(a.t.data_ptr(), *a.t.stride()[:2]),
            b=Operand(b.t.data_ptr(), *b.t.stride()[:2]),
            **dict(batch=batch, m=m, n=n, k=k),
            scale_a=Scale(scale_a.data_ptr(), 0, 1),
            scale_b=Scale(scale_b.data_ptr(), 0, 1),
            zero_a=Operand(options["zero_a"].data_ptr(), 0, 1) if zeros else Operand(),
            sum_b=Operand(options["sum_b"].data_ptr(), n, 1) if zeros else Operand(),
            addend=Addend(
                None if bias is None else bias.data_ptr(), 0, 0, TYPES[bias_type or torch.float32], Scale(value=1.0)
            ),
            activation=ACTIVATIONS[activation],
            divides=scale_out is not None,
            scale_out=Scale(None if scale_out is None else scale_out.data_ptr(), 0, 0, 1.0),
            out=Output(out.t.data_ptr(), *out.t.stride()[:2], TYPES[dtype]),
        )
        vectors = all((t.data_ptr() | t.stride(0) | t.stride(1)) % 16 == 0 for t in (a.t, b.t))
        emulated.run(tile, vectors, ctypes.byref(args))
        what = f"{batch}x{m}x{n}x{k} {dtype} {bias_type} {activation} {zeros} {divided} {pad}"
        assert same_bytes(out.t, wanted), what
        out.assert_guards_intact(what)
