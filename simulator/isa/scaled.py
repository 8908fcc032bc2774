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

import re

import numpy as np

from simulator.faults import UnsupportedError

from . import conversions as convert
from .operands import Instruction

NARROW = {"fp8": "e4m3", "bf8": "e5m2", "fp4": "e2m1"}
NAME = re.compile(r"^v_cvt_scalef32_pk_(?P<result>fp8|bf8|fp4|f32|f16|bf16)_(?P<source>fp8|bf8|fp4|f32|f16|bf16)$")
WIDE = ("f32", "f16", "bf16")
NAMES = [
    f"v_cvt_scalef32_pk_{result}_{source}"
    for narrow in NARROW
    for wide in WIDE
    for result, source in ((narrow, wide), (wide, narrow))
]
U32 = np.uint32


def scales(bits: np.ndarray) -> np.ndarray:
    """2^(e - 127) of exponents e; NaN of 255."""
    return np.where(bits == 255, np.nan, np.ldexp(1.0, bits.astype(np.int32) - 127))


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
    read = ins.source(position, "f32")
    return lambda wave: scales(np.ascontiguousarray(read(wave)).view(U32) >> U32(23) & U32(255))


def _halves(kind: str, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if kind == "f16":
        pair = np.ascontiguousarray(words).view(np.float16)
        return convert.f16_to_f32(pair[0::2]), convert.f16_to_f32(pair[1::2])
    return (words << U32(16)).view(np.float32), (words & U32(0xFFFF0000)).view(np.float32)


def _narrowing(ins: Instruction, narrow: str, wide: str):
    form = NARROW[narrow]
    width = convert.FORMATS[form].bits
    shift = _chosen(ins, narrow, of_source=False)
    if wide == "f32":
        sources = [ins.source(position, "f32") for position in (1, 2)]
        read = lambda wave: [source(wave) for source in sources]
    else:
        words = ins.source(1, "u32")
        read = lambda wave: _halves(wide, words(wave))
    scale = _scale(ins, len(ins.operands) - 1)
    operand = ins.operands[0]
    ins.note(operand, 1, read=True)
    ins.note(operand, 1, read=False)
    row, kept = operand.row, U32(~((1 << 2 * width) - 1 << shift) & 0xFFFFFFFF)

    def run(wave):
        by, codes = scale(wave), 0
        with np.errstate(invalid="ignore"):
            for i, value in enumerate(read(wave)):
                # Dividing by a NaN loses the sign.
                scaled = np.copysign(np.abs(value.astype(np.float64)) / by, value)
                codes = codes | convert.encode(scaled, form, wave.fp16_overflow_clamps) << U32(i * width)
        np.copyto(wave.u32[row], wave.u32[row] & kept | codes << U32(shift), where=wave.mask)

    return run


def _widening(ins: Instruction, narrow: str, wide: str):
    table = convert.DECODE[NARROW[narrow]].astype(np.float64)
    width = convert.FORMATS[NARROW[narrow]].bits
    shift = U32(_chosen(ins, narrow, of_source=True))
    codes, scale = ins.source(1, "u32"), _scale(ins, 2)
    operand, count = ins.operands[0], 2 if wide == "f32" else 1
    ins.note(operand, count, read=False)
    row, text = operand.row, ins.text.line

    def run(wave):
        by, both = scale(wave), codes(wave) >> shift
        with np.errstate(invalid="ignore", over="ignore"):
            exact = [table[both >> U32(i * width) & U32((1 << width) - 1)] * by for i in (0, 1)]
            results = [each.astype(np.float16 if wide == "f16" else np.float32) for each in exact]
        if wide == "f32":
            for i, result in enumerate(results):
                np.copyto(wave.f32[row + i], result, where=wave.mask)
            return
        if wave.fp16_overflow_clamps:
            over = [np.isinf(result) & np.isfinite(each) & wave.mask for result, each in zip(results, exact)]
            if np.any(over):
                raise UnsupportedError(f"a result beyond its range under MODE.FP16_OVFL: `{text}`")
        # float32 holds what becomes bfloat16 exactly, or overflows where that does.
        low, high = (r.view(np.uint16) if wide == "f16" else convert.f32_to_bf16(r) for r in results)
        np.copyto(wave.u32[row], low.astype(U32) | high.astype(U32) << U32(16), where=wave.mask)

    return run


def build(ins: Instruction, name: str):
    """The closure for a scaled conversion, or None if it is not one of this file's."""
    match = NAME.match(name)
    if match is None or name not in NAMES:
        return None
    ins.kind = "valu"
    if ins.arch != "gfx950":
        raise UnsupportedError(f"{name} on {ins.arch}")
    if match["result"] in NARROW:
        return _narrowing(ins, match["result"], match["source"])
    return _widening(ins, match["source"], match["result"])
