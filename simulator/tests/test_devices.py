"""Devices that exchange data while they run: protocols that are right on every schedule, and what is found where one
step of theirs is left out."""

import numpy as np
import pytest

from simulator import CoherenceFault, DeadlockFault, MemoryFault, Simulator
from simulator.devices import Devices
from simulator.faults import UnsupportedError
from simulator.tests.harness import ARCHS, SEED, compile_hip, needs_clang

pytestmark = [needs_clang, pytest.mark.parametrize("arch", ARCHS)]

SOURCE = r"""
#include <hip/hip_runtime.h>
typedef unsigned Four __attribute__((ext_vector_type(4)));
constexpr unsigned kAbsent = ~0u;

struct Peers {
    Four* memory[4];  // of each rank: two halves, places of all ranks in each
    unsigned* epoch;  // this rank's own
    int rank, ranks, vectors;
};
// Volatile accesses are those of sc0 sc1.
__device__ inline void store(Four* p, Four v) { *(volatile Four*)p = v; }

enum Plant { kNone, kNoEpoch, kOneWord, kAgentPoll, kPlainPoll, kNoClear };

template <Plant plant>
__device__ inline Four load(const Four* p) {
    if (plant == kAgentPoll || plant == kPlainPoll) {
        constexpr int kScope = plant == kAgentPoll ? __HIP_MEMORY_SCOPE_AGENT : __HIP_MEMORY_SCOPE_WAVEFRONT;
        Four v;
        for (int i = 0; i < 4; ++i) v[i] = __hip_atomic_load((const unsigned*)p + i, __ATOMIC_RELAXED, kScope);
        return v;
    }
    return *(const volatile Four*)p;
}
// Values say themselves that they are there.
template <Plant plant>
__device__ inline void push_poll(const Four* x, Four* out, Peers peers) {
    const unsigned half = plant == kNoEpoch ? 0 : *peers.epoch & 1;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const auto place = [&](int rank, int from) { return peers.memory[rank] + (half * 4 + from) * peers.vectors + i; };
    for (int to = 0; to < peers.ranks; ++to)
        if (to != peers.rank) store(place(to, peers.rank), x[i]);
    Four sum = 0;
    for (int from = 0; from < peers.ranks; ++from) {
        Four v = x[i];
        if (from != peers.rank) {
            Four* p = place(peers.rank, from);
            bool missing;
            do {
                v = load<plant>(p);
                missing = v[0] == kAbsent;
                if (plant != kOneWord) missing |= v[1] == kAbsent || v[2] == kAbsent || v[3] == kAbsent;
                if (missing) __builtin_amdgcn_s_sleep(1);
            } while (missing);
            if (plant != kNoClear) store(p, Four{kAbsent, kAbsent, kAbsent, kAbsent});
        }
        sum += v;
    }
    out[i] = sum;
}
#define PUSH(name, plant) \
    extern "C" __global__ void name(const Four* x, Four* out, Peers peers) { push_poll<plant>(x, out, peers); }
PUSH(right, kNone)
PUSH(no_epoch, kNoEpoch)
PUSH(one_word, kOneWord)
PUSH(agent_poll, kAgentPoll)
PUSH(plain_poll, kPlainPoll)
PUSH(no_clear, kNoClear)

// Device 0 leaves data and a flag with device 1.
enum Sent { kPlain, kWritten };
template <Sent sent, bool kRelease, bool kAcquire>
__device__ inline void tell(const unsigned* x, unsigned* data, unsigned* flag, unsigned* out, int device) {
    const int i = threadIdx.x;
    if (device == 0) {
        if (sent == kPlain) data[i] = x[i];
        else __hip_atomic_store(data + i, x[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
        if (kRelease) __atomic_thread_fence(__ATOMIC_RELEASE);
        asm volatile("" ::: "memory");
        if (i == 0) __hip_atomic_store(flag, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    } else {
        while (!__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)) __builtin_amdgcn_s_sleep(1);
        if (kAcquire) __atomic_thread_fence(__ATOMIC_ACQUIRE);
        asm volatile("" ::: "memory");
        out[i] = data[i];
    }
}
#define TELL(name, ...)                                                                                          \
    extern "C" __global__ void name(const unsigned* x, unsigned* data, unsigned* flag, unsigned* out, int device) { \
        tell<__VA_ARGS__>(x, data, flag, out, device);                                                           \
    }
TELL(told, kPlain, true, true)
TELL(told_by_system_stores, kWritten, true, true)
TELL(no_release, kPlain, false, true)
TELL(no_wait, kWritten, false, true)
TELL(no_acquire, kPlain, true, false)

// Loads of data in flight together with the flag's may be older than the flag's.
extern "C" __global__ void loads_together(const unsigned* x, unsigned* data, unsigned* flag, unsigned* out,
                                          int device) {
    const int i = threadIdx.x;
    if (device == 0) {
        tell<kWritten, true, true>(x, data, flag, out, 0);
    } else {
        unsigned seen, v;
        do {
            seen = __hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
            v = __hip_atomic_load(data + i, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
            asm volatile("" : "+v"(v));
        } while (!seen);
        out[i] = v;
    }
}

// 64 bits come together.
extern "C" __global__ void both_halves(const unsigned* x, unsigned* data, unsigned*, unsigned* out, int device) {
    using Two = unsigned long long;
    Two* p = (Two*)data + threadIdx.x / 2;
    if (threadIdx.x % 2) return;
    if (device == 0) {
        const Two v = Two(x[threadIdx.x]) << 32 | x[threadIdx.x + 1];
        __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    } else {
        Two v;
        while (!(v = __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM))) __builtin_amdgcn_s_sleep(1);
        out[threadIdx.x] = unsigned(v >> 32), out[threadIdx.x + 1] = unsigned(v);
    }
}

// Of a partner that may never come; for so many units of 10 ns.
extern "C" __global__ void patient(unsigned* flag, unsigned* out, unsigned long long limit) {
    const unsigned long long since = __builtin_amdgcn_s_memrealtime();
    bool seen, late = false;
    do {
        seen = __hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
        late = __builtin_amdgcn_s_memrealtime() - since > limit;
        __builtin_amdgcn_s_sleep(1);
    } while (!seen && !late);
    out[threadIdx.x] = seen ? 1 : 2;
}
extern "C" __global__ void forever(unsigned* flag) {
    while (!__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)) {}
}
extern "C" __global__ void set(unsigned* flag) {
    __hip_atomic_store(flag, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
extern "C" __global__ void copy(const unsigned* from, unsigned* to) { to[threadIdx.x] = from[threadIdx.x]; }
extern "C" __global__ void count(unsigned* epoch) { if (threadIdx.x == 0) ++*epoch; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_hip(SOURCE, tmp_path_factory.mktemp("devices"), "-mcumode")


class Ranks:
    """Buffers of several ranks, and launches of the exchange."""

    THREADS, GROUPS = 64, 2

    def __init__(self, library, arch, ranks: int, seed: int):
        self.devices, self.ranks = Devices(ranks, seed=seed), ranks
        self.simulator = Simulator(library, arch, memory=self.devices.memory)
        self.vectors = self.THREADS * self.GROUPS
        self.memory = [np.full((2, 4, self.vectors, 4), 0xFFFFFFFF, np.uint32) for _ in range(ranks)]
        self.epochs = [np.zeros(1, np.uint32) for _ in range(ranks)]
        for rank, each in enumerate(self.memory):
            self.devices.share(each, f"memory of rank {rank}")
            self.devices.own(rank, self.epochs[rank])

    def peers(self, rank: int) -> bytes:
        pointers = [each.ctypes.data for each in self.memory] + [0] * (4 - self.ranks)
        numbers = np.array([rank, self.ranks, self.vectors, 0], np.int32)
        return np.array([*pointers, self.epochs[rank].ctypes.data], np.uint64).tobytes() + numbers.tobytes()

    def exchange(self, kernel: str, rounds: int) -> None:
        """So many launches in a row on each rank; all results as they must be."""
        random = np.random.default_rng(SEED)
        wanted, got = [], []
        for _ in range(rounds):
            x = random.integers(0, 1 << 20, (self.ranks, self.vectors, 4), np.uint32)
            outs = [np.zeros((self.vectors, 4), np.uint32) for _ in range(self.ranks)]
            for rank in range(self.ranks):
                arguments = [np.ascontiguousarray(x[rank]), outs[rank], self.peers(rank)]
                self.devices.launch(rank, self.simulator, kernel, self.GROUPS, self.THREADS, arguments)
                self.devices.launch(rank, self.simulator, "count", 1, 64, [self.epochs[rank]])
            wanted.append(x.sum(axis=0, dtype=np.uint32)), got.append(outs)
        self.devices.run()
        for sums, outs in zip(wanted, got):
            for out in outs:
                assert (out == sums).all()


def tries(library, arch, ranks: int = 2, count: int = 40):
    return (Ranks(library, arch, ranks, SEED + number) for number in range(count))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_values_that_carry_their_flag(library, arch, ranks):
    for each in tries(library, arch, ranks, 4):
        each.exchange("right", 4)


@pytest.mark.parametrize("kernel", ["no_epoch", "one_word", "no_clear"])
def test_a_step_that_is_missing_is_found(library, arch, kernel):
    """As a wrong result, or as a wait without end."""
    with pytest.raises((AssertionError, DeadlockFault)):
        for each in tries(library, arch):
            each.exchange(kernel, 4)


@pytest.mark.parametrize("kernel", ["agent_poll", "plain_poll"])
def test_a_poll_that_caches_answer_is_found(library, arch, kernel):
    with pytest.raises(CoherenceFault, match=r"(?s)memory of rank .*, which device . stored.*global_load_dword"):
        for each in tries(library, arch):
            each.exchange(kernel, 1)


def tell(library, arch, kernel: str, seed: int) -> None:
    devices = Devices(2, seed=seed)
    simulator = Simulator(library, arch, memory=devices.memory)
    x, data, out = np.arange(1, 65, dtype=np.uint32), np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    flag = np.zeros(1, np.uint32)
    devices.share(data, "data"), devices.share(flag, "flag")
    for device in range(2):
        devices.launch(device, simulator, kernel, 1, 64, [x, data, flag, out, device])
    devices.run()
    assert (out == x).all()


@pytest.mark.parametrize("kernel", ["told", "told_by_system_stores", "both_halves"])
def test_a_flag(library, arch, kernel):
    for seed in range(20):
        tell(library, arch, kernel, SEED + seed)


@pytest.mark.parametrize("kernel", ["no_release", "no_wait", "loads_together"])
def test_a_flag_that_comes_early_is_found(library, arch, kernel):
    with pytest.raises((AssertionError, CoherenceFault)):
        for seed in range(200):
            tell(library, arch, kernel, SEED + seed)


def test_caches_that_are_not_emptied_are_found(library, arch):
    with pytest.raises(CoherenceFault, match="(?s)byte 0 of data, which device 0 stored.*older bytes.*device 1"):
        for seed in range(10):
            tell(library, arch, "no_acquire", SEED + seed)


def test_a_wait_with_a_limit_ends(library, arch):
    """After a minute that takes no time, on all ranks; not before, where the partner is only late."""
    minute = 60 * 10**8
    for seed in range(5):
        for comes in (False, True):
            devices = Devices(3, seed=SEED + seed)
            simulator = Simulator(library, arch, memory=devices.memory)
            flag, outs = np.zeros(1, np.uint32), [np.zeros(256, np.uint32) for _ in range(2)]
            devices.share(flag)
            for device in range(2):
                devices.launch(device, simulator, "patient", 1, 256, [flag, outs[device], minute])
            if comes:
                devices.launch(2, simulator, "set", 1, 1, [flag])
            (first,), _, _ = devices.run()
            assert all((out == (1 if comes else 2)).all() for out in outs)
            assert comes or first.mnemonics["s_memrealtime"] < 1000


def test_a_deadlock_names_every_wave(library, arch):
    devices = Devices(2, seed=SEED, rounds=30)
    simulator = Simulator(library, arch, memory=devices.memory)
    flag = np.zeros(1, np.uint32)
    devices.share(flag)
    for device in range(2):
        devices.launch(device, simulator, "forever", 2, 64, [flag])
    with pytest.raises(DeadlockFault) as found:
        devices.run()
    assert str(found.value).count("kernel forever") == 2 and str(found.value).count(", wave 0: at") == 4


def test_memory_of_another_device_is_out_of_reach(library, arch):
    devices = Devices(2, seed=SEED)
    simulator = Simulator(library, arch, memory=devices.memory)
    own, other = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    for device, each in enumerate((own, other)):
        devices.own(device, each)
    devices.launch(0, simulator, "copy", 1, 64, [own, own.copy()])
    devices.run()
    devices.launch(0, simulator, "copy", 1, 64, [own.ctypes.data, other.ctypes.data])
    with pytest.raises(MemoryFault, match="lane 0: store of 4 bytes"):
        devices.run()


def test_shared_memory_is_for_devices(library, arch):
    devices = Devices(2)
    flag = np.zeros(1, np.uint32)
    devices.share(flag)
    with pytest.raises(UnsupportedError, match="shared between devices"):
        Simulator(library, arch, memory=devices.memory).launch("set", 1, 1, [flag])
    devices.end()
    with pytest.raises(ValueError, match="contiguous"):
        devices.share(np.zeros((4, 4))[:, :2])
