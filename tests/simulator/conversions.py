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


def bf8_values(fnuz: bool) -> np.ndarray:
    """The 256 values of an e5m2 byte: FNUZ (bias 16, one NaN) or OCP (bias 15, infinities)."""
    code = np.arange(256)
    exponent, mantissa = code >> 2 & 31, code & 3
    bias = 16 if fnuz else 15
    magnitude = np.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias - 2), (4 + mantissa) * 2.0 ** (exponent - 2.0 - bias)
    )
    value = np.where(code & 0x80, -magnitude, magnitude).astype(np.float32)
    if fnuz:
        value[0x80] = np.nan
    else:
        value[[0x7C, 0xFC]] = np.inf, -np.inf
        value[(code & 0x7C == 0x7C) & (mantissa != 0)] = np.nan
    return value


# format: (mantissa bits, exponent of the smallest normal, largest finite value)
FORMATS = {
    ("fp8", True): (3, -7, 240.0),
    ("fp8", False): (3, -6, 448.0),
    ("bf8", True): (2, -15, 57344.0),
    ("bf8", False): (2, -14, 57344.0),
}
DECODE = {
    (name, fnuz): table(fnuz) for name, table in (("fp8", fp8_values), ("bf8", bf8_values)) for fnuz in (True, False)
}


def encode8(value: np.ndarray, name: str, fnuz: bool, clamp: bool) -> np.ndarray:
    """Bytes of float32 values, to nearest even. What lies beyond the range becomes NaN (e5m2 OCP: infinity), or with
    `clamp` (MODE.FP16_OVFL) the largest finite value. FNUZ has no -0."""
    mantissa_bits, lowest, largest = FORMATS[name, fnuz]
    wide = np.nan_to_num(np.abs(value.astype(np.float64)), nan=0.0, posinf=2.0**40)
    _, exponent = np.frexp(wide)
    step = np.maximum(exponent - 1, lowest) - mantissa_bits
    rounded = np.ldexp(np.rint(np.ldexp(wide, -step)), step)
    over = rounded > largest
    if clamp:
        rounded = np.minimum(rounded, largest)
        over[:] = False
    _, exponent = np.frexp(rounded)
    field = np.maximum(exponent - 1, lowest)
    digits = np.ldexp(rounded, mantissa_bits - field).astype(np.int64)
    # A normal number's leading one carries into the exponent field.
    code = np.where(over | (digits == 0), 0, digits + ((field - lowest) << mantissa_bits)).astype(np.uint32)
    sign = np.signbit(value).astype(np.uint32) << np.uint32(7)
    nan = np.isnan(value)
    if fnuz:
        code = np.where(code == 0, 0, code | sign)
        return np.where(nan | over, 0x80, code).astype(np.uint32)
    code = code | sign
    nan_code = 0x7F | sign
    over_code = nan_code if name == "fp8" else 0x7C | sign
    infinite_stays = np.isinf(value) & (name == "bf8")
    code = np.where(over, over_code, np.where(infinite_stays, 0x7C | sign, code))
    return np.where(nan, nan_code, code).astype(np.uint32)


def f32_to_bf16(value: np.ndarray) -> np.ndarray:
    """The upper halves of float32 values, rounded to nearest even; NaNs stay NaNs, made quiet."""
    bits = value.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    nan = np.isnan(value)
    return np.where(nan, bits >> np.uint32(16) | np.uint32(0x40), rounded) if nan.any() else rounded


@quiet
def f32_to_f16(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float16)


@quiet
def f32_to_f16_towards_zero(value: np.ndarray) -> np.ndarray:
    nearest = value.astype(np.float16)
    bits = nearest.view(np.uint16)
    with np.errstate(invalid="ignore"):
        grew = np.abs(nearest.astype(np.float32)) > np.abs(value)
    return np.where(grew, bits - np.uint16(1), bits).view(np.float16)


@quiet
def _widen(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64)


def to_integer(value: np.ndarray, dtype) -> np.ndarray:
    """Towards zero, saturating; NaN gives 0."""
    limits = np.iinfo(dtype)
    wide = np.nan_to_num(_widen(value), nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
    return np.clip(np.trunc(wide), limits.min, limits.max).astype(dtype)


_encode_tables: dict[tuple, np.ndarray] = {}


def f32_to_byte(value: np.ndarray, name: str, fnuz: bool, clamp: bool) -> np.ndarray:
    """`encode8` by table: the upper 16 bits of a float32 and whether any lower bit is set decide the byte."""
    key = name, fnuz, clamp
    if key not in _encode_tables:
        index = np.arange(1 << 17, dtype=np.uint32)
        samples = (index >> np.uint32(1) << np.uint32(16) | index & np.uint32(1)).view(np.float32)
        with np.errstate(invalid="ignore"):
            _encode_tables[key] = encode8(samples, name, fnuz, clamp)
    bits = value.view(np.uint32)
    sticky = (bits & np.uint32(0xFFFF)) != 0
    return _encode_tables[key][(bits >> np.uint32(16) << np.uint32(1)) | sticky]
