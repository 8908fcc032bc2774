"""Estimates by the simulator's clock: a few workgroups run, on zeros; nothing is verified. Of a GEMM: all parts of one
tile."""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.harness import sections
from benchmarks.harness.forms import ARCHS, Config, Size, picked, table
from benchmarks.harness.gpu_cases import forced
from benchmarks.harness.simulated_rocm import FORMATS, SimulatedRocm, empty
from simulator import Checks
from simulator.counting.profile import Profile
from simulator.timing import cost, recording
from simulator.timing.timeline import pack

CHIPLETS, BLOCK = 8, 128
CHECKS = Checks(uninitialised_lds=False, races=False, hazards=False, coherence=False)


def parser(description: str) -> argparse.ArgumentParser:
    """--arch, --config, and what `sections.recorded` takes."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--arch", choices=ARCHS, default=ARCHS[0], help="figures of other kernels are an MI300X's")
    result.add_argument("--config", type=Config.parse, metavar="FORM[,split=N]", help="in place of what is picked")
    sections.add_options(result)
    return result


class Clock:
    """The built variant on one architecture."""

    def __init__(self, arch: str):
        self.rocm, self.arch = SimulatedRocm.built(), arch

    def recordings(self, call: Callable, sample: Callable[[tuple], list[int]], **options) -> list[recording.Recording]:
        """Of each launch that `call(kernel)` makes. sample: grid -> the workgroups that run."""
        runtime, results = self.rocm.runtime, []

        def launched(counters, beginnings) -> None:
            results.append(recording.record(counters, runtime.profile, beginnings))
            runtime.profile = Profile()

        with self.rocm.on(self.arch, sample=sample, profile=Profile(), checks=CHECKS, **options) as kernel:
            runtime.on_launched = launched
            try:
                call(kernel)
            finally:
                runtime.on_launched = None
        return results


def block_scaled(kernel, arch: str, m: int, n: int, k: int) -> Callable[[], object]:
    a, b, out = empty((m, k), FORMATS[arch]), empty((n, k), FORMATS[arch]), empty((m, n), torch.bfloat16)
    blocks = -(-k // BLOCK)
    scales = empty((m, blocks), torch.float32), empty((-(-n // BLOCK), blocks), torch.float32)
    return lambda: kernel.block_scaled_gemm(a, b, *scales, out=out)


def skinny(kernel, arch: str, m: int, n: int, k: int) -> Callable[[], object]:
    a, b, out = empty((m, k), FORMATS[arch]), empty((n, k), FORMATS[arch]), empty((m, n), torch.bfloat16)
    scales = empty((m, 1), torch.float32), empty((1, n), torch.float32)
    return lambda: kernel.skinny_gemm(a, b, *scales, out=out)


def w8a8(kernel, arch: str, m: int, n: int, k: int) -> Callable[[], object]:
    """Scales of rows and columns, a bias, a result in bfloat16."""
    a, b, out = empty((m, k), torch.int8), empty((n, k), torch.int8), empty((m, n), torch.bfloat16)
    scales = empty((m, 1), torch.float32), empty((1, n), torch.float32)
    return lambda: kernel.int8_gemm(a, b, *scales, empty((n,), torch.bfloat16), out=out)


def smoothquant(kernel, arch: str, m: int, n: int, k: int) -> Callable[[], object]:
    a, b, out = empty((m, k), torch.int8), empty((n, k), torch.int8), empty((m, n), torch.int8)
    return lambda: kernel.linear_abde_i8(a, b, empty((n,), torch.int8), 0.01, 0.5, out=out)


# Name -> what to call, and the operator whose configurations it takes.
CALLS = {
    "skinny_gemm": (skinny, "skinny_gemm"),
    "block_scaled_gemm": (block_scaled, "block_scaled_gemm"),
    "int8_gemm": (w8a8, "int8_gemm"),
    "linear_abde_i8": (smoothquant, "int8_gemm"),
}


def parts_of_a_tile(operator: str, size: Size, config: Config) -> Callable[[tuple], list[int]]:
    """grid -> the workgroups that begin with the parts of one tile (unit_at in the .hip files; stream.hip)."""
    (m, n, _), parts = size, config.split
    form = next(form for form in table(operator, "rocm") if form["name"] == config.form)
    tiles = -(-m // form["rows"]) * -(-n // form["columns"])
    per_chiplet = -(-tiles * parts // CHIPLETS)

    def first(part: int) -> int:
        if "depth" in form:  # a stream
            return tiles // 2 * parts + part
        chiplet, place = divmod(part * tiles + tiles // 2, per_chiplet)
        return place * CHIPLETS + chiplet

    def sample(grid: tuple) -> list[int]:
        if operator == "int8_gemm" and parts == 1:
            return [0]
        return sorted({group for group in map(first, range(parts)) if group < math.prod(grid)}) or [0]

    return sample


def with_adding(whole: recording.Recording, profile: Profile, parts: int) -> cost.Estimate:
    """Of a recording of all parts of a tile: the one with the longest course adds them. All workgroups share the
    bandwidth before, and these alone in the meantime: what its course takes longer is played with their number."""
    groups = sorted(profile.courses.values(), key=lambda each: sum(len(course.steps) for course in each))
    plain = replace(whole, courses=pack(groups[:1]))
    result = cost.estimate(plain, timing="profiler")  # as AITER's times are taken
    if parts == 1:
        return result
    few = replace(plain, grid=max(1, whole.busy // parts), idle=0)
    moved = cost.traffic(whole, result.chip, warm=False)
    alone, adding = (
        cost.play_unit(each, result.chip, moved)[1] for each in (few, replace(few, courses=pack(groups[-1:])))
    )
    return replace(result, seconds=result.seconds + (adding - alone) / result.chip.clock)


def estimated(rocm: SimulatedRocm, name: str, size: Size, arch: str, config: Config | None = None) -> cost.Estimate:
    """Of one of CALLS, in the configuration that the launcher picks where none is given."""
    call, operator = CALLS[name]
    taken = config or picked(operator, size, arch)
    profile, runtime = Profile(), rocm.runtime
    options = {"sample": parts_of_a_tile(operator, size, taken), "profile": profile, "checks": CHECKS}
    with rocm.on(arch, **options) as kernel, forced(operator, config):
        call(kernel, arch, *size)()
    return with_adding(recording.record(runtime.launches[-1][4], profile, runtime.beginnings), profile, taken.split)
