"""Problems of quantize_fp8: what has a scale, which scales, how inputs and scales lie in memory."""

from dataclasses import dataclass

import torch

from problems.buffers import Guarded, raw
from problems.inputs import FLOATS, FP8, normal, short
from problems.pairwise import pairwise

# Tails of vectors and of groups; rows of a wave, a workgroup, and beyond what registers hold.
WIDTHS = (1, 7, 8, 31, 32, 96, 127, 128, 136, 1032, 2880, 4096, 5120, 16384, 32776)
ROWS = (1, 2, 5, 33)
SCALINGS = (("tensor", 128), ("row", 128), ("group", 32), ("group", 64), ("group", 128))
# (scale_dtype, power_of_two)
KINDS = ((torch.float32, False), (torch.float32, True), (torch.float8_e8m0fnu, False))
# How the scales lie: allocated by the operator, row-major or column-major, or given with strides of their own.
PLACES = ("rows", "columns", "strided")
UPPER_BOUND = 1.5  # about half of the largest of `values`


@dataclass(frozen=True)
class Problem:
    dtype: torch.dtype
    fp8: torch.dtype
    rows: int
    d: int
    scaling: tuple[str, int]
    kind: tuple[torch.dtype, bool]
    place: str
    layout: str
    bound: bool  # scale_ub
    lower: bool  # fp8_max below the format's largest

    @property
    def id(self) -> str:
        name, size = self.scaling
        parts = [f"{self.rows}x{self.d}", short(self.dtype), short(self.fp8)]
        parts += [f"{name}{size if name == 'group' else ''}"]
        parts += [short(self.kind[0]) + ("-pow2" if self.kind[1] else ""), self.place, self.layout]
        return "-".join(parts + ["ub"] * self.bound + ["lower"] * self.lower)

    @property
    def fp8_max(self) -> float | None:
        return {torch.float8_e4m3fn: 256.0, torch.float8_e4m3fnuz: 224.0}[self.fp8] if self.lower else None

    def groups(self) -> int:
        name, size = self.scaling
        return -(-self.d // size) if name == "group" else 1

    def arguments(self, device) -> dict:
        name, size = self.scaling
        found = dict(scaling=name, group_size=size, scale_dtype=self.kind[0], power_of_two=self.kind[1])
        if self.bound:
            found["scale_ub"] = torch.tensor([UPPER_BOUND], device=device)
        return found | dict(fp8_max=self.fp8_max, out_dtype=self.fp8)


def sample(seed: int) -> list[Problem]:
    axes = (FLOATS, FP8, ROWS, WIDTHS, SCALINGS, KINDS, PLACES, ("dense", "padded"), (False, True), (False, True))
    return [Problem(*case) for case in pairwise(*axes, seed=seed)]


def values(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers, each row and each part of 32 with a spread of its own, so that a scale of another row or group
    shows."""
    spread = 2.0 ** torch.randint(-6, 4, (problem.rows, -(-problem.d // 32)), generator=generator)
    spread = spread.repeat_interleave(32, -1)[:, : problem.d]
    return (normal((problem.rows, problem.d), torch.float32, generator) * spread).to(problem.dtype)


def special_values(dtype: torch.dtype) -> torch.Tensor:
    """Both kinds of NaN, infinities, zeros, subnormals, the largest and smallest numbers."""
    if dtype == torch.float32:
        codes = [0x7FC00000, 0x7F800001, -0x400000, 0x7F800000, -0x800000, 0, -(2**31), 1, 0x7FFFFF, 0x800000]
        return torch.tensor([*codes, 0x7F7FFFFF], dtype=torch.int32).view(dtype)
    infinity = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}[dtype]
    positive = [infinity + 1, 0x7FFF, infinity, 0, 1, infinity - 1, 0x0100, 0x3C00]
    return torch.tensor([*positive, *(code - 2**15 for code in positive)], dtype=torch.int16).view(dtype)


def scales_for(problem: Problem, device) -> Guarded | None:
    """The scales' own buffer, in strides that are neither row-major nor column-major; None: the operator allocates."""
    if problem.place != "strided" or problem.scaling[0] == "tensor":
        return None
    return Guarded((problem.rows, problem.groups()), problem.kind[0], device, pad=3, shift=1)


def assert_as_defined(got, wanted, what: str) -> None:
    """(q, scale) have the bytes that are wanted."""
    for name, g, w in zip(("q", "scale"), got, wanted):
        assert g.shape == w.shape and g.dtype == w.dtype, f"{what}: {name}: {g.shape} {g.dtype}"
        nan = w.float().isnan().cpu()
        assert torch.equal(g.float().isnan().cpu(), nan), f"{what}: {name}: NaN"
        # Of a NaN the sign is nobody's contract.
        differs = (raw(g) != raw(w)) & ~raw(nan).bool().repeat_interleave(g.element_size())
        assert not differs.any(), f"{what}: {name}: {int(differs.sum())} bytes of {differs.numel()} differ"
