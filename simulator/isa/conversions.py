"""Conversions between formats: FP8 of both kinds and the other small floats, bfloat16, halves, integers."""

from dataclasses import dataclass

import numpy as np

from .floats import quiet


@dataclass(frozen=True)
class Format:
    """A float of at most 8 bits: a sign, so many bits of exponent and of mantissa. Codes are without the sign.

    `beyond` is the code of what lies beyond the largest number, `nan` that of a NaN. FP6 and FP4 have neither."""

    exponent: int
    mantissa: int
    bias: int
    largest: float
    beyond: int | None = None
    nan: int | None = None
    fnuz: bool = False  # no -0: its code is the one NaN

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa


FORMATS = {
    "e4m3fnuz": Format(4, 3, 8, 240.0, 0, 0, fnuz=True),
    "e4m3": Format(4, 3, 7, 448.0, 0x7F, 0x7F),
    "e5m2": Format(5, 2, 15, 57344.0, 0x7C, 0x7E),  # 0x7C is infinity; of the NaN codes HIP's headers make this one
    "e2m3": Format(2, 3, 1, 7.5),
    "e3m2": Format(3, 2, 3, 28.0),
    "e2m1": Format(2, 1, 1, 6.0),
}
FP8 = {"gfx942": "e4m3fnuz", "gfx950": "e4m3"}


def values(kind: str) -> np.ndarray:
    """The values of all codes, with the sign in the highest bit."""
    form = FORMATS[kind]
    code = np.arange(1 << form.bits)
    exponent, mantissa = code >> form.mantissa & (1 << form.exponent) - 1, code & (1 << form.mantissa) - 1
    significand = np.where(exponent == 0, mantissa, mantissa + (1 << form.mantissa))
    magnitude = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - form.bias - form.mantissa)
    magnitude[magnitude > form.largest] = np.nan
    sign = 1 << form.bits - 1
    if kind == "e5m2":
        magnitude[code & ~sign == form.beyond] = np.inf
    if form.fnuz:
        magnitude[sign] = np.nan
    negative = (code & sign != 0) & ~np.isnan(magnitude)
    return np.where(negative, -magnitude, magnitude).astype(np.float32)


DECODE = {kind: values(kind) for kind in FORMATS}


def encode(value: np.ndarray, kind: str, clamp: bool) -> np.ndarray:
    """Codes of floats, to nearest even. What lies beyond the range becomes `beyond`, or with `clamp` (MODE.FP16_OVFL)
    the largest finite value. A format without NaN has the largest value for NaN too. FNUZ has no -0."""
    form = FORMATS[kind]
    lowest = 1 - form.bias
    wide = np.nan_to_num(np.abs(value.astype(np.float64)), nan=0.0, posinf=2.0**300)
    _, exponent = np.frexp(wide)
    step = np.maximum(exponent - 1, lowest) - form.mantissa
    rounded = np.ldexp(np.rint(np.ldexp(wide, -step)), step)
    nan, over = np.isnan(value), rounded > form.largest
    rounded = np.where(over | nan, form.largest, rounded)
    _, exponent = np.frexp(rounded)
    field = np.maximum(exponent - 1, lowest)
    # A normal number's leading one carries into the exponent field.
    digits = np.ldexp(rounded, form.mantissa - field).astype(np.int64)
    code = np.where(digits == 0, 0, digits + ((field - lowest) << form.mantissa)).astype(np.uint32)
    if form.nan is not None:
        code = np.where(nan, form.nan, code if clamp else np.where(over, form.beyond, code)).astype(np.uint32)
    sign = np.signbit(value).astype(np.uint32) << np.uint32(form.bits - 1)
    if form.fnuz:
        return np.where(nan | (over & (not clamp)), 0x80, np.where(code == 0, 0, code | sign)).astype(np.uint32)
    return code | sign


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


def f32_to_byte(value: np.ndarray, kind: str, clamp: bool) -> np.ndarray:
    """`encode` by table: the upper 16 bits of a float32 and whether any lower bit is set decide the byte."""
    key = kind, clamp
    if key not in _encode_tables:
        index = np.arange(1 << 17, dtype=np.uint32)
        samples = (index >> np.uint32(1) << np.uint32(16) | index & np.uint32(1)).view(np.float32)
        with np.errstate(invalid="ignore"):
            _encode_tables[key] = encode(samples, kind, clamp)
    bits = value.view(np.uint32)
    sticky = (bits & np.uint32(0xFFFF)) != 0
    return _encode_tables[key][(bits >> np.uint32(16) << np.uint32(1)) | sticky]
