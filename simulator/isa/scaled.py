"""gfx950's v_cvt_scalef32_pk_*: two numbers between FP4 or FP8 and wider floats, with a power of two as their scale.

AMD's pseudocode says which bits are read and written, and that of the float32 scale only the exponent field e counts: a
narrow number times 2^(e - 127) is the wide one. It only names the conversions. The rest is from the HIP headers of
ROCm 7 (amd_hip_ocp_host.hpp), which do the same on the host:

  one rounding, to nearest even, of the exact scaled value; denormals are read and made on both sides
  e = 0 (zeros and denormals) is 2^-127; e = 255 makes every result a NaN, of FP4 the largest number
  a wide result beyond its range is an infinity; an FP4 one is 6, of a NaN too
  a narrow result has the sign of its source, NaN and zeros included

An FP8 result beyond its range is what v_cvt_pk_fp8_f32 makes of it, with MODE.FP16_OVFL and without: Composable Kernel
says NaN, the headers always saturate. What that mode makes of a 16-bit result beyond its range nobody says: refused.
Stochastic rounding, the forms of one number and of 32 (FP6) are not modelled.
"""

import numpy as np

from simulator.faults import UnsupportedError

from . import conversions as convert
from .operands import Instruction

NARROW = {"fp8": "e4m3", "bf8": "e5m2", "fp4": "e2m1"}
WIDE = ("f32", "f16", "bf16")
PAIRS = [pair for narrow in NARROW for wide in WIDE for pair in ((narrow, wide), (wide, narrow))]
NAMES = {f"v_cvt_scalef32_pk_{result}_{source}": (result, source) for result, source in PAIRS}
U32 = np.uint32
SCALES = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)  # by exponent


def _chosen(ins: Instruction, narrow: str, of_source: bool) -> int:
    """The bit of a dword where the codes stand. op_sel has two bits that choose a byte, or one that chooses a half: its
    first ones for a source, its last ones for a destination."""
    chosen, ins.op_sel = ins.op_sel or [0] * 4, None
    count = 2 if narrow == "fp4" else 1
    used = slice(0, count) if of_source else slice(len(chosen) - count, len(chosen))
    bits = chosen[used]
    if sum(chosen) != sum(bits):
        raise UnsupportedError(f"op_sel in {ins.text.line}")
    return 8 * (bits[0] + 2 * bits[1]) if count == 2 else 16 * bits[0]


def _scale(ins: Instruction, position: int):
    """[lane, 1]."""
    read = ins.source(position, "f32")
    return lambda wave: SCALES[np.ascontiguousarray(read(wave)).view(U32) >> U32(23) & U32(255), None]


def _halves(kind: str, words: np.ndarray) -> np.ndarray:
    """[lane, 2] float32 of dwords."""
    if kind == "f16":
        return convert.f16_to_f32(words.copy().view(np.float16).reshape(-1, 2))
    return np.stack([words << U32(16), words & U32(0xFFFF0000)], axis=1).view(np.float32)


def _narrowing(ins: Instruction, narrow: str, wide: str):
    form = NARROW[narrow]
    width = convert.FORMATS[form].bits
    shift = _chosen(ins, narrow, of_source=False)
    if wide == "f32":
        a, b = (ins.source(position, "f32") for position in (1, 2))
        read = lambda wave: np.stack([a(wave), b(wave)], axis=1)
    else:
        words = ins.source(1, "u32")
        read = lambda wave: _halves(wide, words(wave))
    scale = _scale(ins, len(ins.operands) - 1)
    operand = ins.operands[0]
    ins.note(operand, 1, read=True)
    ins.note(operand, 1, read=False)
    row, kept = operand.row, U32(~((1 << 2 * width) - 1 << shift) & 0xFFFFFFFF)

    def run(wave):
        value = read(wave)
        with np.errstate(invalid="ignore"):
            # Dividing by a NaN loses the sign.
            scaled = np.copysign(np.abs(value.astype(np.float64)) / scale(wave), value)
            codes = convert.encode(scaled, form, wave.fp16_overflow_clamps)
        both = codes[:, 0] | codes[:, 1] << U32(width)
        np.copyto(wave.u32[row], wave.u32[row] & kept | both << U32(shift), where=wave.mask)

    return run


def _widening(ins: Instruction, narrow: str, wide: str):
    table = convert.DECODE[NARROW[narrow]].astype(np.float64)
    width = convert.FORMATS[NARROW[narrow]].bits
    shifts, mask = _chosen(ins, narrow, of_source=True) + np.array([0, width], U32), U32((1 << width) - 1)
    codes, scale = ins.source(1, "u32"), _scale(ins, 2)
    operand, count = ins.operands[0], 2 if wide == "f32" else 1
    ins.note(operand, count, read=False)
    row, text = operand.row, ins.text.line
    dtype = np.float16 if wide == "f16" else np.float32

    def run(wave):
        with np.errstate(invalid="ignore", over="ignore"):
            exact = table[codes(wave)[:, None] >> shifts & mask] * scale(wave)
            result = exact.astype(dtype)
        if wide == "f32":
            for i in (0, 1):
                np.copyto(wave.f32[row + i], result[:, i], where=wave.mask)
            return
        if wave.fp16_overflow_clamps and (np.isinf(result) & np.isfinite(exact) & wave.mask[:, None]).any():
            raise UnsupportedError(f"a result beyond its range under MODE.FP16_OVFL: `{text}`")
        if wide == "bf16":  # float32 holds it exactly, or overflows where bfloat16 does
            result = convert.f32_to_bf16(result).astype(np.uint16)
        np.copyto(wave.u32[row], result.view(U32)[:, 0], where=wave.mask)

    return run


def build(ins: Instruction, name: str):
    """The closure for a scaled conversion, or None if it is not one of this file's."""
    if name not in NAMES:
        return None
    ins.kind = "valu"
    if ins.arch != "gfx950":
        raise UnsupportedError(f"{name} on {ins.arch}")
    result, source = NAMES[name]
    return _narrowing(ins, result, source) if result in NARROW else _widening(ins, source, result)
