"""Global memory between waves: which stores a load may count on, by happens-before.

Workgroups may run on different chiplets, whose L2 caches are not coherent (eight of them on both chips). Which ones run
together is not promised by anything, so any two count as far apart. What has to happen between a store and a load:

  another wave of the workgroup  the storing wave waits for the store (vmcnt), then a barrier or an LDS flag
  another workgroup              the storing wave waits; with sc1 the store is then in memory, otherwise in the L2 of
                                 its chiplet, until a buffer_wbl2 sc1 of that workgroup has been waited for. Then an
                                 atomic (or a flag) tells, which the loading wave waits for. It loads with sc1, or
                                 executes buffer_inv sc1 first.

`known` of a wave: how far the stores of which waves are done, as {(workgroup, wave, kind): number of the newest}.
Kinds: stores with sc1 (IN_MEMORY), others that have reached the L2 (IN_L2), and these written back (WRITTEN_BACK).
Barriers join what the waves of a workgroup know; atomics leave it at their address and take what is there, once they
are waited for. So do a store of one dword with sc1, by one lane or by all alike (a flag), and a load of such a dword,
with sc1, by all lanes alike. Machine code does not say which stores are flags: data stored and loaded like that pass
for one, and are not looked at. Any other load of them is.
`fresh` is what the wave knew when it last invalidated its caches.

Atomics act on one memory for all chiplets, whatever their cache bits; sc0 and nt make no difference. The bytes
themselves are kept in one coherent memory.

Not checked: stores that overwrite each other, or what others still read; atomics on data that stores wrote; data that
is handed over as a flag is, by stores and loads of one dword.
"""

import numpy as np

from simulator.faults import CoherenceFault

IN_MEMORY, IN_L2, WRITTEN_BACK = range(3)
BYTES = {size: np.arange(size) for size in (1, 2, 4, 8, 12, 16)}


def join(known: dict, other: dict) -> None:
    for key, number in other.items():
        if known.get(key, 0) < number:
            known[key] = number


class Knowledge:
    """One wave's."""

    def __init__(self):
        self.known: dict[tuple[int, int, int], int] = {}
        self.fresh: dict[tuple[int, int, int], int] = {}
        self.issued = [0, 0]  # stores, by kind
        self.fresh_at = 0  # what had landed from other devices then, no cache hides (fine_grained.py)
        # What the memory instruction that is executing tells once it has been waited for.
        self.arrivals: list = []

    def take_arrivals(self) -> list:
        taken, self.arrivals = self.arrivals, []
        return taken

    def join(self, other: "Knowledge") -> None:
        join(self.known, other.known)
        join(self.fresh, other.fresh)
        self.fresh_at = max(self.fresh_at, other.fresh_at)


class Coherence:
    """One launch's. A byte's stamp is an index into `stores`: the store instruction that wrote it last."""

    def __init__(self):
        self._stamps: dict[int, np.ndarray] = {}
        self._stores: list[tuple[int, int, int, int]] = [(-1, 0, 0, 0)]
        self._flags: dict[int, dict] = {}

    # What waves do.

    def store(self, wave, region, offsets: np.ndarray, size: int, everywhere: bool) -> None:
        """Bytes of a region; `everywhere` is sc1."""
        knowledge = wave.knowledge
        if everywhere and size == 4 and (offsets == offsets[0]).all():
            self._leave(wave, region, int(offsets[0]), size)
        kind = IN_MEMORY if everywhere else IN_L2
        stamps = self._stamps.get(region.address)
        if stamps is None:
            stamps = self._stamps[region.address] = np.zeros(region.size, np.int32)
        stamps[offsets[:, None] + BYTES[size]] = len(self._stores)
        knowledge.issued[kind] += 1
        key, number = (wave.workgroup.index, wave.index, kind), knowledge.issued[kind]
        self._stores.append((*key, number))
        knowledge.arrivals.append(lambda: join(knowledge.known, {key: number}))

    def load(self, wave, region, offsets: np.ndarray, size: int, everywhere: bool, lanes) -> None:
        """Bytes of a region, by the given lanes; with sc1 it may be a look at a flag."""
        if everywhere and self.look(wave, region, offsets, size):
            return
        stamps = self._stamps.get(region.address)
        if stamps is None:
            return
        found = stamps[offsets[:, None] + BYTES[size]]
        if not found.any():
            return
        for stamp in np.unique(found).tolist():
            problem = self._problem(wave, self._stores[stamp], everywhere) if stamp else None
            if problem:
                position, byte = (int(each) for each in np.argwhere(found == stamp)[0])
                group, other, _, _ = self._stores[stamp]
                lane = int(lanes[position])
                raise CoherenceFault(
                    f"lane {lane}: load of byte {int(offsets[position]) + byte} of {region.name}, which wave {other} "
                    f"of workgroup {group} stored in this launch: {problem}"
                )

    def look(self, wave, region, offsets: np.ndarray, size: int) -> bool:
        """A load with sc1 of what may be a flag, and whether it is one."""
        if size != 4 or (offsets != offsets[0]).any():
            return False
        left = self._flags.get(region.address + int(offsets[0]))
        if left is not None:
            # Flags are replaced, not changed: this is what the loaded value tells.
            wave.knowledge.arrivals.append(lambda: join(wave.knowledge.known, left))
        return left is not None

    def scalar_load(self, region, offset: int, size: int) -> None:
        stamps = self._stamps.get(region.address)
        if stamps is not None and stamps[offset : offset + size].any():
            raise CoherenceFault(f"scalar load of what this launch stored to {region.name} ({offset} bytes into it)")

    def atomic(self, wave, region, offsets: np.ndarray, size: int) -> None:
        taken: dict = {}
        for offset in set(offsets.tolist()):
            join(taken, self._leave(wave, region, offset, size))
        wave.knowledge.arrivals.append(lambda: join(wave.knowledge.known, taken))

    def _leave(self, wave, region, offset: int, size: int) -> dict:
        """Leaves what a wave knows at an address; what was there before."""
        before = self._flags.get(region.address + offset, {})
        after = dict(before)
        join(after, wave.knowledge.known)
        self._flags[region.address + offset] = after
        stamps = self._stamps.get(region.address)
        if stamps is not None:
            stamps[offset : offset + size] = 0
        return before

    @staticmethod
    def write_back(wave) -> None:
        """buffer_wbl2 sc1: this workgroup's stores so far."""
        knowledge, group = wave.knowledge, wave.workgroup.index
        covered = {
            (*key[:2], WRITTEN_BACK): n for key, n in knowledge.known.items() if key[0] == group and key[2] == IN_L2
        }
        # This wave's own are ahead of it on the same way.
        covered[group, wave.index, WRITTEN_BACK] = knowledge.issued[IN_L2]
        knowledge.arrivals.append(lambda: join(knowledge.known, covered))

    @staticmethod
    def invalidate(wave) -> None:
        """buffer_inv sc1."""
        wave.knowledge.fresh = dict(wave.knowledge.known)

    @staticmethod
    def barrier(waves) -> None:
        together = Knowledge()
        for wave in waves:
            together.join(wave.knowledge)
        for wave in waves:
            wave.knowledge.join(together)

    # What follows.

    @staticmethod
    def _problem(wave, store: tuple[int, int, int, int], everywhere: bool) -> str | None:
        """Why a wave may not see a store."""
        group, other, kind, number = store
        known, fresh = wave.knowledge.known, wave.knowledge.fresh
        near = group == wave.workgroup.index
        if near and other == wave.index:
            return None
        if known.get((group, other, kind), 0) < number:
            return "nothing tells that the store is done (s_waitcnt vmcnt there, then a barrier, an atomic or a flag)"
        if near:
            return None
        if kind == IN_L2:
            kind = WRITTEN_BACK
            if known.get((group, other, kind), 0) < number:
                return "it may be in its chiplet's L2 alone (a store with sc1, or buffer_wbl2 sc1, writes it to memory)"
        if not everywhere and fresh.get((group, other, kind), 0) < number:
            return (
                "this chiplet's caches may hold older bytes (a load with sc1, or buffer_inv sc1 before it, passes them)"
            )
        return None
