"""gfx950's v_mfma_f32_*_f8f6f4 and v_mfma_scale_f32_*_f8f6f4: FP8, FP6 and FP4, each 32 consecutive k with a scale.

CBSZ is A's type, BLGP B's: 0 e4m3, 1 e5m2, 2 e2m3, 3 e3m2, 4 e2m1. A lane holds 32 elements of A's row (B's column)
l mod M, from the lowest bit up, in 8, 6 or 4 registers. With g = ⌊l / M⌋ and G = 64 / M these are

  of 8 bits        k = 16·g on, sixteen, then k = 16·(G + g) on, sixteen
  of 6 and 4 bits  k = 32·g on

The scale of the row's k from 32·g on is a byte of the lane's dword: 2^(byte - 127), NaN for 255. OP_SEL is the lower
and OP_SEL_HI the upper bit of the byte's number; bit 0 is A's, bit 1 B's. So of 8 bits a lane's scale is not that of
the elements that it holds.

Sources: Composable Kernel's tests of these instructions (test/mx_mfma_op) have the layouts of 8 and 4 bits. They have
lists, printed by a gfx950 chip, of the lane that scales each e4m3 element. AMD's emulator rocjitsu has FP6 as FP4. LLVM
has the encodings. It takes a scale from a vector register alone: the hardware reads bits 30 to 23 of any other one.
"""

import numpy as np

from simulator.faults import UnsupportedError

from .conversions import DECODE, FORMATS
from .operands import Instruction
from .scaled import SCALES
from .wave import LANES

TYPES = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
VALUES = {kind: DECODE[kind].astype(np.float64) for kind in TYPES}
BLOCK = 32  # elements with one scale, and elements a lane


def elements(words: np.ndarray, kind: str, size: int) -> np.ndarray:
    """[lane, register] dwords as values [row, k]."""
    bits, groups, data = FORMATS[kind].bits, LANES // size, words.view(np.uint8)
    if bits == 8:
        codes = data.reshape(groups, size, 2, 16).transpose(1, 2, 0, 3)
    else:
        if bits == 4:
            codes = np.stack([data & 15, data >> 4], axis=2)
        else:
            unpacked = np.unpackbits(data, axis=1, bitorder="little").reshape(LANES, BLOCK, bits)
            codes = np.packbits(unpacked, axis=2, bitorder="little")
        codes = codes.reshape(groups, size, BLOCK).transpose(1, 0, 2)
    return VALUES[kind].take(codes.reshape(size, -1))


def registers(kind: str) -> int:
    return FORMATS[kind].bits * BLOCK // 32


def take_types(ins: Instruction) -> tuple[str, str]:
    """A's and B's."""
    numbers = ins.number("cbsz"), ins.number("blgp")
    if max(numbers) >= len(TYPES):
        raise UnsupportedError(f"a type of {ins.text.line}")
    return TYPES[numbers[0]], TYPES[numbers[1]]


def take_scales(ins: Instruction, size: int):
    """A function from a wave to A's and B's scales, [row, k] each; None where the instruction has none."""
    if not ins.mnemonic.startswith("v_mfma_scale_"):
        return None
    low, high = ins.op_sel or [0, 0], ins.op_sel_hi or [0, 0]
    ins.op_sel = ins.op_sel_hi = None
    places = []
    for side, operand in enumerate(ins.operands[4:6]):
        if operand.kind != "v":
            raise UnsupportedError(f"scale {operand.text} of {ins.mnemonic}: a vector register expected")
        ins.note(operand, 1, read=True)
        places.append((operand.row, np.uint32(8 * (low[side] + 2 * high[side]))))

    def read(wave):
        for row, shift in places:
            byte = (wave.u32[row] >> shift & np.uint32(255)).reshape(LANES // size, size)
            yield np.repeat(SCALES[byte].T, BLOCK, axis=1)

    return read
