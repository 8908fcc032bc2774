"""Both FP8 formats written out from their definitions: nothing here is taken from torch's casts or the kernels."""

import bisect
import functools
import itertools
import math

import torch

# (exponent bias, codes of NaN, has -0)
FORMATS = {
    torch.float8_e4m3fn: (7, (0x7F, 0xFF), True),
    torch.float8_e4m3fnuz: (8, (0x80,), False),
}


@functools.cache
def decode_table(dtype: torch.dtype) -> tuple[float, ...]:
    """The value of each code: (-1)^s 2^(e - bias) (1 + m / 8), or (-1)^s 2^(1 - bias) m / 8 where e = 0."""
    bias, nans, _ = FORMATS[dtype]

    def value(code: int) -> float:
        if code in nans:
            return math.nan
        sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
        if exponent == 0:
            magnitude = math.ldexp(mantissa / 8, 1 - bias)
        else:
            magnitude = math.ldexp(1 + mantissa / 8, exponent - bias)
        return -magnitude if sign else magnitude

    return tuple(value(code) for code in range(256))


@functools.cache
def magnitudes(dtype: torch.dtype) -> tuple[float, ...]:
    """The numbers that are not negative, ascending: the index is the code."""
    return tuple(v for v in decode_table(dtype)[:128] if not math.isnan(v))


@functools.cache
def ties(dtype: torch.dtype) -> tuple[float, ...]:
    """Halfway between neighbours: where rounding changes."""
    values = magnitudes(dtype)
    return tuple((low + high) / 2 for low, high in itertools.pairwise(values))


def encode(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 -> codes (uint8): nearest, ties to even, saturating; NaN kept; no -0 where the format has none."""
    _, nans, negative_zero = FORMATS[dtype]
    halfway = torch.tensor(ties(dtype), dtype=torch.float64)
    wide = values.double().cpu()
    size = wide.abs().contiguous()
    code = torch.searchsorted(halfway, size)  # how many ties lie below
    on_tie = (code < len(halfway)) & (halfway[code.clamp(max=len(halfway) - 1)] == size)
    code = torch.where(on_tie & (code % 2 == 1), code + 1, code)
    negative = torch.signbit(wide) & (negative_zero | (code > 0))
    code = torch.where(negative, code | 0x80, code)
    return torch.where(wide.isnan(), torch.tensor(nans[0]), code).to(torch.uint8)


def encode_one(value: float, dtype: torch.dtype) -> int:
    """`encode` of one finite number that is not negative, spelt out: a second opinion on the rounding."""
    values = magnitudes(dtype)
    above = bisect.bisect_left(values, value)
    if above == len(values):
        return len(values) - 1
    if above == 0 or values[above] == value:
        return above
    down, up = value - values[above - 1], values[above] - value
    if down == up:
        return above if above % 2 == 0 else above - 1
    return above if up < down else above - 1
