"""Types of operands, and writers of results to vector registers for the active lanes."""

import numpy as np

from simulator.faults import UnsupportedError

DTYPES = {
    "u32": np.uint32, "i32": np.int32, "f32": np.float32, "u64": np.uint64, "i64": np.int64, "f64": np.float64,
    "u16": np.uint16, "i16": np.int16, "f16": np.float16,
}  # fmt: skip
BITS = {name: np.dtype(kind).itemsize * 8 for name, kind in DTYPES.items()}
SIGN_BITS = {"f16": 0x8000, "f32": 0x80000000, "f64": 1 << 63}


def sign_modified(read, kind: str, operand):
    if kind not in SIGN_BITS:
        raise UnsupportedError(f"operand {operand.text} of an integer instruction")
    unsigned = np.dtype(f"u{BITS[kind] // 8}").type
    sign, dtype = unsigned(SIGN_BITS[kind]), DTYPES[kind]
    clear, flip = operand.absolute, operand.negative

    def modified(wave):
        bits = read(wave).view(unsigned)
        if clear:
            bits = bits & ~sign
        if flip:
            bits = bits ^ sign
        return bits.view(dtype)

    return modified


def word_writer(row: int, kind: str):
    if kind == "f32":

        def put(wave, value):
            if wave.full:
                wave.f32[row][:] = value
            else:
                np.copyto(wave.f32[row], value, where=wave.mask)

    elif kind == "u32":

        def put(wave, value):
            if wave.full:
                wave.u32[row][:] = value
            else:
                np.copyto(wave.u32[row], value, where=wave.mask)

    else:

        def put(wave, value):
            np.copyto(wave.i32[row], value, where=wave.mask)

    return put


def pair_writer(row: int):
    def put(wave, value):
        halves = np.ascontiguousarray(value).view(np.uint32)
        np.copyto(wave.u32[row], halves[0::2], where=wave.mask)
        np.copyto(wave.u32[row + 1], halves[1::2], where=wave.mask)

    return put


def half_writer(row: int, high: int, keep: bool):
    def put(wave, value):
        bits = value.view(np.uint16)
        if keep:
            np.copyto(wave.u16[row][high::2], bits, where=wave.mask)
        else:
            np.copyto(wave.u32[row], bits, where=wave.mask)

    return put
