"""How lanes and parts of words are chosen: DPP and SDWA modifiers of VOP instructions (GFX9)."""

from dataclasses import dataclass

import numpy as np

from simulator.faults import UnsupportedError

from .wave import LANES, mask_of

LANE = np.arange(LANES)
ROW = LANE // 16 * 16


def dpp_sources(name: str, value: str | bool) -> np.ndarray | None:
    """For each lane the lane it reads, -1 where there is none; None for a name that is no DPP control."""
    if name == "quad_perm":
        order = np.array([int(each) for each in value.strip("[]").split(",")])
        return LANE // 4 * 4 + order[LANE % 4]
    amount = int(value) if isinstance(value, str) and value.isdigit() else 0
    within = LANE % 16
    if name == "row_shl":
        return np.where(within + amount < 16, LANE + amount, -1)
    if name == "row_shr":
        return np.where(within - amount >= 0, LANE - amount, -1)
    if name == "row_ror":
        return ROW + (within - amount) % 16
    if name == "wave_shl":
        return np.where(LANE < 63, LANE + 1, -1)
    if name == "wave_rol":
        return (LANE + 1) % LANES
    if name == "wave_shr":
        return np.where(LANE > 0, LANE - 1, -1)
    if name == "wave_ror":
        return (LANE - 1) % LANES
    if name == "row_mirror":
        return ROW + 15 - within
    if name == "row_half_mirror":
        return LANE // 8 * 8 + 7 - LANE % 8
    if name == "row_newbcast":
        return ROW + amount
    if name == "row_bcast" and amount in (15, 31):
        # The last lane of a row (of two rows) goes to every lane of the next one.
        step = amount + 1
        return np.where(step <= LANE, LANE // step * step - 1, -1)
    return None


class Dpp:
    """A lane permutation of the first source; lanes without a source get 0 or are not written."""

    def __init__(self, sources: np.ndarray, rows: int, banks: int, zero: bool):
        self.sources = np.maximum(sources, 0)
        self.in_range = sources >= 0
        self.zero = zero
        self.enabled = (rows >> LANE // 16 & 1).astype(bool) & (banks >> LANE % 16 // 4 & 1).astype(bool)
        self.everywhere = bool(self.in_range.all())

    def valid(self, wave) -> np.ndarray:
        """Lanes whose source exists and is active."""
        return self.in_range if wave.full else self.in_range & wave.mask[self.sources]

    def reader(self, read):
        def permuted(wave):
            value = read(wave)[self.sources]
            if not (self.everywhere and wave.full):
                value[~self.valid(wave)] = 0
            return value

        return permuted

    def writer(self, put):
        """Restricts a write to the enabled lanes, by lowering EXEC for its duration."""

        def restricted(wave, value):
            allowed = self.enabled if self.zero else self.enabled & self.valid(wave)
            saved = wave.exec
            wave.set_exec(saved & mask_of(allowed))
            put(wave, value)
            wave.set_exec(saved)

        return restricted


def take_dpp(modifiers: dict) -> Dpp | None:
    """The DPP control among the modifiers, removed from them."""
    for name in list(modifiers):
        sources = dpp_sources(name, modifiers[name])
        if sources is not None:
            del modifiers[name]
            rows, banks = (int(modifiers.pop(each, "0xf"), 0) for each in ("row_mask", "bank_mask"))
            return Dpp(sources, rows, banks, modifiers.pop("bound_ctrl", "0") == "1")
    return None


@dataclass
class Part:
    """A byte or half of a dword."""

    shift: int
    bits: int

    @classmethod
    def parse(cls, text: str) -> "Part | None":
        if text == "DWORD":
            return None
        name, _, index = text.partition("_")
        bits = {"BYTE": 8, "WORD": 16}[name]
        return cls(int(index) * bits, bits)


@dataclass
class Sdwa:
    sources: list[Part | None]
    destination: Part | None
    unused: str

    @property
    def preserves(self) -> bool:
        return self.destination is not None and self.unused == "UNUSED_PRESERVE"


def take_sdwa(modifiers: dict) -> Sdwa:
    sources = [Part.parse(modifiers.pop(f"src{i}_sel", "DWORD")) for i in (0, 1)]
    return Sdwa(sources, Part.parse(modifiers.pop("dst_sel", "DWORD")), modifiers.pop("dst_unused", "UNUSED_PAD"))


def extract(words: np.ndarray, part: Part, signed: bool) -> np.ndarray:
    if signed:
        left = 32 - part.bits - part.shift
        return (words.view(np.int32) << left >> (32 - part.bits)).view(np.uint32)
    return words >> np.uint32(part.shift) & np.uint32((1 << part.bits) - 1)


def read_part(words, part: Part, kind: str, signed: bool):
    """A reader of that part of a word as a value of a type; halves of a 32-bit type are extended."""
    if kind in ("u32", "i32"):
        dtype = np.uint32 if kind == "u32" else np.int32
        return lambda wave: extract(words(wave), part, signed).view(dtype)
    if kind == "f32":
        raise UnsupportedError("a part of a word as a 32-bit float")
    dtype = {"f16": np.float16, "u16": np.uint16, "i16": np.int16}[kind]
    return lambda wave: extract(words(wave), part, signed).astype(np.uint16).view(dtype)


def part_writer(row: int, sdwa: Sdwa, kind: str):
    """A writer of a result to a part of a dword; the rest is cleared, sign-filled or kept."""
    part = sdwa.destination
    if part is not None and sdwa.unused == "UNUSED_SEXT":
        raise UnsupportedError("dst_unused:UNUSED_SEXT")

    def put(wave, value):
        bits = value.view(np.uint16).astype(np.uint32) if kind in ("f16", "u16", "i16") else value.view(np.uint32)
        if part is not None:
            field = np.uint32(((1 << part.bits) - 1) << part.shift)
            bits = bits << np.uint32(part.shift) & field
            if sdwa.preserves:
                bits = bits | wave.u32[row] & ~field
        np.copyto(wave.u32[row], bits, where=wave.mask)

    return put
