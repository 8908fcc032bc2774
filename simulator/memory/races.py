"""LDS races by happens-before: vector clocks of the waves of a workgroup, a shadow of who touched each LDS word when.

What orders waves: s_barrier, and flags. Machine code does not say which words are flags. But who waits for a flag reads
it until it has changed, and schedule/polling.py finds these reads in the program: looks. A dword that all active lanes
write at one address (one lane, too) is a release, and a look at such a word, by all active lanes alike, an acquire.
That look alone may be unordered with that write. Any other two accesses of two waves to a byte, of which one writes,
race unless something orders them: a flag's word read other than in a look, a word that all waves read, change and
write, flags that two waves set at once, and flags written in part or together with other words. Waves that write the
same values to a word do not race with each other.

So a flag that is looked at once, or with other work between the looks, is not known as one: a false alarm.

The LDS executes the operations of one wave in their order. So a flag that a wave writes behind its reads and writes of
data is set after them, waited for or not; what is not safe, and found:

  a flag written before the reads of the slot that it frees are issued, or before the data that it announces
  data read before the flag that announces it, even if the flag, once it is there, says that it had been set
  loads from memory to LDS (vmcnt) that nobody waited for when the flag is set: they land at any time
  s_barrier with LDS operations that were not waited for (lgkmcnt): between waves nothing keeps these in order
"""

import numpy as np

from simulator.faults import RaceFault

from .coherence import Knowledge

WORD = 4


class Races:
    """`unit` is the size of a shadow cell in bytes: 4, or 1 where a kernel has smaller accesses."""

    def __init__(self, size: int, waves: int, unit: int):
        cells = -(-size // unit) + WORD
        self.unit = unit
        self.clocks = np.eye(waves, dtype=np.int32)
        self.writer = np.zeros(cells, np.int16)
        self.write_epoch = np.zeros(cells, np.int32)
        # Of reads, and of looks.
        self.read_epoch = np.zeros((waves, cells), np.int32)
        self.look_epoch = np.zeros((waves, cells), np.int32)
        # The epoch up to which all operations of a wave have been waited for.
        self.complete = np.zeros(waves, np.int32)
        self.released: dict[int, np.ndarray] = {}
        # What the waves know of global memory goes with what orders LDS (coherence.py); by wave, and by flag.
        self.knowledge: list[Knowledge] = [Knowledge() for _ in range(waves)]
        self.carried: dict[int, Knowledge] = {}
        self.is_flag = np.zeros(cells, bool)

    def cells(self, addresses: np.ndarray, size: int) -> np.ndarray:
        first = addresses // self.unit
        count = -(-size // self.unit)
        if (addresses % self.unit).any():
            count += 1
        return first if count == 1 else (first[:, None] + np.arange(count)).ravel()

    @staticmethod
    def _one_word(addresses: np.ndarray, size: int) -> bool:
        return size == WORD and bool((addresses == addresses[0]).all())

    def _check(self, cells: np.ndarray, unordered: np.ndarray, others: np.ndarray, what: str) -> None:
        if unordered.any():
            at = int(np.flatnonzero(unordered)[0])
            raise RaceFault(
                f"LDS bytes from {int(cells[at]) * self.unit} on: {what} wave {int(others[at])} is not ordered with "
                "this access by a barrier or a flag"
            )

    def _check_writes(self, wave: int, cells: np.ndarray, harmless=None) -> None:
        """`harmless()`: which cells are being written with what they hold already."""
        writers = self.writer[cells]
        unordered = self.write_epoch[cells] > self.clocks[wave][writers]
        if harmless is not None and unordered.any():
            unordered &= ~harmless()
        self._check(cells, unordered, writers, "the write of")

    def read(self, wave: int, addresses: np.ndarray, size: int, looks: bool) -> None:
        if looks and self._one_word(addresses, size):
            flag = int(addresses[0])
            if flag in self.released:
                self._acquire(wave, flag)
                return
            cells, epochs = self.cells(addresses[:1], size), self.look_epoch
        else:
            cells, epochs = self.cells(addresses, size), self.read_epoch
        self._check_writes(wave, cells)
        epochs[wave, cells] = self.clocks[wave, wave]

    def write(self, wave: int, addresses: np.ndarray, size: int, unchanged, in_order: bool) -> None:
        """`unchanged()`: for each address whether the write leaves its bytes as they are."""
        clock = self.clocks[wave]
        one_word = self._one_word(addresses, size)
        cells = self.cells(addresses[:1] if one_word else addresses, size)
        # Lanes that write one word may differ in what they write.
        harmless = (lambda: unchanged().all()) if one_word else (
            lambda: np.repeat(unchanged(), len(cells) // len(addresses))
        )  # fmt: skip
        self._check_writes(wave, cells, harmless)
        releases = one_word and in_order
        for epochs in (self.read_epoch,) if releases else (self.read_epoch, self.look_epoch):
            unordered = epochs[:, cells] > clock[:, None]
            if unordered.any():
                self._check(cells, unordered.any(axis=0), unordered.argmax(axis=0), "a read of")
        self.writer[cells] = wave
        self.write_epoch[cells] = clock[wave]
        if releases:
            self._release(wave, int(addresses[0]), cells)
        elif self.is_flag[cells].any():
            # Overwritten as data: no flag any more.
            for address in [each for each in self.released if self.is_flag[self.cells(np.array([each]), WORD)[0]]]:
                own = self.cells(np.array([address]), WORD)
                if np.isin(own, cells).any():
                    del self.released[address]
                    self.is_flag[own] = False

    def _acquire(self, wave: int, address: int) -> None:
        np.maximum(self.clocks[wave], self.released[address], out=self.clocks[wave])
        self.knowledge[wave].join(self.carried[address])

    def _release(self, wave: int, address: int, cells: np.ndarray) -> None:
        self.released[address] = self.clocks[wave].copy()
        self.carried[address] = Knowledge()
        self.carried[address].join(self.knowledge[wave])
        self.is_flag[cells] = True
        self.clocks[wave, wave] += 1

    def waited(self, wave: int) -> None:
        """None of the wave's LDS operations is outstanding."""
        self.complete[wave] = self.clocks[wave, wave]
        self.clocks[wave, wave] += 1

    def barrier(self, unfinished: list[int]) -> None:
        """All waves have come to it, `unfinished` ones with LDS operations outstanding."""
        own = self.clocks.diagonal().copy()
        self.clocks[unfinished, unfinished] = self.complete[unfinished]
        self.clocks[:] = self.clocks.max(axis=0)
        np.fill_diagonal(self.clocks, own + 1)
