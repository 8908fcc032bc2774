"""Problems of swiglu_fp8, and the bounds of its silu against float64."""

from dataclasses import dataclass

import torch

from problems import fp8_by_definition as definition
from problems.comparisons import assert_between
from problems.inputs import FP8, HALF, every_number, short

# Tails of vectors of 8, 16 and 32 lanes; odd d, which puts `up` off any alignment; model sizes.
WIDTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 1536, 2880, 4095, 14336)
ROWS = (0, 1, 3, 33)
FORMS = [(dtype, fp8) for dtype in HALF for fp8 in FP8]


@dataclass(frozen=True)
class Problem:
    form: tuple[torch.dtype, torch.dtype]  # of x and the result
    rows: int
    d: int  # of the result; x has 2 d columns
    layout: str

    @property
    def id(self) -> str:
        return f"{self.rows}x{self.d}-{short(self.form[0])}-{short(self.form[1])}-{self.layout}"


def silu_bounds(gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 numbers 2 ulp either side of the exact silu."""
    wide = gates.double()
    exact = (wide / (1 + torch.exp(-wide))).float()
    infinity = torch.tensor(torch.inf)
    low = torch.nextafter(torch.nextafter(exact, -infinity), -infinity)
    high = torch.nextafter(torch.nextafter(exact, infinity), infinity)
    # Beyond the largest number there is only infinity, which is right for infinity alone.
    return torch.where(exact.isinf(), exact, low), torch.where(exact.isinf(), exact, high)


def assert_every_gate_within_two_ulps(
    kernel, device, generator, dtype: torch.dtype, fp8: torch.dtype, rounds: int = 4
) -> None:
    """swiglu_fp8 of every finite 16-bit gate, against bounds of the exact silu; in each round with another `up`."""
    gates = every_number(dtype)
    gates = gates[gates.isfinite()]
    low, high = (bound.to(dtype) for bound in silu_bounds(gates))
    # `up` brings each product to about 1 with a mantissa of its own: FP8 shows few of silu's bits, but an ulp of
    # the 16-bit type carries one quotient in sixteen across a tie.
    exponent = torch.frexp(torch.maximum(low.float().abs(), high.float().abs())).exponent
    scale = torch.tensor([0.02])
    for _ in range(rounds):
        mantissa = 0.5 + 1.5 * torch.rand(len(gates), generator=generator)
        up = torch.ldexp(mantissa, -exponent).clamp(max=torch.finfo(dtype).max).to(dtype)
        got = kernel.swiglu_fp8(torch.cat([gates, up])[None].to(device), scale.to(device), out_dtype=fp8)[0]
        ends = []
        for g in (low, high):
            ends.append(definition.encode((g * up).float() / scale, fp8).view(fp8))
        assert_between(got.cpu(), *ends, "silu")
