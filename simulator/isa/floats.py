"""Floating point as the hardware rounds it, on arrays: one rounding, to nearest even, denormals kept.

The engine runs under np.errstate(invalid="raise"): NumPy then tells when a NaN was made from numbers, which x86 gives
the sign bit and AMD's hardware does not (0x7fc00000). `quiet` wraps the operations that can.
"""

import numpy as np

F32_TINY = 2.0**-126
_F64_TINY_BITS = np.uint64(np.float64(F32_TINY).view(np.uint64) - np.uint64(1))
_ONE = np.uint64(1)
_F64_ABS = np.uint64((1 << 63) - 1)
_TAIL = np.uint64((1 << 29) - 1)
_HALF = np.uint64(1 << 28)
DEFAULT_NAN = {4: np.uint32(0x7FC00000), 2: np.uint16(0x7E00), 8: np.uint64(0x7FF8 << 48)}


def quiet(operation):
    """`operation` with the hardware's NaN wherever no source is one."""

    def guarded(*sources):
        try:
            return operation(*sources)
        except FloatingPointError:
            with np.errstate(invalid="ignore"):
                result = operation(*sources)
                made = np.isnan(result)
                for source in sources:
                    made &= ~np.isnan(source)
                bits = result.view(f"u{result.itemsize}")
                bits[made] = DEFAULT_NAN[result.itemsize]
            return result

    return guarded


def round_to_odd(value: np.ndarray, error: np.ndarray) -> np.ndarray:
    """float64 `value + error` cut towards zero with a sticky last bit, so that a second rounding is exact."""
    bits = value.view(np.uint64)
    away = (np.signbit(value) != np.signbit(error)).astype(np.uint64)
    return np.where(error != 0, bits - away | _ONE, bits).view(np.float64)


def sum_to_f32(product: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 of the exact sum of a float64 and a float32, rounded once."""
    total = product + c
    bits = total.view(np.uint64)
    # Only sums that look like the middle between two float32 values, or denormal ones, can be rounded twice.
    doubtful = ((bits & _TAIL) == _HALF) | ((bits & _F64_ABS) - _ONE < _F64_TINY_BITS)
    if doubtful.any():
        with np.errstate(invalid="ignore"):
            part = total - product
            error = (product - (total - part)) + (c - part)
            total = np.where(doubtful, round_to_odd(total, error), total)
    return total.astype(np.float32)


@quiet
def fma32(a, b, c):
    return sum_to_f32(np.multiply(a, b, dtype=np.float64), c)


add = quiet(np.add)
subtract = quiet(np.subtract)
multiply = quiet(np.multiply)


def _with_signed_zeros(result, a, b, zero_from):
    """-0 counts as less than +0; NumPy returns either."""
    if not result.all():
        both = (a == 0) & (b == 0)
        if both.any():
            bits = result.view(f"u{result.itemsize}")
            merged = zero_from(a.view(bits.dtype), b.view(bits.dtype))
            np.copyto(bits, merged, where=both)
    return result


def _quiet_signalling(operation):
    """A signalling NaN gives itself made quiet, the first one if both sources are."""

    def guarded(a, b):
        try:
            # Comparing makes no noise, adding does (of inf - inf too: nothing is found to put right then).
            np.add(a, b)
            return operation(a, b)
        except FloatingPointError:
            with np.errstate(invalid="ignore"):
                result = operation(a, b)
                width = result.itemsize
                quiet_bit = {8: 1 << 51, 4: 0x400000, 2: 0x200}[width]
                for source in (b, a):
                    bits = np.ascontiguousarray(source).view(f"u{width}")
                    signalling = np.isnan(source) & (bits & quiet_bit == 0)
                    np.copyto(result.view(bits.dtype), bits | quiet_bit, where=signalling)
            return result

    return guarded


@_quiet_signalling
def maximum(a, b):
    """IEEE-mode v_max: a NaN loses against a number, the first source's against the second's."""
    return _with_signed_zeros(np.fmax(b, a), a, b, np.bitwise_and)


@_quiet_signalling
def minimum(a, b):
    return _with_signed_zeros(np.fmin(b, a), a, b, np.bitwise_or)


def minimum3(a, b, c):
    return minimum(minimum(a, b), c)


def maximum3(a, b, c):
    return maximum(maximum(a, b), c)


def median3(a, b, c):
    """v_med3: the least of the three where any is a NaN, else the middle one."""
    largest = maximum3(a, b, c)
    result = np.where(largest == a, maximum(b, c), np.where(largest == b, maximum(a, c), maximum(a, b)))
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, minimum3(a, b, c), result) if nan.any() else result


# The transcendental instructions: the hardware promises 1 ulp, here they are correctly rounded (but for ties that
# float64 cannot tell). They have no denormals: as sources these count as 0, as results they become 0 (LLVM scales
# around them for this reason).


def flush(value: np.ndarray) -> np.ndarray:
    small = np.abs(value) < np.float32(F32_TINY)
    return np.where(small, np.copysign(np.float32(0), value), value) if small.any() else value


@quiet
def exp2(a):
    return flush(np.exp2(flush(a).astype(np.float64)).astype(np.float32))


@quiet
def log2(a):
    return np.log2(flush(a).astype(np.float64)).astype(np.float32)


@quiet
def reciprocal(a):
    return flush(np.reciprocal(flush(a).astype(np.float64)).astype(np.float32))


@quiet
def reciprocal_square_root(a):
    return np.reciprocal(np.sqrt(flush(a).astype(np.float64))).astype(np.float32)


@quiet
def square_root(a):
    return np.sqrt(flush(a).astype(np.float64)).astype(np.float32)


def ldexp(a, b):
    return np.ldexp(a.astype(np.float64), np.clip(b, -400, 400)).astype(a.dtype)


def exponent_field(a) -> np.ndarray:
    return (a.view(np.uint32) >> np.uint32(23) & np.uint32(0xFF)).astype(np.int32)


# A division x / y is v_div_scale twice, v_rcp, five v_fma, v_div_fmas and v_div_fixup. AMD's pseudocode of these is
# loose: it scales back by 2**32 where it scaled by 2**64, and up where only down helps. Modelled is what makes the
# sequence give the correctly rounded quotient. The hardware's conformance demands that.
SCALE = 64


def division_scale(s0, s1, s2):
    """v_div_scale_f32: (result, lanes whose VCC bit is set); s1 the denominator, s2 the numerator, s0 one of them."""
    denominator, numerator = np.abs(s1.astype(np.float64)), np.abs(s2.astype(np.float64))
    quotient, reciprocal = numerator / denominator, 1 / denominator
    tiny_quotient = (quotient < F32_TINY) & (quotient > 0)
    tiny_reciprocal = (reciprocal < F32_TINY) & (reciprocal > 0)
    denormal = (denominator < F32_TINY) & (denominator > 0)
    up, down = np.ldexp(s0, SCALE), np.ldexp(s0, -SCALE)
    is_denominator, is_numerator = s0 == s1, s0 == s2
    # (which lanes, result, VCC): the first that holds counts.
    cases = [
        ((s2 == 0) | (s1 == 0), np.full_like(s0, np.nan), False),
        (exponent_field(s2) - exponent_field(s1) >= 96, np.where(is_denominator, up, s0), True),
        (denormal, up, False),
        (tiny_reciprocal & tiny_quotient, np.where(is_denominator, down, s0), True),
        (tiny_reciprocal, down, False),
        (tiny_quotient, np.where(is_numerator, up, s0), True),
        (exponent_field(s2) <= 23, up, False),
    ]
    holds = [case[0] for case in cases]
    result = np.select(holds, [case[1] for case in cases], s0).astype(np.float32)
    return result, np.select(holds, [np.full(s0.shape, case[2]) for case in cases], False)


def division_fmas(a, b, c, scaled):
    """v_div_fmas_f32: an fma whose result is scaled back, before its rounding, in the lanes whose VCC bit is set."""
    with np.errstate(invalid="ignore"):
        product = np.multiply(a, b, dtype=np.float64)
        total = product + c
        part = total - product
        error = (product - (total - part)) + (c - part)
        total = np.where(np.isfinite(total), round_to_odd(total, error), total)
        back = np.where(exponent_field(c) > 127, 2.0**SCALE, 2.0**-SCALE)
        return (total * np.where(scaled, back, 1.0)).astype(np.float32)


def division_fixup(s0, s1, s2):
    """v_div_fixup_f32: the quotient s0 of s2 / s1 with the special cases put right."""
    sign = (s1.view(np.uint32) ^ s2.view(np.uint32)) & np.uint32(1 << 31)
    quiet_bit = np.uint32(0x400000)
    infinite1, infinite2 = np.isinf(s1), np.isinf(s2)
    zero1, zero2 = s1 == 0, s2 == 0
    infinity, largest = np.uint32(0x7F800000), np.uint32(0x7FFFFFFF)
    cases = [
        (np.isnan(s2), s2.view(np.uint32) | quiet_bit),
        (np.isnan(s1), s1.view(np.uint32) | quiet_bit),
        (zero1 & zero2 | infinite1 & infinite2, np.full(s0.shape, 0xFFC00000, np.uint32)),
        (zero1 | infinite2, sign | infinity),
        (infinite1 | zero2, sign),
        # This far below the smallest denormal the nearest number is 0.
        (exponent_field(s2) - exponent_field(s1) < -150, sign),
        # The steps before overflowed, and so does the quotient.
        (np.isnan(s0), sign | infinity),
    ]
    other = s0.view(np.uint32) & largest | sign
    return np.select([c[0] for c in cases], [c[1] for c in cases], other).view(np.float32)


# v_cmp_class's mask bits, in order: signalling and quiet NaN, -inf, -normal, -denormal, -0, and their positive twins
# from +0 up.
def classify(a, mask):
    """Is each value in one of the classes that its mask names."""
    bits = a.view(np.uint32)
    sign, exponent, mantissa = bits >> 31, bits >> 23 & 255, bits & 0x7FFFFF
    kind = np.select(
        [exponent == 255, exponent > 0, mantissa > 0],
        [np.where(sign == 1, 2, 9), np.where(sign == 1, 3, 8), np.where(sign == 1, 4, 7)],
        np.where(sign == 1, 5, 6),
    )
    nan = (exponent == 255) & (mantissa != 0)
    kind = np.where(nan, np.where(mantissa & 0x400000 != 0, 1, 0), kind)
    return (mask.astype(np.int64) >> kind & 1).astype(bool)
