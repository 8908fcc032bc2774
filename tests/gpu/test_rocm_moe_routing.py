"""The ROCm variant's moe_route, moe_sort and moe_combine, simulated: the shipped library's binding, launchers and
machine code on both chips. Every kernel runs; the simulator's checks of waits, hazards, races and coherence are on.

`pytest --simulate gfx942 tests/operators/test_moe_routing.py` runs the operators' own tests there.
"""

import struct

import pytest
import torch

from problems.buffers import same_bytes
from problems.inputs import FLOATS, short
from problems.moe_routing import (
    MAPS,
    ROUTINGS,
    Combine,
    Route,
    Sort,
    assert_route,
    combined,
    draw_combine,
    draw_route,
    draw_sort,
)
from tests.gpu.simulated_kernels import simulated
from tests.settings import SEED

kernel = simulated  # the package on each chip
FAMILIES = ("moe_route", "moe_combine", "moe_sort_tile", "moe_sort_count", "moe_sort_prefix", "moe_sort_place")
INTEGERS = (torch.int32, torch.int64)


def check_sort(kernel, problem: Sort, generator) -> None:
    ids, of_map = draw_sort(problem, generator)
    got = kernel.moe_sort(ids, problem.experts, expert_map=of_map)
    wanted = kernel.reference.moe_sort(ids, problem.experts, expert_map=of_map)
    assert all(same_bytes(*pair) for pair in zip(got, wanted)), problem.id


def check_route(kernel, problem: Route, generator) -> None:
    logits, bias = draw_route(problem, generator)
    assert_route(problem, logits, bias, *kernel.moe_route(logits, problem.chosen, **problem.options(bias)))


def check_combine(kernel, problem: Combine, generator) -> None:
    o = draw_combine(problem, generator)
    out = torch.empty(problem.tokens, problem.d, dtype=problem.out)
    kernel.moe_combine(o.y, o.weights, o.positions, shared=o.shared, out=out)
    assert same_bytes(out, combined(o, problem.out)), problem.id


def test_every_kernel_runs(kernel, kernels, launched, arch, generator):
    for i, dtype in enumerate(FLOATS):
        for experts in (50, 200, 1000):
            check_route(
                kernel, Route(3, experts, 5, 3, 6, dtype, "sigmoid", True, "top2", True, 2.5, "dense"), generator
            )
        for j, out in enumerate(FLOATS):
            shared = (None, *FLOATS)[i + j - 1]
            for d in (1040, 1041):
                check_combine(kernel, Combine(2, 9, d, dtype, shared, out, "some-dropped", "dense", "dense"), generator)
    for dtype in INTEGERS:
        for tokens in (20, 700):
            check_sort(kernel, Sort(tokens, 8, 33, "some-dropped", "half", dtype), generator)
    assert set(launched.names()) == kernels.names(arch, *FAMILIES)


@pytest.mark.parametrize("tokens, launches", [(0, 1), (1, 1), (512, 1), (513, 3)])
def test_launches_depend_on_shapes_alone(kernel, launched, generator, tokens, launches):
    """So one captured graph serves every routing."""
    seen = set()
    for routing in ROUTINGS:
        check_sort(kernel, Sort(tokens, 8, 20, routing, "no-map", torch.int32), generator)
        seen.add(tuple(launched.names()))
    assert len(seen) == 1 and len(*seen) == launches


@pytest.mark.parametrize("tokens", [40, 600])
def test_the_schedule_does_not_change_bytes(simulated_rocm, arch, generator, tokens):
    for seed, resident in ((SEED, 1), (SEED + 1, 2), (SEED + 2, 16)):
        with simulated_rocm.on(arch, seed=seed, resident=resident) as kernel:
            for routing in ("any", "all-to-one", "most-dropped"):
                check_sort(kernel, Sort(tokens, 8, 256, routing, "no-map", torch.int64), generator)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_nothing_outside_is_read(kernel, generator, name, dtype):
    """Ids far beyond the range, through each map: the simulator knows the operator's tensors and no other bytes."""
    for tokens in (9, 513):
        check_sort(kernel, Sort(tokens, 8, 60, "far", name, dtype), generator)


@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_several_tokens_a_workgroup(kernel, generator, dtype):
    """More tokens than four a compute unit share workgroups of four waves; the last one has fewer."""
    many = Route(4 * 304 + 3, 8, 4, 2, 2, dtype, "softmax", False, "max", True, 1.0, "dense")
    check_route(kernel, many, generator)


@pytest.mark.parametrize("dtype, name", [(torch.int32, "no-map"), (torch.int64, "beyond")], ids=str)
@pytest.mark.parametrize("experts", [7, 1024])
def test_parts_of_several_tiles(kernel, kernels, arch, generator, dtype, name, experts):
    """As of more than 1024 tiles, which only a GPU sorts in time: the three kernels by themselves."""
    tile, threads = 4096, 512
    slots, parts, a_part = 3 * tile + 77, 2, 2 * tile
    ids, of_map = draw_sort(Sort(slots, 1, experts, "some-dropped", name, dtype), generator)
    rows, positions, counts = (torch.full((n,), 77, dtype=torch.int32) for n in (slots, slots, experts * (parts + 1)))
    offsets = torch.full((experts + 1,), 77, dtype=torch.int32)
    mapped = (0, 0) if of_map is None else (of_map.data_ptr(), of_map.numel())
    pointers = ids.data_ptr(), mapped[0], rows.data_ptr(), offsets.data_ptr(), positions.data_ptr()
    args = struct.pack("<5Qqii?7x", *pointers, slots, experts, mapped[1], dtype == torch.int64)
    work = struct.pack("<iII4xQ", 8, parts, a_part, counts.data_ptr())
    wide, tensors = str(dtype == torch.int64).lower(), [ids, of_map, rows, offsets, positions, counts]
    kernels.launch(arch, f"moe_sort_count<{wide}>", parts, threads, [args, work], tensors)
    prefix = [counts.data_ptr(), parts, experts]
    kernels.launch(arch, "moe_sort_prefix<256>", -(-experts // 4), 256, prefix, tensors)
    kernels.launch(arch, f"moe_sort_place<{wide}>", parts, threads, [args, work], tensors)
    wanted = kernel.reference.moe_sort(ids, experts, expert_map=of_map)
    assert all(same_bytes(a, b) for a, b in zip((rows, offsets, positions[:, None]), wanted))
