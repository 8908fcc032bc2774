"""common/cuda/quantize.h divides by two multiplications. That it always gives the rounded quotient's FP8 number is a
statement about integers, and all its cases can be gone through.

The kernel has q = RN(x (1 + e)), 0 <= e <= 2^-43, where the contract wants RN(x), x = y / scale; both are then rounded
to FP8. Two results can differ only if the middle between two float32 numbers lies above x and not above x (1 + e), and
one of the two is itself in the middle between two FP8 numbers. Such a float32 number is B 2^j with B odd and below 32:
four bits of FP8 and the one that makes it a middle. In integers: the middle is M = B 2^j +- 1 of 25 bits, y is Y 2^p,
scale is S, and S M is larger than Y 2^p by at most 2^-43 of it.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

SCALE_BITS = 24


def middles() -> list[int]:
    numbers = []
    for odd in range(1, 32, 2):
        aligned = odd << (25 - odd.bit_length())
        numbers += [aligned + 1, aligned - 1]
        if odd == 1:  # a power of two: the float32 number below it is half as far away
            numbers.append(2 * aligned - 1)
    return numbers


def passed_over(y_bits: int, error_bits: int) -> list[tuple[Fraction, int, int]]:
    """(y, scale, middle) of every case in which the results could differ, up to powers of two."""
    found = []
    y = np.arange(1 << (y_bits - 1), 1 << y_bits, dtype=object)  # subnormal ones are among these, shifted
    for middle in middles():
        most = SCALE_BITS + middle.bit_length()
        for power in range(most - y_bits - 2, most - y_bits + 1):
            shifted = y << power
            scale = shifted // middle + 1  # the smallest whose product is larger
            over = scale * middle - shifted
            near = (over << error_bits) <= shifted
            has_its_bits = (scale >= 1 << (SCALE_BITS - 1)) & (scale < 1 << SCALE_BITS)
            found += [(int(shifted[i]), int(scale[i]), middle) for i in np.nonzero(near & has_its_bits)[0]]
    return found


@pytest.mark.parametrize("y_bits", [11, 8], ids=["float16", "bfloat16"])
def test_no_middle_is_passed_over(y_bits):
    assert passed_over(y_bits, error_bits=43) == []


def test_the_search_finds_what_is_there():
    """With an error 1000 times as large there are such cases, and each is one."""
    found = passed_over(11, error_bits=33)
    assert found
    for y, scale, middle in found:
        quotient = Fraction(y, scale)
        assert quotient < middle <= quotient * (1 + Fraction(1, 2**33))


def nearest(value: Fraction) -> Fraction:
    """The float32 number nearest to it, ties to even."""
    exponent = exponent_of(value)
    return round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent


def exponent_of(value: Fraction) -> int:
    """Of an ulp, in the binade that holds value."""
    exponent = math.floor(math.log2(value)) - 23
    while Fraction(2) ** (exponent + 24) <= value:
        exponent += 1
    while value < Fraction(2) ** (exponent + 23):
        exponent -= 1
    return exponent


def number_before(value: Fraction) -> Fraction:
    below = Fraction(2) ** exponent_of(value)
    return value - (below / 2 if value / below == 2**23 else below)


@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_the_quotient_is_too_large_by_at_most_2_to_the_minus_43(ulps):
    """The header's formula, step by step as the kernel rounds it, for scales where it is worst, and random ones. The
    chip's estimate of the reciprocal is that many ulps off."""
    random = np.random.default_rng()
    scales = [2**23, 2**23 + 1, 2**24 - 1, 2**24 - 2, 3 << 22, *map(int, random.integers(2**23, 2**24, 500))]
    for scale in map(Fraction, scales):
        estimate = nearest(1 / scale)
        estimate += ulps * Fraction(2) ** exponent_of(estimate)
        error = 1 - scale * estimate
        near = nearest(estimate + estimate * (nearest(error) if error > 0 else -nearest(-error) if error else 0))
        high = number_before(near)
        assert 0 < 1 / scale - high <= Fraction(151, 100) * Fraction(2) ** exponent_of(1 / scale)
        low = nearest(nearest(nearest(1 - scale * high) * high) * (1 + Fraction(1, 2**21)))
        for y in (1024, 2047, *map(int, random.integers(1024, 2048, 5))):
            quotient = y * high + nearest(y * low)
            assert 0 <= quotient * scale / y - 1 <= Fraction(1, 2**43), (scale, y)
