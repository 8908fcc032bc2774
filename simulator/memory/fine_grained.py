"""Fine-grained memory: buffers that kernels of several devices write and read while they run (devices.py).

It promises what LLVM's memory model of gfx942 and gfx950 says of system scope, sc0 and sc1 of an instruction, no more:

  stores with sc0 sc1      land at a later time that the seed decides, dword by dword, in any order; all have when their
                           wave has waited for them. Those of one wave to one byte land in their order. Aligned 64
                           bits are atomic, in a store or load of just these
  other stores             are in the caches of their device, until a buffer_wbl2 sc0 sc1 of the workgroup, behind a
                           wait for the store, has been waited for
  loads with sc0 sc1       find what has landed by some time between their issue and the wait for them, another one for
                           each dword; of their own wave's stores all
  other loads, s_load too  must not touch what another device has stored, or stores, since the launch began. The caches
                           may have older bytes. A buffer_inv sc0 sc1 forgets these: what landed before may be loaded
  atomics                  act on the memory at once. Those without sc1 are of one device, and held to the same rule

When a launch ends all its stores have landed; when it begins its caches hold nothing. Loads with sc0 sc1 need no flag
(coherence.py): protocols in which the data tell by themselves that they are there are run, and give wrong results where
they are wrong. Between waves of one device other accesses are held to coherence.py's rules.
"""

import heapq

import numpy as np

from simulator.faults import CoherenceFault, UnsupportedError
from simulator.isa.scalar import YIELD

from .coherence import BYTES
from .regions import Region
from .transfers import Move, store_words

AGENT, SYSTEM = 2, 3  # scopes as cache bits: sc0 is 1, sc1 is 2
LONGEST_DELAY = 9  # 2 to this power, in slices of waves
MOST_PIECES = 4  # of one store, that land together
NOBODY = -1
UNKNOWN = "its caches may hold older bytes (a load with sc0 sc1, or buffer_inv sc0 sc1 before it, passes them)"
UNTOLD = "nothing tells that the store has landed"


class Sent:
    """Bytes of one store that land together."""

    def __init__(self, wave, region: "FineGrained", at: np.ndarray, data: np.ndarray):
        self.wave, self.region, self.at, self.data = wave, region, at, data
        self.device = wave.workgroup.launch.device
        self.low, self.high, self.landed = int(at.min()), int(at.max()), False

    def touches(self, region: "FineGrained", at: np.ndarray) -> bool:
        if region is not self.region or self.landed or int(at.min()) > self.high or int(at.max()) < self.low:
            return False
        return bool(np.isin(at, self.at).any())


class Late:
    """A load on its way: registers that may get what lands until the wait for it. `parts`: (positions of lanes, region,
    offsets)."""

    def __init__(self, wave, row: int, move: Move, values: np.ndarray, lanes, parts: list[tuple]):
        self.wave, self.row, self.move, self.values, self.lanes, self.parts = wave, row, move, values, lanes, parts
        self.traffic = parts[0][1].traffic
        self.since = self.traffic.moment

    def touches(self, region: "FineGrained", offsets: np.ndarray) -> bool:
        near = int(offsets.min()) - self.move.size, int(offsets.max()) + self.move.size
        return any(other is region and near[0] < at.max() and at.min() < near[1] for _, other, at in self.parts)

    def arrive(self) -> None:
        if self not in self.wave.late:
            return
        self.wave.late.remove(self)
        if self.traffic.moment == self.since:
            return
        values = self.values.copy()
        for positions, region, offsets in self.parts:
            values[positions] = region.torn(self.wave, values[positions], offsets, self.move.size)
        store_words(self.wave, self.row, self.move, values, self.lanes)


def put(wave, row: int, move: Move, values: np.ndarray, lanes) -> int | None:
    """store_words of what was loaded, by now or until it is waited for. What the instruction's `run` returns: often
    another wave goes on from here, so that what happens behind a load shows."""
    store_words(wave, row, move, values, lanes)
    parts, wave.again = wave.again, []
    if parts and wave.workgroup.launch.checks.waits:
        late = Late(wave, row, move, values, lanes, parts)
        wave.late.append(late)
        wave.knowledge.arrivals.append(late.arrive)
        return YIELD if late.traffic.random.integers(4) == 0 else None
    return None


class Traffic:
    """Stores on their way between devices. `moment` counts what has landed."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.now, self.moment, self._number = 0, 1, 0
        self._due: list[tuple[int, int, Sent]] = []
        self.regions: list[FineGrained] = []

    def send(self, wave, region: "FineGrained", at: np.ndarray, data: np.ndarray, unit: int) -> list[Sent]:
        pieces = int(self.random.integers(1, MOST_PIECES + 1))
        piece = self.random.integers(pieces, size=len(at) // unit).repeat(unit)
        longest = 1 << int(self.random.integers(LONGEST_DELAY + 1))
        sent = []
        for number in range(pieces):
            chosen = piece == number
            if chosen.any():
                sent.append(Sent(wave, region, at[chosen], data[chosen]))
                self._number += 1
                due = self.now + int(self.random.integers(1, longest + 1))
                heapq.heappush(self._due, (due, self._number, sent[-1]))
        wave.sent += sent
        return sent

    def land(self, sent: Sent) -> None:
        if not sent.landed:
            sent.landed = True
            sent.wave.sent.remove(sent)
            sent.region.put(sent.device, sent.at, sent.data)

    def settle(self, wave, region: "FineGrained", at: np.ndarray) -> None:
        """What a wave has stored to these bytes lands before its next access to them."""
        for each in [each for each in wave.sent if each.touches(region, at)]:
            self.land(each)

    def advance(self) -> None:
        self.now += 1
        while self._due and self._due[0][0] <= self.now:
            self.land(heapq.heappop(self._due)[2])

    def hurry(self) -> bool:
        """Time passes until something lands, if anything is on its way."""
        moment = self.moment
        while self._due and self.moment == moment:
            self.now = max(self.now, self._due[0][0])
            self.land(heapq.heappop(self._due)[2])
        return self.moment != moment

    def finish(self, device: int) -> None:
        """A launch of the device has ended."""
        for _, _, sent in self._due:
            if sent.device == device:
                self.land(sent)
        for region in self.regions:
            region.write_through(device, None)

    def stores(self, region: "FineGrained", at: np.ndarray, but_of: int) -> Sent | None:
        """A store of another device to these bytes that is on its way."""
        return next((each for _, _, each in self._due if each.device != but_of and each.touches(region, at)), None)


class FineGrained(Region):
    fine_grained = True

    def __init__(self, address: int, data: np.ndarray, name: str, traffic: Traffic):
        super().__init__(address, data, name, True)
        self.traffic = traffic
        words = data.size // 4 + 1
        # Of each dword: who stored it last, when it landed.
        self.writers, self.moments = np.full(words, NOBODY, np.int8), np.zeros(words, np.int64)
        self._cached: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # of a device: bytes, which of them it holds
        traffic.regions.append(self)

    # What waves do.

    def load(self, wave, offsets: np.ndarray, size: int, scope: int, positions, lanes) -> np.ndarray:
        launch = wave.workgroup.launch
        self._known(launch)
        at = (offsets[:, None] + BYTES[size]).ravel()
        for late in [each for each in wave.late if each.touches(self, offsets)]:
            late.arrive()  # loads of one place see it in their order
        self.traffic.settle(wave, self, at)
        if launch.coherence and scope == SYSTEM:
            launch.coherence.look(wave, self, offsets, size)
        elif launch.coherence:
            self._check(wave, at, lambda byte: f"lane {int(lanes[byte // size])}: load")
            launch.coherence.load(wave, self, offsets, size, scope >= AGENT, lanes)
        if scope == SYSTEM:
            wave.again.append((positions, self, offsets))
        return self._values(launch.device, offsets, size)

    def torn(self, wave, values: np.ndarray, offsets: np.ndarray, size: int) -> np.ndarray:
        """What a load may bring whose first bytes would have been `values`."""
        now, unit = self._values(wave.workgroup.launch.device, offsets, size), self._unit(offsets, size)
        before, after = (np.ascontiguousarray(each).view(f"u{unit}") for each in (values, now))
        # Lanes that load the same dword get the same.
        parts = (offsets[:, None] + np.arange(0, size, unit)).ravel()
        _, which = np.unique(parts // max(unit, 4), return_inverse=True)
        return np.where(self.traffic.random.integers(2, size=len(before))[which], before, after).view(values.dtype)

    def scalar_load(self, wave, offset: int, size: int) -> None:
        launch = wave.workgroup.launch
        self._known(launch)
        if launch.coherence:
            self._check(wave, np.arange(offset, offset + size), lambda byte: "scalar load")

    def store(self, wave, offsets: np.ndarray, size: int, values: np.ndarray, scope: int) -> None:
        launch, knowledge = wave.workgroup.launch, wave.knowledge
        self._known(launch)
        for late in list(wave.late):
            late.arrive()  # a load does not see what its wave stores later
        at = (offsets[:, None] + BYTES[size]).ravel()
        data = np.ascontiguousarray(values).view(np.uint8)
        self.traffic.settle(wave, self, at)
        if scope == SYSTEM:
            if launch.device in self._cached:
                self._cached[launch.device][1][at] = False
            sent = self.traffic.send(wave, self, at, data, self._unit(offsets, size))
            # At the wave's end nobody waits: then they land when they are due.
            knowledge.arrivals.append(lambda: wave.ended or [self.traffic.land(each) for each in sent])
        else:
            nothing = lambda kind: np.zeros(self.size, kind)
            held, holds = self._cached.setdefault(launch.device, (nothing(np.uint8), nothing(bool)))
            held[at], holds[at] = data, True
            cached = [wave, self, at, False]  # and whether the wave has waited for it
            wave.workgroup.cached.append(cached)
            knowledge.arrivals.append(lambda: cached.__setitem__(3, True))
        if launch.coherence:
            launch.coherence.store(wave, self, offsets, size, scope >= AGENT)

    def atomic(self, wave, offsets: np.ndarray, size: int, everywhere: bool) -> None:
        """Before an atomic changes `data`; `everywhere` is sc1."""
        launch = wave.workgroup.launch
        self._known(launch)
        at = (offsets[:, None] + BYTES[size]).ravel()
        self.traffic.settle(wave, self, at)
        if launch.coherence and not everywhere:
            self._check(wave, at, lambda byte: "atomic")
        self.write_through(launch.device, at)
        self._note(launch.device, at)

    # What follows.

    def _unit(self, offsets: np.ndarray, size: int) -> int:
        """Bytes that an access moves at once."""
        return 8 if size == 8 and not (offsets + self.address & 7).any() else min(size, 4)

    def put(self, device: int, at: np.ndarray, data: np.ndarray) -> None:
        self.data[at] = data
        self._note(device, at)

    def write_through(self, device: int, at: np.ndarray | None) -> None:
        """What a device's caches hold of these bytes, or of all, goes to memory."""
        if device in self._cached:
            held, holds = self._cached[device]
            at = np.flatnonzero(holds) if at is None else at[holds[at]]
            if at.size:
                self.put(device, at, held[at])
                holds[at] = False

    def _note(self, device: int, at: np.ndarray) -> None:
        self.traffic.moment += 1
        self.writers[at >> 2], self.moments[at >> 2] = device, self.traffic.moment

    def _known(self, launch) -> None:
        if launch.traffic is not self.traffic:
            raise UnsupportedError(f"{self.name} is shared between devices; this launch is not of Devices")

    def _values(self, device: int, offsets: np.ndarray, size: int) -> np.ndarray:
        values = self.views[size][offsets]
        if device in self._cached:
            held, holds = self._cached[device]
            at = offsets[:, None] + BYTES[size]
            if holds[at].any():
                own = np.where(holds[at], held[at], values[:, None].view(np.uint8))
                values = np.ascontiguousarray(own).view(values.dtype)[:, 0]
        return values

    def _check(self, wave, at: np.ndarray, what) -> None:
        """What another device has stored since this wave's caches were last empty. `what(byte)` names the access."""
        device = wave.workgroup.launch.device
        words = at >> 2
        stale = (self.writers[words] != device) & (self.moments[words] > wave.knowledge.fresh_at)
        if stale.any():
            byte = int(np.flatnonzero(stale)[0])
            by, why = int(self.writers[words[byte]]), UNKNOWN
        elif sent := self.traffic.stores(self, at, device):
            byte = int(np.flatnonzero(np.isin(at, sent.at))[0])
            by, why = sent.device, UNTOLD
        else:
            return
        raise CoherenceFault(
            f"{what(byte)} of byte {int(at[byte])} of {self.name}, which device {by} stored while this kernel ran: "
            f"{why}"
        )


def write_back(wave):
    """buffer_wbl2 sc0 sc1: what happens once it has been waited for, or None."""
    workgroup = wave.workgroup
    ready, left = [], []
    for each in workgroup.cached:
        (ready if each[3] or each[0] is wave else left).append(each)
    workgroup.cached, device = left, workgroup.launch.device
    return ready and (lambda: [region.write_through(device, at) for _, region, at, _ in ready])


def invalidate(wave) -> None:
    """buffer_inv sc0 sc1."""
    traffic = wave.workgroup.launch.traffic
    if traffic:
        wave.knowledge.fresh_at = traffic.moment
