"""Conversions between formats: FP8 of both kinds, bfloat16, halves, integers."""

import numpy as np

from .floats import quiet


def fp8_values(fnuz: bool) -> np.ndarray:
    """The 256 values of an e4m3 byte: FNUZ (gfx942: bias 8, one NaN) or OCP (gfx950: bias 7)."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    bias = 8 if fnuz else 7
    magnitude = np.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias - 3), (8 + mantissa) * 2.0 ** (exponent - 3.0 - bias)
    )
    value = np.where(code & 0x80, -magnitude, magnitude).astype(np.float32)
    nan = code == 0x80 if fnuz else code & 0x7F == 0x7F
    value[nan] = np.nan
    return value


MANTISSA_BITS = 3
# By FNUZ or not: (exponent of the smallest normal, largest finite value).
FORMATS = {True: (-7, 240.0), False: (-6, 448.0)}
DECODE = {fnuz: fp8_values(fnuz) for fnuz in FORMATS}


def encode8(value: np.ndarray, fnuz: bool, clamp: bool) -> np.ndarray:
    """Bytes of float32 values, to nearest even. What lies beyond the range becomes NaN, or with `clamp`
    (MODE.FP16_OVFL) the largest finite value. FNUZ has no -0."""
    lowest, largest = FORMATS[fnuz]
    wide = np.nan_to_num(np.abs(value.astype(np.float64)), nan=0.0, posinf=2.0**40)
    _, exponent = np.frexp(wide)
    step = np.maximum(exponent - 1, lowest) - MANTISSA_BITS
    rounded = np.ldexp(np.rint(np.ldexp(wide, -step)), step)
    over = rounded > largest
    if clamp:
        rounded = np.minimum(rounded, largest)
        over[:] = False
    _, exponent = np.frexp(rounded)
    field = np.maximum(exponent - 1, lowest)
    digits = np.ldexp(rounded, MANTISSA_BITS - field).astype(np.int64)
    # A normal number's leading one carries into the exponent field.
    code = np.where(over | (digits == 0), 0, digits + ((field - lowest) << MANTISSA_BITS)).astype(np.uint32)
    sign = np.signbit(value).astype(np.uint32) << np.uint32(7)
    nan = np.isnan(value)
    if fnuz:
        code = np.where(code == 0, 0, code | sign)
        return np.where(nan | over, 0x80, code).astype(np.uint32)
    return np.where(nan | over, 0x7F | sign, code | sign).astype(np.uint32)


def f32_to_bf16(value: np.ndarray) -> np.ndarray:
    """The upper halves of float32 values, rounded to nearest even; NaNs stay NaNs, made quiet."""
    bits = value.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    nan = np.isnan(value)
    return np.where(nan, bits >> np.uint32(16) | np.uint32(0x40), rounded) if nan.any() else rounded


def _to_float(dtype, quiet_bit):
    @quiet
    def convert(value: np.ndarray) -> np.ndarray:
        result = value.astype(dtype)
        nan = np.isnan(result)
        if nan.any():
            # NumPy keeps a signalling NaN one.
            result.view(quiet_bit.dtype)[nan] |= quiet_bit
        return result

    return convert


f32_to_f16 = _to_float(np.float16, np.uint16(0x200))
f16_to_f32 = f64_to_f32 = _to_float(np.float32, np.uint32(0x400000))
f32_to_f64 = _to_float(np.float64, np.uint64(1 << 51))


@quiet
def _widen(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64)


def to_integer(value: np.ndarray, dtype) -> np.ndarray:
    """Towards zero, saturating; NaN gives 0."""
    limits = np.iinfo(dtype)
    wide = np.nan_to_num(_widen(value), nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
    return np.clip(np.trunc(wide), limits.min, limits.max).astype(dtype)


_encode_tables: dict[tuple, np.ndarray] = {}


def f32_to_byte(value: np.ndarray, fnuz: bool, clamp: bool) -> np.ndarray:
    """`encode8` by table: the upper 16 bits of a float32 and whether any lower bit is set decide the byte."""
    key = fnuz, clamp
    if key not in _encode_tables:
        index = np.arange(1 << 17, dtype=np.uint32)
        samples = (index >> np.uint32(1) << np.uint32(16) | index & np.uint32(1)).view(np.float32)
        with np.errstate(invalid="ignore"):
            _encode_tables[key] = encode8(samples, fnuz, clamp)
    bits = value.view(np.uint32)
    sticky = (bits & np.uint32(0xFFFF)) != 0
    return _encode_tables[key][(bits >> np.uint32(16) << np.uint32(1)) | sticky]
