"""MFMA and SMFMAC. The layouts are AMD's matrix calculator's, as index formulas.

A lane l of a dense instruction M × N × K holds of A the row l mod M, of B the column l mod N, and for both the
consecutive k from width·⌊l / M⌋ on, where width = K·M / 64. Of D it holds column l mod N; its register r is the row
8·⌊r / 4⌋ + 4·⌊l / 32⌋ + r mod 4 for 32 × 32, and 4·⌊l / 16⌋ + r for 16 × 16.

gfx950's instructions of twice that K hold their k in an order that nobody has confirmed here. A and B have the
same one, so it does not matter to the sum of the products. Those with types and scales of their own are in mx.py.

The products are summed in float64 with the accumulator and rounded once to float32: exactly, but where exponents lie
far apart. The hardware's order and roundings are not published; sums that float32 holds exactly are the same in any
order.
"""

import functools
import re

import numpy as np

from simulator.faults import UnsupportedError

from . import mx
from .conversions import DECODE, FP8
from .operands import Instruction
from .wave import LANES

NAME = re.compile(
    r"^v_(?P<op>mfma|smfmac)_(scale_)?(?P<result>f32|i32)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<types>\w+)$"
)
SUPPORTED = {
    "mfma_16x16x32_fp8_fp8", "mfma_32x32x16_fp8_fp8", "mfma_16x16x16_bf16", "mfma_32x32x8_bf16", "mfma_16x16x16_f16",
    "mfma_32x32x8_f16",
    "mfma_16x16x32_i8", "mfma_32x32x16_i8", "smfmac_16x16x64_fp8_fp8", "smfmac_32x32x32_fp8_fp8",
}  # fmt: skip
OF_GFX950 = {
    "mfma_16x16x128_f8f6f4", "mfma_32x32x64_f8f6f4", "mfma_16x16x64_i8", "mfma_32x32x32_i8",
    "mfma_16x16x32_bf16", "mfma_32x32x16_bf16", "mfma_16x16x32_f16", "mfma_32x32x16_f16",
}  # fmt: skip
BITS = {"fp8": 8, "i8": 8, "bf16": 16, "f16": 16}
LANE = np.arange(LANES)


def output_positions(size: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of D for [register, lane]."""
    registers = np.arange(size * size // LANES)[:, None]
    if size == 16:
        row = 4 * (LANE // 16) + registers
    else:
        row = 8 * (registers // 4) + 4 * (LANE // 32) + registers % 4
    return row, np.broadcast_to(LANE % size, row.shape)


def decoder(kind: str, arch: str):
    """A function from an array of dwords, [lane, register], to its elements, [lane, element]."""
    if kind == "fp8":
        table = DECODE[FP8[arch]].astype(np.float64)
        return lambda words: table[words.view(np.uint8)]
    if kind == "i8":
        return lambda words: words.view(np.int8).astype(np.int64)
    if kind == "f16":
        return lambda words: words.view(np.float16).astype(np.float64)
    return lambda words: (words.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def spread_sparse(stored: np.ndarray, index: np.ndarray) -> np.ndarray:
    """[lane, 2·groups] values of a 4:2 sparse row to [lane, 4·groups] dense ones.

    Each 4-bit group of a lane's index word holds the positions of its two values, the first one's lower."""
    groups = stored.shape[1] // 2
    positions = index[:, None] >> np.arange(0, 4 * groups, 2, dtype=np.uint32) & np.uint32(3)
    dense = np.zeros((LANES, 4 * groups), stored.dtype)
    column = 4 * (np.arange(2 * groups) // 2) + positions.astype(np.int64)
    if (positions[:, 0::2] == positions[:, 1::2]).any():
        raise UnsupportedError("SMFMAC: both values of a group at one position")
    np.put_along_axis(dense, column, stored, axis=1)
    return dense


def gather_matrix(values: np.ndarray, size: int) -> np.ndarray:
    """[lane, width] to [row, k]: lane l holds row l mod size, k from width·⌊l / size⌋."""
    return values.reshape(LANES // size, size, -1).transpose(1, 0, 2).reshape(size, -1)


def _rows(ins: Instruction, position: int, count: int):
    operand = ins.operands[position]
    if operand.kind not in "va" or operand.count != count:
        raise UnsupportedError(f"operand {operand.text} of {ins.mnemonic}: {count} vector registers expected")
    ins.note(operand, count, read=True)
    return slice(operand.row, operand.row + count)


def _read_rows(wave, rows: slice) -> np.ndarray:
    return np.ascontiguousarray(wave.registers.words[rows].T)


def _take_index_set(ins: Instruction, sparse: bool) -> int:
    """Of 8-bit elements: ABID chooses one of two halves of the index register, but where CBSZ is not 0."""
    index_set, first_set_alone = ins.number("abid"), ins.number("cbsz")
    if ins.number("blgp") or ((index_set or first_set_alone) and not sparse) or (index_set > 1 and not first_set_alone):
        raise UnsupportedError(ins.text.line)
    return 0 if first_set_alone else index_set


def build(ins: Instruction, name: str):
    """The closure for a matrix instruction, or None if it is not one."""
    match = NAME.match(name.removesuffix("_1k"))
    if match is None:
        return None
    ins.kind = "mfma"
    m, n, k = (int(match[each]) for each in "mnk")
    stem = f"{match['op']}_{m}x{n}x{k}_{match['types']}"
    if stem not in SUPPORTED and not (ins.arch == "gfx950" and stem in OF_GFX950):
        raise UnsupportedError(f"{name} on {ins.arch}")
    sparse = match["op"] == "smfmac"
    scaled, index_set = None, 0
    if match["types"] == "f8f6f4":
        types, scaled = mx.take_types(ins), mx.take_scales(ins, m)
        sizes = [mx.registers(kind) for kind in types]
        matrix_a, matrix_b = (functools.partial(mx.elements, kind=kind, size=m) for kind in types)
    else:
        index_set = _take_index_set(ins, sparse)
        kind = match["types"].split("_")[0]
        depth_bits = k * m // LANES * BITS[kind]
        sizes = [depth_bits // (64 if sparse else 32), depth_bits // 32]
        decode = decoder(kind, ins.arch)
        matrix_a = decode if sparse else lambda words: gather_matrix(decode(words), m)
        matrix_b = lambda words: gather_matrix(decode(words), n)
    a_rows, b_rows = (_rows(ins, position, size) for position, size in zip((1, 2), sizes))
    count = m * n // LANES
    d_operand = ins.operands[0]
    ins.note(d_operand, count, read=False)
    d_rows = slice(d_operand.row, d_operand.row + count)
    row, column = output_positions(m)
    dtype = np.float32 if match["result"] == "f32" else np.int32

    if sparse:
        c_rows = d_rows
        ins.reads |= ins.writes
        ins.note(ins.operands[3], 1, read=True)
        index_row = ins.operands[3].row
    elif ins.operands[3].kind == "constant":
        if ins.operands[3].text != "0":
            raise UnsupportedError(f"constant addend in {ins.text.line}")
        c_rows = None
    else:
        c_rows = _rows(ins, 3, count)

    def run(wave):
        if not wave.full:
            # The hardware ignores EXEC here; compilers never do this on purpose.
            raise UnsupportedError(f"{name} with inactive lanes")
        a, b = matrix_a(_read_rows(wave, a_rows)), matrix_b(_read_rows(wave, b_rows))
        if sparse:
            a = gather_matrix(spread_sparse(a, wave.u32[index_row] >> np.uint32(16 * index_set)), m)
        with np.errstate(invalid="ignore", over="ignore"):
            if scaled:
                scales_a, scales_b = scaled(wave)
                a, b = a * scales_a, b * scales_b
            product = a @ b.T
            total = product[row, column]
            if c_rows is not None:
                total = total + wave.registers.words[c_rows].view(dtype)
            if dtype is np.float32:
                total = total.astype(np.float32)
                nan = np.isnan(total)
                if nan.any():
                    total[nan] = np.float32(np.nan)
                wave.registers.words[d_rows] = total.view(np.uint32)
            else:
                wave.registers.words[d_rows] = total.astype(np.int64).astype(np.uint32)

    return run
