"""Instructions lane by lane on Python's integers and exact fractions: what the simulator's vector code is held to.

Written from the ISA's pseudocode, in no way from tests/simulator.
"""

import math
import struct
from fractions import Fraction

MASK = 0xFFFFFFFF
FORMATS = {"f32": (24, -126, 127), "f16": (11, -14, 15)}  # precision, least and greatest exponent


def f32(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def f16(bits: int) -> float:
    return struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0]


def s32(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits


def s64(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def round_exact(value: Fraction, kind: str) -> float:
    """The nearest number of the format, ties to even; infinity beyond the greatest."""
    if value == 0:
        return 0.0
    precision, least, greatest = FORMATS[kind]
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent += 1 if magnitude >= Fraction(2) ** (exponent + 1) else -1 if magnitude < Fraction(2) ** exponent else 0
    step = Fraction(2) ** (max(exponent, least) - precision + 1)
    rounded = round(magnitude / step) * step  # Fraction rounds half to even
    limit = Fraction(2) ** (greatest + 1)
    result = math.inf if rounded >= limit else float(rounded)
    return -result if value < 0 else result


def bits_of(value: float, kind: str) -> int:
    return int.from_bytes(struct.pack("<f" if kind == "f32" else "<e", value), "little")


NAN = {"f32": 0x7FC00000, "f16": 0x7E00}


def _settle(exact, approximate: float, sources: list[float], kind: str):
    """A result's bits: of `exact()` where it is a number; "nan" (any quiet NaN) where a source is one."""
    if any(math.isnan(source) for source in sources):
        return "nan"
    if math.isnan(approximate):
        return NAN[kind]
    if math.isinf(approximate):
        return bits_of(approximate, kind)
    value = exact()
    return bits_of(math.copysign(0.0, approximate) if value == 0 else _signed_zero(value, kind), kind)


def _signed_zero(value: Fraction, kind: str) -> float:
    rounded = round_exact(value, kind)
    return math.copysign(rounded, value)


def fma(a: float, b: float, c: float, kind: str = "f32"):
    if any(math.isnan(x) or math.isinf(x) for x in (a, b, c)):
        approximate = math.nan if (math.isinf(a) and b == 0) or (a == 0 and math.isinf(b)) else a * b + c
    else:
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        # Of a sum that is exactly 0 only the sign is taken from here.
        approximate = (
            math.copysign(1.0, exact)
            if exact
            else a * b + c
            if a and b and c
            else math.copysign(0, a) * math.copysign(1, b) + c
        )
        if a and b and c and not exact:
            approximate = 0.0
    return _settle(lambda: Fraction(a) * Fraction(b) + Fraction(c), approximate, [a, b, c], kind)


def add(a: float, b: float, kind: str = "f32"):
    return _settle(lambda: Fraction(a) + Fraction(b), a + b, [a, b], kind)


def multiply(a: float, b: float, kind: str = "f32"):
    return _settle(lambda: Fraction(a) * Fraction(b), a * b, [a, b], kind)


def signalling(bits: int) -> bool:
    return bits & 0x7F800000 == 0x7F800000 and bits & 0x7FFFFF != 0 and not bits & 0x400000


def is_nan(bits: int) -> bool:
    return math.isnan(f32(bits))


def extreme(a: int, b: int, largest: bool) -> int:
    """IEEE-mode v_min_f32 and v_max_f32 on bits: a quiet NaN loses, a signalling one wins and becomes quiet; -0 is
    below +0."""
    for bits in (a, b):
        if signalling(bits):
            return bits | 0x400000
    if is_nan(a) or is_nan(b):
        return b if is_nan(a) else a
    if f32(a) == f32(b) == 0:
        first_wins = (a >> 31 == 0) == largest
    else:
        first_wins = f32(a) >= f32(b) if largest else f32(a) < f32(b)
    return a if first_wins else b


def minimum(a: int, b: int) -> int:
    return extreme(a, b, False)


def maximum(a: int, b: int) -> int:
    return extreme(a, b, True)


def median(a: int, b: int, c: int) -> int:
    if any(map(is_nan, (a, b, c))):
        return minimum(minimum(a, b), c)
    top = f32(maximum(maximum(a, b), c))
    return maximum(b, c) if top == f32(a) else maximum(a, c) if top == f32(b) else maximum(a, b)


def flushed(a: float) -> float:
    return math.copysign(0.0, a) if abs(a) < 2.0**-126 else a


def nearest_f32(value: float) -> float:
    """A float64 as the nearest float32, overflowing to infinity."""
    return round_exact(Fraction(value), "f32") if math.isfinite(value) and value else value


def fp8_value(code: int, fnuz: bool) -> float:
    exponent, mantissa, sign = code >> 3 & 15, code & 7, -1.0 if code & 0x80 else 1.0
    if code == 0x80 and fnuz or code & 0x7F == 0x7F and not fnuz:
        return math.nan
    bias = 8 if fnuz else 7
    return sign * (mantissa / 8 * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - bias))


def fp8_code(value: float, fnuz: bool, clamp: bool = False) -> int:
    """To nearest even by looking at every code."""
    negative = math.copysign(1, value) < 0
    if math.isnan(value):
        return 0x80 if fnuz else 0xFF if negative else 0x7F
    finite = [code for code in range(0x80) if not math.isnan(fp8_value(code, fnuz))]
    greatest = finite[-1]
    # Half a step above the greatest number: from there on it overflows; a tie goes to the even code.
    top = fp8_value(greatest, fnuz)
    edge = top + (top - fp8_value(greatest - 1, fnuz)) / 2
    over = abs(value) > edge or abs(value) == edge and greatest & 1
    if over and not clamp:
        return 0x80 if fnuz else 0xFF if negative else 0x7F
    code = (
        greatest
        if over
        else min(finite, key=lambda each: (abs(Fraction(fp8_value(each, fnuz)) - abs(Fraction(value))), each & 1))
    )
    if fnuz and code == 0:
        return 0
    return code | (0x80 if negative else 0)


def permute_bytes(a: int, b: int, select: int) -> int:
    data = (a << 32 | b).to_bytes(8, "little")
    result = 0
    for position in range(4):
        s = select >> 8 * position & 0xFF
        if s >= 13:
            byte = 0xFF
        elif s == 12:
            byte = 0
        elif s >= 8:
            byte = 0xFF if data[{11: 7, 10: 5, 9: 3, 8: 1}[s]] & 0x80 else 0
        else:
            byte = data[s]
        result |= byte << 8 * position
    return result
