"""Rows of 4 GiB and more, beyond what offsets of 32 bits reach, on the simulated ROCm variant. A launch has its real
size; of its workgroups a few run. The tensors are addresses without memory."""

import itertools

import pytest
import torch

from benchmarks.harness import simulated_rocm as simulation
from problems.buffers import same_bytes
from problems.inputs import normal, positive, short
from problems.quantize import assert_as_defined
from problems.reserved import reserved
from simulator.schedule.engine import Checks
from tests.settings import SEED

BF16, F32 = torch.bfloat16, torch.float32
REACH = {BF16: 2**31, F32: 2**30}  # elements in 4 GiB
# A record of every byte that is stored would be as large as the tensors, and four times as large again.
CHECKS = Checks(coherence=False)


def ends(grid) -> list[int]:
    """The first workgroup of a launch, and the last."""
    return sorted({0, grid[0] - 1})


@pytest.fixture
def on(simulated_rocm, arch):
    """on(sample): the package, its launches cut down to those workgroups."""

    def start(sample):
        return simulated_rocm.on(arch, seed=SEED, sample=sample, checks=CHECKS)

    return start


def places(d: int, at_once: int) -> list[slice]:
    """What the first and last workgroups of launches have in common, whatever the launches: both ends of a row, and
    of its part that 32 bits reach."""
    return [slice(0, 128), *(slice(n - 128, n) for n in range(at_once, d, at_once)), slice(d // 128 * 128 - 128, d)]


def fill(x: torch.Tensor, where: list[slice], generator) -> None:
    """Each place has a spread of its own, so that another's scale shows."""
    for number, place in enumerate(where):
        size = x[..., place].shape
        x[..., place] = normal(size, x.dtype, generator, 2.0 ** (number % 5))


def groups(where: list[slice], size: int) -> list[slice]:
    return [slice(place.start // size, -(-place.stop // size)) for place in where]


# A row alone: the end of the second launch is a workgroup that is not full. Two launches, three, two of float32.
LONG = [(BF16, 1, 2**31 + 64), (BF16, 1, 2**32 + 64), (F32, 1, 2**30 + 64), (BF16, 2, 2**31 + 128)]
IDS = dict(ids=lambda v: short(v) if isinstance(v, torch.dtype) else str(v))


@pytest.mark.parametrize("dtype, rows, d", LONG, **IDS)
def test_quantize_by_a_given_scale(on, fp8, generator, dtype, rows, d):
    where, scale = places(d, REACH[dtype]), positive((1,), generator)
    x, out = reserved((rows, d), dtype), reserved((rows, d), fp8)
    fill(x, where, generator)
    with on(ends) as kernel:
        kernel.quantize_fp8(x, scale, out=out)
        # The first row's beginning, the last one's end.
        for row, place in ((0, where[0]), (-1, where[-1])):
            wanted, _ = kernel.reference.quantize_fp8(x[row, place], scale, out_dtype=fp8)
            assert same_bytes(out[row, place], wanted)
    if rows == 1:
        assert all(out[0, place].float().any() for place in where), "a range of columns is not written to its end"


@pytest.mark.parametrize("kind", [torch.float32, torch.float8_e8m0fnu], ids=short)
@pytest.mark.parametrize("dtype, d", [(BF16, 2**31 + 128), (BF16, 2**32 + 256), (F32, 2**30 + 128)], **IDS)
def test_quantize_by_scales_of_groups(on, fp8, generator, dtype, d, kind):
    where = places(d, REACH[dtype])
    x, out, scales = (
        reserved((1, d), dtype),
        reserved((1, d), fp8),
        reserved((1, d // 128), torch.uint8 if kind.itemsize == 1 else kind),
    )
    fill(x, where, generator)
    with on(ends) as kernel:
        kernel.quantize_fp8(x, scaling="group", out=out, scale_out=scales.view(kind))
        for place, of in zip(where, groups(where, 128)):
            wanted = kernel.reference.quantize_fp8(x[:, place], scaling="group", scale_dtype=kind, out_dtype=fp8)
            assert_as_defined((out[:, place], scales.view(kind)[:, of]), wanted, str(place))


@pytest.mark.parametrize("d", [2**31 + 128, 2**32 + 128])
def test_swiglu_by_a_given_scale(on, fp8, generator, d):
    where, scale = places(d, REACH[BF16]), positive((1,), generator)
    x, out = reserved((1, 2 * d), BF16), reserved((1, d), fp8)
    gate, up = x[:, :d], x[:, d:]
    fill(gate, where, generator)
    fill(up, where, generator)
    with on(ends) as kernel:
        kernel.swiglu_fp8(x, scale, out=out)
        for place in where:
            both = torch.cat([gate[:, place], up[:, place]], -1)
            dense = torch.empty_like(out[:, place])
            kernel.swiglu_fp8(both, scale, out=dense)
            assert same_bytes(out[:, place], dense), place
            assert dense.float().any()


def test_swiglu_by_scales_of_groups(on, fp8, generator):
    d = 2**31 + 128
    where = places(d, REACH[BF16])
    x, out, scales = reserved((1, 2 * d), BF16), reserved((1, d), fp8), reserved((1, d // 128), F32)
    gate, up = x[:, :d], x[:, d:]
    fill(gate, where, generator)
    fill(up, where, generator)
    with on(ends) as kernel:
        kernel.swiglu_dynamic_fp8(x, scaling="group", out=out, scale_out=scales)
        for place, of in zip(where, groups(where, 128)):
            both = torch.cat([gate[:, place], up[:, place]], -1)
            wanted = kernel.swiglu_dynamic_fp8(both, scaling="group", out_dtype=fp8)
            assert_as_defined((out[:, place], scales[:, of]), wanted, str(place))


class Untouched(simulation.Scratch):
    """What an operator allocates is zero, and has no memory before it is touched: a maximum that no workgroup of the
    sample finds is none."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket != torch.ops.aten.new_empty:
            return function(*args, **(kwargs or {}))
        _, shape = args[:2]
        memory = reserved(tuple(shape), (kwargs or {}).get("dtype") or args[0].dtype)
        self._register(simulation.intervals(memory), True)
        return memory


def ends_of_the_second_range():
    """The sample of an operator whose launches alternate between the two ranges of columns: a range that is full has
    loops of hundreds of rounds."""
    second = itertools.cycle((False, True))
    return lambda grid: ends(grid) if next(second) else []


@pytest.mark.parametrize("row", [0, 1])
def test_a_scale_of_a_tensor_finds_the_largest_of_all_rows(on, fp8, generator, monkeypatch, row):
    """It lies behind what 32 bits reach."""
    monkeypatch.setattr(simulation, "Scratch", Untouched)
    d = 2**30 + 64
    x, out, scale = reserved((2, d), F32), reserved((2, d), fp8), torch.zeros(1)
    x[:, -64:] = normal((2, 64), F32, generator)
    x[row, -1] = 100.0
    with on(ends_of_the_second_range()) as kernel:
        kernel.quantize_fp8(x, scaling="tensor", out=out, scale_out=scale)
    with on(None) as kernel:
        wanted, of_tensor = kernel.reference.quantize_fp8(x[:, -64:], scaling="tensor", out_dtype=fp8)
        assert same_bytes(scale, of_tensor)
        assert same_bytes(out[1, -64:], wanted[1])


def test_a_scale_of_a_tensor_of_gated_values(on, fp8, generator, monkeypatch):
    """The values go through memory, as long rows as the result's."""
    monkeypatch.setattr(simulation, "Scratch", Untouched)
    d = 2**31 + 64
    x, out, scale = reserved((2, 2 * d), BF16), reserved((2, d), fp8), torch.zeros(1)
    gate, up = x[:, d - 64 : d], x[:, -64:]
    gate.copy_(normal((2, 64), BF16, generator))
    up.copy_(normal((2, 64), BF16, generator))
    with on(ends_of_the_second_range()) as kernel:
        kernel.swiglu_dynamic_fp8(x, scaling="tensor", out=out, scale_out=scale)
    with on(None) as kernel:
        wanted, of_tensor = kernel.swiglu_dynamic_fp8(torch.cat([gate, up], -1), scaling="tensor", out_dtype=fp8)
        assert same_bytes(scale, of_tensor)
        assert same_bytes(out[1, -64:], wanted[1])
