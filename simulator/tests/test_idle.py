"""Workgroups without work: which ones are found, what is sampled instead, and what the clock makes of them."""

import dataclasses
import random

import numpy as np
import pytest

from simulator import Checks, Simulator
from simulator.counting import idle
from simulator.counting.idle import FirstAccesses, survey
from simulator.counting.profile import Profile
from simulator.counting.sharing import in_flight
from simulator.tests.harness import ARCHS, compile_hip, needs_clang
from simulator.timing import cost
from simulator.timing.recording import Recording, record

pytestmark = needs_clang

# Copies a tile of 4 KiB a workgroup, between barriers; there may be fewer tiles than workgroups.
SOURCE = r"""
#include <hip/hip_runtime.h>
struct Chunk { unsigned words[4]; };

__device__ void copy(const Chunk* in, Chunk* out, int tile) {
    __shared__ Chunk kept[256];
    __shared__ int word;
    if (threadIdx.x == 64) word = tile * 256;
    __syncthreads();
    kept[threadIdx.x] = in[word + threadIdx.x];
    __syncthreads();
    out[tile * 256 + threadIdx.x] = kept[255 - threadIdx.x];
}
extern "C" __global__ __launch_bounds__(256) void last(const Chunk* in, Chunk* out, int tiles) {
    if (int(blockIdx.x) < tiles) copy(in, out, blockIdx.x);
}
extern "C" __global__ __launch_bounds__(256) void first(const Chunk* in, Chunk* out, int tiles) {
    const int tile = int(blockIdx.x) - (int(gridDim.x) - tiles);
    if (tile >= 0) copy(in, out, tile);
}
// Each chiplet has neighbouring tiles.
extern "C" __global__ __launch_bounds__(256) void spread(const Chunk* in, Chunk* out, int tiles) {
    const int tile = blockIdx.x % 8 * (gridDim.x / 8) + blockIdx.x / 8;
    if (tile < tiles) copy(in, out, tile);
}
// How many there are stands in memory. Some waves alone access it.
extern "C" __global__ __launch_bounds__(256) void told(const Chunk* in, Chunk* out, const int* tiles) {
    if (int(blockIdx.x) < *tiles && threadIdx.x >= 192) out[blockIdx.x * 256 + threadIdx.x] = in[threadIdx.x];
}
extern "C" __global__ void waits(const Chunk* in, Chunk* out, int tiles) {
    if (int(blockIdx.x) < tiles) __builtin_amdgcn_s_sleep(1);
}
"""
GRID, TILES = 40, 28
IN, OUT = np.zeros((2, GRID * 4096), np.uint8)
COUNT = np.array([TILES], np.int32)
WORK = {
    "last": [group < TILES for group in range(GRID)],
    "first": [group >= GRID - TILES for group in range(GRID)],
    "spread": [group % 8 * 5 + group // 8 < TILES for group in range(GRID)],
    "told": [group < TILES for group in range(GRID)],
    "waits": [group < TILES for group in range(GRID)],
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_hip(SOURCE, tmp_path_factory.mktemp("idle"))


def run(library, arch: str, kernel: str, grid: int = GRID, tiles: int = TILES, **options):
    simulator = Simulator(library, arch, checks=Checks(uninitialised_lds=False, races=False, coherence=False))
    given = COUNT if kernel == "told" else tiles
    return simulator.launch(kernel, grid, 256, [IN, OUT, given], **options)


def found(library, arch: str, kernel: str, grid: int = GRID, tiles: int = TILES) -> idle.Work:
    def working(groups: list[int]) -> set[int]:
        watched = FirstAccesses()
        run(library, arch, kernel, grid, tiles, groups=groups, profile=watched)
        return watched.busy

    return survey(grid, working)


@pytest.mark.parametrize("kernel", WORK)
@pytest.mark.parametrize("arch", ARCHS)
def test_which_workgroups_have_work(library, arch, kernel):
    OUT[:] = 1
    work = found(library, arch, kernel)
    assert work.works.tolist() == WORK[kernel] and [work.has(group) for group in range(GRID)] == WORK[kernel]
    assert work.idle == GRID - TILES
    assert (OUT == 1).all()  # nothing was done


def test_where_all_are_alike(library):
    for tiles in (GRID, 0):
        work = found(library, "gfx942", "last", tiles=tiles)
        assert work.idle == 0 and work.instead([3, 0]) == [0, 3] and work.has(GRID - 1)


def test_what_is_sampled_instead(library):
    first, last = (found(library, "gfx942", kernel) for kernel in ("first", "last"))
    assert first.instead(range(4)) == [12, 13, 14, 15] and first.instead([0, 12, 20]) == [12, 13, 20]
    assert last.instead([0, 20]) == [0, 20] and last.instead([39, 20]) == [0, 20]
    assert len(last.instead(range(GRID))) == TILES
    # Of chiplet 0 those with work, and of the next where it has none.
    assert in_flight(GRID, 304, 2, first.has) == [16, 24, 32] and in_flight(GRID, 16, 1, first.has) == [16, 24]
    assert in_flight(GRID, 304, 2, lambda group: group % 8 == 3) == [3, 11, 19, 27, 35]


# What is idle of a large grid, and how far the number may be off.
LARGE = 100_000
PATTERNS = {
    "none": (lambda group: False, 0),
    "the last ones": (lambda group: group >= 99_983, 0),
    "the first ones": (lambda group: group < 123, 0),
    "those between": (lambda group: 31_234 <= group < 64_321, 0),
    "of some chiplets": (lambda group: group % 8 >= 6, 0.06 * LARGE),
    "anywhere": (lambda group: random.Random(group).random() < 0.4, 0.06 * LARGE),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_large_grid_is_looked_at_in_part(pattern):
    is_idle, slack = PATTERNS[pattern]
    looked: list[int] = []

    def working(groups: list[int]) -> set[int]:
        looked.extend(groups)
        return {group for group in groups if not is_idle(group)}

    work = survey(LARGE, working, asked=[77, 88])
    wanted = sum(map(is_idle, range(LARGE)))
    assert abs(work.idle - wanted) <= slack and {0, 77, 88, LARGE - 1} <= set(looked)
    assert len(looked) == len(set(looked)) < 600
    assert not any(is_idle(group) for group in work.instead([0, 77, 88, 50_000, LARGE - 1]))


@pytest.mark.parametrize("arch", ARCHS)
def test_the_clock_counts_those_with_work(library, arch):
    """As many as a smaller launch has, whether a sample or all are run, and wherever the idle ones are."""
    chip = dataclasses.replace(cost.CHIPS[arch], units=8)

    def estimate(kernel: str, grid: int, groups=None, idle: int = 0) -> cost.Estimate:
        watched = Profile()
        counters = run(library, arch, kernel, grid, groups=groups, profile=watched)
        counters.idle = idle
        recording = record(counters, watched)
        assert recording.grid == grid and recording.busy == TILES
        return cost.estimate(recording, chip)

    exact = estimate("last", TILES)
    sampled = [
        estimate(kernel, GRID, found(library, arch, kernel).instead([0, 20]), GRID - TILES)
        for kernel in ("last", "first", "spread")
    ]
    for each in [estimate("last", GRID), estimate("first", GRID), *sampled]:
        assert each.rounds == exact.rounds and each.bytes == exact.bytes
        assert each.parts["LDS"] == pytest.approx(exact.parts["LDS"])
        assert each.seconds == pytest.approx(exact.seconds, rel=0.05)
    # Taken for busy they would cost as much as others: five workgroups on a unit, not four.
    watched = Profile()
    counters = run(library, arch, "last", groups=[0, 20], profile=watched)
    assert cost.estimate(record(counters, watched), chip).parts["LDS"] == pytest.approx(5 / 4 * exact.parts["LDS"])


def test_recordings_that_do_not_say_have_all_busy():
    fields = {"arch": "gfx942", "grid": 40, "resident": 2, "vector": 1.0, "matrix": 0.0, "lds": 0.0, "half_lines": 1.0}
    assert Recording(**fields, buffers=(), courses=None).busy == 40
    assert Recording(**fields, buffers=(), courses=None, idle=12).busy == 28
