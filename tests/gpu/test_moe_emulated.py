"""moe_route, moe_sort and moe_combine as NVIDIA GPUs run them, without one: warps of 32 lanes, emulated on the host.

What an emulation cannot find says host/emulated_cuda.h; on a GPU the operators' own tests run.
"""

import ctypes
import struct

import pytest
import torch

from problems.buffers import LAYOUTS, Guarded, guarded, same_bytes
from problems.moe_routing import (
    SCORINGS,
    assert_route,
    combined,
    combines,
    draw_combine,
    draw_route,
    draw_sort,
    routes,
    sorts,
)
from problems.pairwise import SAMPLE
from tests.gpu.emulated_cuda import emulated_library

TYPES = {None: 0, torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # common/types.h


@pytest.fixture(scope="module")
def emulated() -> ctypes.CDLL:
    return emulated_library("moe_routing")


def at(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@pytest.mark.parametrize("problem", [p for p in routes(SAMPLE) if p.tokens], ids=lambda p: p.id)
def test_route(emulated, generator, problem):
    logits, bias = draw_route(problem, generator)
    read, shape = guarded(logits, "cpu", **LAYOUTS[problem.layout]), (problem.tokens, problem.chosen)
    weights, experts = Guarded(shape, torch.float32, "cpu"), Guarded(shape, torch.int32, "cpu")
    pointers = at(bias), at(weights.t), at(experts.t), 0
    sizes = problem.tokens, problem.experts, problem.chosen, problem.groups, problem.top_groups
    flags = SCORINGS.index(problem.scoring), problem.group_score == "max", problem.renormalize
    start = at(read.t), read.t.stride(0), TYPES[problem.dtype]
    # Of several tokens a CTA, and of one.
    for multiprocessors in (0, 100):
        emulated.route(
            struct.pack("<Qqi4x4Qq5i2?2xf", *start, *pointers, *sizes, *flags, problem.factor), multiprocessors
        )
        for buffer in (weights, experts):
            buffer.assert_guards_intact(problem.id)
        assert_route(problem, logits, bias, weights.t, experts.t)


@pytest.mark.parametrize("problem", sorts(SAMPLE), ids=lambda p: p.id)
def test_sort(emulated, kernel, generator, problem):
    ids, of_map = draw_sort(problem, generator)
    written = [Guarded(shape, torch.int32, "cpu") for shape in ((ids.numel(),), (problem.experts + 1,), ids.shape)]
    # Without an element the binding passes an address that no kernel may read.
    map_at, mapped = (0, 0) if of_map is None else (at(of_map) or 8, of_map.numel())
    sizes = ids.numel(), problem.experts, mapped, problem.dtype == torch.int64
    emulated.sort(struct.pack("<5Qqii?7x", at(ids), map_at, *(at(each.t) for each in written), *sizes))
    for got, wanted in zip(written, kernel.reference.moe_sort(ids, problem.experts, expert_map=of_map)):
        got.assert_guards_intact(problem.id)
        assert same_bytes(got.t, wanted)


@pytest.mark.parametrize("problem", [p for p in combines(SAMPLE) if p.tokens], ids=lambda p: p.id)
def test_combine(emulated, generator, problem):
    o = draw_combine(problem, generator)
    y = guarded(o.y, "cpu", **LAYOUTS[problem.layout])
    shared = None if o.shared is None else guarded(o.shared, "cpu", **LAYOUTS[problem.layout]).t
    out = Guarded((problem.tokens, problem.d), problem.out, "cpu", **LAYOUTS[problem.layout_out])
    strides = y.t.stride(0), 0 if shared is None else shared.stride(0), out.t.stride(0)
    pointers = at(y.t), at(o.weights), at(o.positions), at(shared), at(out.t)
    types = TYPES[problem.dtype], TYPES[problem.shared], TYPES[problem.out]
    emulated.combine(
        struct.pack("<5Q6q4i", *pointers, problem.tokens, problem.d, len(o.y), *strides, problem.slots, *types)
    )
    out.assert_guards_intact(problem.id)
    assert same_bytes(out.t, combined(o, problem.out))
