"""Several devices that run at the same time, each its own launches in their order.

    devices = Devices(2, seed=1)
    buffers = [np.full(64, -1, np.int32) for _ in range(2)]
    for each in buffers:
        devices.share(each)                        # fine-grained memory, which kernels of both may touch
    simulator = Simulator("library.so", "gfx942", memory=devices.memory)
    for device in range(2):
        devices.launch(device, simulator, "kernel", grid=4, block=256, args=[x[device], *buffers])
    counters = devices.run()

Arguments are taken at `launch`. Arrays that are not registered (share, own) are of the launches alone that have them as
arguments. The seed decides
which device runs for how long: all alike, one mostly, one alone, or all but some that stand still. A device begins its
next launch at some time after the end of the one before. As many workgroups are in flight as a device holds, or
`resident`. They start in the order of their numbers, which kernels that wait for each other may count on.

Time (s_memrealtime) hardly passes while anything happens. Where every wave of all devices waits, sleeping or in a loop
without stores, and no store is on its way, it jumps: a wait that has a limit comes to its end after a few turns. Waves
that wait for longer than eight hours, or without a look at the time, are a deadlock.
"""

import random
from collections import deque
from collections.abc import Iterator

import numpy as np

from simulator.counting.counters import UNITS, Counters
from simulator.memory.fine_grained import FineGrained, Traffic
from simulator.memory.regions import Memory, bytes_at
from simulator.schedule.engine import Clock, Launch, checked_arithmetic

from .faults import DeadlockFault
from .simulator import Simulator

LONGEST_STRETCH = 12  # 2 to this power, in slices of waves
# A wave waits if it has slept so often, or executed so many times so many instructions, since anything happened.
WAITS, INSTRUCTIONS = 3, 512
# That often all waves may wait before one looks at the clock. A kernel may look at memory a hundred times before, by
# eight loads each time.
ROUNDS = 1000
# Ticks of 10 ns: 10 ms, a minute, eight hours. Waves look at the clock one after another, each of them twice: as many
# jumps of a minute there may be.
FIRST_JUMP, GROWTH, LONGEST_JUMP, TOO_LONG = 1 << 20, 16, 60 * 10**8, 8 * 3600 * 10**8


class Devices:
    """`seed`, `resident`: as Simulator's, for all launches; `resident` None: what a device holds. `rounds`: how often
    all waves may wait, none of which looks at the clock, before that is a deadlock."""

    def __init__(
        self,
        count: int,
        *,
        memory: Memory | None = None,
        seed: int = 0,
        resident: int | None = None,
        rounds: int = ROUNDS,
    ):
        self.count, self.memory, self.resident, self.rounds = count, memory or Memory(), resident, rounds
        self.random = random.Random(seed)
        self.traffic = Traffic(seed)
        self.clock = Clock([self.random.getrandbits(40) for _ in range(count)])
        self._own: list[int] = []
        self.on_ended = None  # called with each launch and its counters
        self._queues: list[deque[Launch]] = [deque() for _ in range(count)]
        self._running: list[Launch | None] = [None] * count
        self._waiting: list[set[int]] = [set() for _ in range(count)]  # waves of the device that wait, by id
        self._since: dict[int, list] = {}  # of waves: [naps and instructions when anything last happened, its turns]

    # Memory.

    def share(self, array: np.ndarray, name: str = "shared buffer") -> int:
        """Registers an array as fine-grained memory of all devices; returns its address."""
        data = array.reshape(-1).view(np.uint8)
        if not np.shares_memory(data, array):
            raise ValueError("only contiguous arrays can be shared")
        return self.memory.add(FineGrained(data.ctypes.data, data, name, self.traffic))

    def share_address(self, address: int, size: int, name: str = "shared allocation") -> int:
        return self.memory.add(FineGrained(address, bytes_at(address, size), name, self.traffic))

    def own(self, device: int, array: np.ndarray, name: str = "buffer") -> int:
        """Registers an array as ordinary memory of one device, out of reach for the others."""
        self._own.append(self.memory.register(array, f"{name} of device {device}", device=device))
        return self._own[-1]

    def own_address(self, device: int, address: int, size: int, name: str = "allocation") -> int:
        self._own.append(self.memory.register_address(address, size, f"{name} of device {device}", device=device))
        return self._own[-1]

    def end(self) -> None:
        """Takes what share and own have registered out of memory again."""
        for address in [*self._own, *(region.address for region in self.traffic.regions)]:
            self.memory.unregister(address)
        self._own, self.traffic.regions = [], []

    # Launches.

    def launch(self, device: int, simulator: Simulator, kernel: str, *args, **options) -> Launch:
        """Queues what Simulator.launch would run; all arguments but the first two are its."""
        launch = simulator.prepare(kernel, *args, seed=self.random.getrandbits(32), device=device, **options)
        launch.device, launch.clock, launch.traffic = device, self.clock, self.traffic
        launch.resident = self.resident or UNITS[launch.code.arch] * launch.counters.occupancy.workgroups
        self._queues[device].append(launch)
        return launch

    def run(self) -> list[list[Counters]]:
        """Runs all that is queued; of each device its launches' counters."""
        finished: list[list[Counters]] = [[] for _ in range(self.count)]
        try:
            with checked_arithmetic():
                for launch in self._ended():
                    finished[launch.device].append(launch.counters)
                    if self.on_ended:
                        self.on_ended(launch, launch.counters)
        finally:
            for queue in self._queues:
                queue.clear()
            self._running = [None] * self.count
        return finished

    def _ended(self) -> Iterator[Launch]:
        """Launches as they end."""
        self._something_happened()
        weights, stretch = self._new_stretch(), 0
        while busy := [each for each in range(self.count) if self._running[each] or self._queues[each]]:
            awake = [each for each in busy if weights[each]]
            if not awake or not stretch:
                weights, stretch = self._new_stretch(), 1 << self.random.randrange(LONGEST_STRETCH + 1)
                continue
            if active := [each for each in awake if not self._waits(each)]:
                stretch -= 1
                if ended := self._step(self.random.choices(active, [weights[each] for each in active])[0]):
                    yield ended
            elif self.traffic.hurry():
                self._something_happened()
            elif len(awake) < len(busy):
                stretch = 0
            else:
                self._jump()

    def _new_stretch(self) -> list[int]:
        """How likely each device's turn is; 0: it stands still."""
        chosen = self.random.randrange(self.count)
        kind = self.random.choice(("alike", "mostly", "alone", "still"))
        if kind == "mostly":
            return [32 if each == chosen else 1 for each in range(self.count)]
        if kind == "alone":
            return [int(each == chosen) for each in range(self.count)]
        if kind == "still":
            return [self.random.randrange(2) for _ in range(self.count)]
        return [1] * self.count

    def _step(self, device: int) -> Launch | None:
        """A turn of a device; the launch that has ended by it."""
        launch = self._running[device]
        if launch is None:
            launch = self._running[device] = self._queues[device].popleft()
            launch.began_at = self.traffic.moment
            launch.begin(in_order=True)
            self._something_happened()
        progress, moment, executed = launch.progress, self.traffic.moment, launch.executed
        wave = launch.step()
        self.traffic.advance()
        if wave is None:
            self.traffic.finish(device)
            self._running[device] = None
            launch.finish()
            self._something_happened()
            return launch
        if launch.progress != progress or self.traffic.moment != moment:
            self._something_happened()
        else:
            self._note(device, wave, launch.executed - executed)
        return None

    # Who waits.

    def _something_happened(self) -> None:
        self._since.clear()
        for each in self._waiting:
            each.clear()
        self._next_jump, self._jumped, self._rounds, self._reads = FIRST_JUMP, 0, 0, self.clock.reads

    def _note(self, device: int, wave, executed: int) -> None:
        turns = self._since.setdefault(id(wave), [wave.naps, 0.0])
        turns[1] += 1.0 if wave.naps != turns[0] else executed / INSTRUCTIONS
        turns[0] = wave.naps
        if turns[1] >= WAITS:
            self._waiting[device].add(id(wave))

    def _waits(self, device: int) -> bool:
        """Nothing happens on a device whose waves all wait, at barriers or for something to change."""
        launch = self._running[device]
        return launch is not None and 0 < len(launch.runnable) == len(self._waiting[device])

    def _jump(self) -> None:
        """Nothing can happen but that time passes, which matters to those that have looked at the clock."""
        self._rounds += 1
        if self.clock.reads != self._reads:
            self._rounds, self._reads = 0, self.clock.reads
            self.clock.ticks += self._next_jump
            self._jumped += self._next_jump
            self._next_jump = min(self._next_jump * GROWTH, LONGEST_JUMP)
        if self._jumped > TOO_LONG or self._rounds > self.rounds:
            positions = [launch.positions() for launch in self._running if launch]
            raise DeadlockFault("no progress: " + "\n".join(positions))
        self._since.clear()
        for each in self._waiting:
            each.clear()
