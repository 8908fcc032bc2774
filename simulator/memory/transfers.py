"""What vector memory and LDS instructions move: sizes, where in a register the bytes go."""

from dataclasses import dataclass

import numpy as np

from simulator.isa.wave import LANES


@dataclass(frozen=True)
class Move:
    """`size` bytes of memory an access; `sign` for sign extension; `half` 0 or 1 for a 16-bit half that is replaced
    while the other half stays, None for whole dwords."""

    size: int
    sign: bool = False
    half: int | None = None

    @property
    def registers(self) -> int:
        return max(1, self.size // 4)


LOADS = {
    "ubyte": Move(1), "sbyte": Move(1, True), "ushort": Move(2),
    "short_d16_hi": Move(2, False, 1), "dword": Move(4), "dwordx2": Move(8), "dwordx4": Move(16),
}  # fmt: skip
STORES = {
    "byte": Move(1), "byte_d16_hi": Move(1, False, 1), "short": Move(2), "short_d16_hi": Move(2, False, 1),
    "dword": Move(4), "dwordx2": Move(8), "dwordx4": Move(16),
}  # fmt: skip
DS_READS = {
    "u8": Move(1), "i8": Move(1, True), "u16": Move(2), "u16_d16_hi": Move(2, False, 1),
    "b32": Move(4), "b64": Move(8), "b96": Move(12), "b128": Move(16),
}  # fmt: skip
DS_WRITES = {"b8": Move(1), "b16": Move(2), "b32": Move(4), "b64": Move(8), "b96": Move(12), "b128": Move(16)}


def store_words(wave, row: int, move: Move, values: np.ndarray, lanes) -> None:
    """Puts values (unsigned, or V12/V16, one a lane of `lanes`) into registers from `row` on; `lanes` is an index
    array, or None for all 64."""
    if move.size >= 4:
        # One dword a column: [lane, register].
        words = values.view(np.uint32).reshape(values.shape[0], -1)
        for index in range(move.registers):
            if lanes is None:
                wave.u32[row + index][:] = words[:, index]
            else:
                wave.u32[row + index][lanes] = words[:, index]
        return
    if move.sign:
        values = values.view(f"i{move.size}").astype(np.int16 if move.half is not None else np.int32)
    at = slice(None) if lanes is None else lanes
    if move.half is None:
        wave.u32[row][at] = values.astype(np.uint32)
    else:
        wave.u16[row].reshape(LANES, 2)[at, move.half] = values.astype(np.uint16)


def load_words(wave, row: int, move: Move, lanes) -> np.ndarray:
    """The values that registers from `row` on hold for a store, one a lane of `lanes`, as `store_words` takes them."""
    at = slice(None) if lanes is None else lanes
    if move.size == 4:
        return wave.u32[row][at]
    if move.size < 4:
        words = wave.u32[row][at] >> np.uint32(16 * (move.half or 0))
        return words.astype(f"u{move.size}")
    words = np.ascontiguousarray(wave.registers.words[row : row + move.registers].T)[at]
    return words.view(f"V{move.size}" if move.size > 8 else np.uint64)[:, 0]
