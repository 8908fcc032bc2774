"""Looks at flags among LDS reads, in what clang compiled: protocols of flags are quiet, races of data are found."""

import numpy as np
import pytest

from simulator import Checks, RaceFault, Simulator
from simulator.schedule import polling
from simulator.schedule.program import program
from simulator.tests.harness import ARCHS, compile_hip, needs_clang

pytestmark = [needs_clang, pytest.mark.parametrize("arch", ARCHS)]

COMPILED = r"""
#include <hip/hip_runtime.h>
typedef unsigned Word;
constexpr int kProducers = 2, kConsumers = 2, kSlots = 2 * kProducers, kRounds = 5;

template <class Wait>
__device__ void wait_until(const Word* word, Word value, Wait wait) {
    while (__hip_atomic_load(word, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP) != value) wait();
}
__device__ void publish(Word* word, Word value) {
    __hip_atomic_store(word, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// Producers fill slots in turn, all consumers read each of them; every word is used again in each round.
template <class Wait>
__device__ void hand_over(Word* out, Wait wait) {
    __shared__ Word slots[kSlots][64], full[kSlots], free[kSlots][kConsumers];
    const int wave = threadIdx.x / 64, lane = threadIdx.x % 64;
    if (wave == 0 && lane < kSlots) full[lane] = 0;
    if (wave == 1 && lane < kSlots * kConsumers) free[lane / kConsumers][lane % kConsumers] = 0;
    __syncthreads();
    Word sum = 0;
    for (int round = 0; round < kRounds; ++round) {
        for (int slot = 0; slot < kSlots; ++slot) {
            if (wave < kProducers) {
                if (slot % kProducers != wave) continue;
                for (int c = 0; c < kConsumers; ++c) wait_until(&free[slot][c], round, wait);
                slots[slot][lane] = lane + 100 * round + 1000 * slot;
                publish(&full[slot], round + 1);
            } else {
                wait_until(&full[slot], round + 1, wait);
                sum += slots[slot][lane ^ 1];
                publish(&free[slot][wave - kProducers], round + 1);
            }
        }
    }
    if (wave >= kProducers) out[threadIdx.x - 64 * kProducers] = sum;
}
extern "C" __global__ void ring(Word* out) { hand_over(out, [] { __builtin_amdgcn_s_sleep(1); }); }
extern "C" __global__ void spinning(Word* out) { hand_over(out, [] {}); }

// Everybody divides one word, and should not.
extern "C" __global__ void divided(float* out, float by) {
    __shared__ float word;
    if (threadIdx.x == 0) word = out[0];
    __syncthreads();
    word /= by;
    __syncthreads();
    out[threadIdx.x] = word;
}
// One lane of each wave leaves a sum that all waves add up, with no barrier between.
extern "C" __global__ void added(Word* out, int waves) {
    __shared__ Word sums[16];
    if (threadIdx.x % 64 == 0) sums[threadIdx.x / 64] = out[threadIdx.x];
    Word all = 0;
#pragma nounroll
    for (int i = 0; i < waves; ++i) all += sums[i];
    out[threadIdx.x] = all;
}
// A search: what it reads decides how long it goes on, but it reads on at another place.
extern "C" __global__ void searched(Word* out, Word value) {
    __shared__ Word sorted[64];
    if (threadIdx.x < 64) sorted[threadIdx.x] = threadIdx.x * 3;
    int at = 0;
    while (__hip_atomic_load(&sorted[at], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP) < value) ++at;
    out[threadIdx.x] = at;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    library = compile_hip(COMPILED, tmp_path_factory.mktemp("races"))
    return lambda arch: Simulator(library, arch, checks=Checks(uninitialised_lds=False))


@pytest.mark.parametrize("kernel", ["ring", "spinning"])
def test_flags_that_are_used_again_are_quiet(arch, compiled, kernel):
    simulator, lane = compiled(arch), np.arange(64)
    expected = sum(((lane ^ 1) + 100 * round + 1000 * slot) for round in range(5) for slot in range(4))
    for seed in range(12):
        out = np.zeros(128, np.uint32)
        simulator.launch(kernel, 1, 256, [out], seed=seed)
        assert (out == np.tile(expected, 2)).all()


@pytest.mark.parametrize("kernel, more", {"divided": 2.0, "added": 2, "searched": 50}.items())
def test_what_clang_makes_of_races(arch, compiled, kernel, more):
    simulator = compiled(arch)
    for seed in range(12):
        with pytest.raises(RaceFault):
            simulator.launch(kernel, 1, 128, [np.ones(128, np.float32), more], seed=seed)


def test_looks_are_told_from_other_reads(arch, compiled):
    """Those of flags alone, the first turn of a loop and a loop without s_sleep too."""
    code = compiled(arch).code
    looks = {}
    for name, kernel in code.kernels.items():
        instructions, _ = program(code, kernel)
        reads = [at for at, ins in enumerate(instructions) if ins.mnemonic == "ds_read_b32"]
        looks[name] = len(polling.looks(instructions)), len(reads)
    assert looks["divided"][0] == looks["added"][0] == looks["searched"][0] == 0
    for name in ("ring", "spinning"):
        assert 3 <= looks[name][0] < looks[name][1], looks[name]
    assert min(reads for _, reads in looks.values()) >= 1
