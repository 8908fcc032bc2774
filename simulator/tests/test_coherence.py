"""Global memory between workgroups: split-K's last arriver with each of its steps left out, and done right."""

import numpy as np
import pytest

from simulator import Checks, CoherenceFault, Simulator
from simulator.tests.harness import ARCHS, compile_hip, needs_clang

pytestmark = needs_clang

# As kernels that split K do: each workgroup leaves a part, the last one to arrive adds all parts.
SOURCE = r"""
#include <hip/hip_runtime.h>

enum Access { kFallback, kAgent };
enum Before { kWaitAndBarrier, kWaitOnly, kBarrierOnly, kFence };
enum After { kRead, kInvalidate };

__device__ inline void store(float* p, float v, Access how) {
    if (how == kAgent) __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    else *p = v;
}
template <typename T>
__device__ inline T load(const T* p, Access how) {
    return how == kAgent ? __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) : *p;
}

template <Access kStore, Before kBefore, After kAfter, Access kLoad>
__device__ inline void last_adds(const float* x, float* parts, float* out, unsigned* arrived) {
    const int n = blockDim.x, i = threadIdx.x;
    store(parts + blockIdx.x * n + i, x[blockIdx.x * n + i] * 2, kStore);
    asm volatile("" ::: "memory");
    if (kBefore == kWaitAndBarrier || kBefore == kWaitOnly) __builtin_amdgcn_s_waitcnt(0x0F70);
    if (kBefore == kFence) __threadfence();
    // Not __syncthreads, which waits for memory itself.
    if (kBefore != kWaitOnly) __builtin_amdgcn_s_barrier();
    asm volatile("" ::: "memory");
    __shared__ unsigned before;
    if (i == 0) before = __hip_atomic_fetch_add(arrived, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    __syncthreads();
    if (before != gridDim.x - 1) return;
    if (kAfter == kInvalidate) __threadfence();
    float all = 0;
    for (unsigned g = 0; g < gridDim.x; ++g) all += load(parts + g * n + i, kLoad);
    out[i] = all;
}
#define KERNEL(name, ...)                                                                                   \
    extern "C" __global__ void name(const float* x, float* parts, float* out, unsigned* arrived) { \
        last_adds<__VA_ARGS__>(x, parts, out, arrived);                                                     \
    }
KERNEL(right, kAgent, kWaitAndBarrier, kRead, kAgent)
KERNEL(fences, kFallback, kFence, kInvalidate, kFallback)
KERNEL(fence_and_agent_loads, kFallback, kFence, kRead, kAgent)
KERNEL(no_wait, kAgent, kBarrierOnly, kRead, kAgent)
KERNEL(no_barrier, kAgent, kWaitOnly, kRead, kAgent)
KERNEL(plain_stores, kFallback, kWaitAndBarrier, kRead, kAgent)
KERNEL(plain_loads, kAgent, kWaitAndBarrier, kRead, kFallback)
KERNEL(no_invalidation, kFallback, kFence, kRead, kFallback)
KERNEL(nothing, kFallback, kBarrierOnly, kRead, kFallback)

// Within a workgroup: through memory, behind a barrier that waits for the stores or does not.
template <bool kWait>
__device__ inline void reversed(const int* x, int* y, int* out) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x, other = blockIdx.x * blockDim.x + blockDim.x - 1 - threadIdx.x;
    y[i] = x[i];
    asm volatile("" ::: "memory");
    if (kWait) __builtin_amdgcn_s_waitcnt(0x0F70);
    __builtin_amdgcn_s_barrier();
    asm volatile("" ::: "memory");
    out[i] = y[other];
}
extern "C" __global__ void reversed_right(const int* x, int* y, int* out) { reversed<true>(x, y, out); }
extern "C" __global__ void reversed_no_wait(const int* x, int* y, int* out) { reversed<false>(x, y, out); }

// One lane's store looks like a flag; it is data to a load that is no look at one (of other caches, or of more).
template <bool kAgentLoad>
__device__ inline void lonely(int* data, int* out) {
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) __hip_atomic_store(data, 7, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    } else {
        for (int i = 0; i < 20; ++i) __builtin_amdgcn_s_sleep(1);
        const int* p = data + (kAgentLoad ? threadIdx.x : 0);
        out[threadIdx.x] = load(p, kAgentLoad ? kAgent : kFallback);
    }
}
extern "C" __global__ void lonely_plain(int* data, int* out) { lonely<false>(data, out); }
extern "C" __global__ void lonely_among_others(int* data, int* out) { lonely<true>(data, out); }

// A flag in memory, by a store; workgroup 0 tells workgroup 1.
template <bool kRelease>
__device__ inline void told(const int* x, int* data, unsigned* flag, int* out) {
    if (blockIdx.x == 0) {
        __hip_atomic_store(data + threadIdx.x, x[threadIdx.x], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
        asm volatile("" ::: "memory");
        if (kRelease) __builtin_amdgcn_s_waitcnt(0x0F70);
        asm volatile("" ::: "memory");
        if (threadIdx.x == 0) __hip_atomic_store(flag, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    } else {
        while (!__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)) __builtin_amdgcn_s_sleep(1);
        asm volatile("" ::: "memory");
        out[threadIdx.x] = __hip_atomic_load(data + threadIdx.x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
}
extern "C" __global__ void flag_right(const int* x, int* data, unsigned* flag, int* out) {
    told<true>(x, data, flag, out);
}
extern "C" __global__ void flag_early(const int* x, int* data, unsigned* flag, int* out) {
    told<false>(x, data, flag, out);
}
"""
GROUPS, THREADS = 4, 256
IN_L2, NOT_DONE, OLDER = "chiplet's L2 alone", "nothing tells that the store is done", "may hold older bytes"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_hip(SOURCE, tmp_path_factory.mktemp("coherence"))


@pytest.fixture(params=ARCHS)
def arch(request):
    return request.param


def add(library, arch, kernel: str, seed: int, checks: Checks | None = None) -> None:
    simulator = Simulator(library, arch, seed=seed, checks=checks)
    x = np.arange(GROUPS * THREADS, dtype=np.float32)
    parts, out, arrived = np.full_like(x, np.nan), np.zeros(THREADS, np.float32), np.zeros(1, np.uint32)
    simulator.launch(kernel, GROUPS, THREADS, [x, parts, out, arrived])
    assert (out == 2 * x.reshape(GROUPS, THREADS).sum(axis=0)).all() and arrived[0] == GROUPS


@pytest.mark.parametrize("kernel", ["right", "fences", "fence_and_agent_loads"])
def test_right_ways(library, arch, kernel):
    for seed in range(3):
        add(library, arch, kernel, seed)


@pytest.mark.parametrize(
    "kernel, why",
    [
        ("no_wait", NOT_DONE), ("no_barrier", NOT_DONE), ("plain_stores", IN_L2), ("plain_loads", OLDER),
        ("no_invalidation", OLDER), ("nothing", NOT_DONE),
    ],
)  # fmt: skip
def test_a_step_left_out(library, arch, kernel, why):
    for seed in range(3):
        with pytest.raises(CoherenceFault, match=why) as caught:
            add(library, arch, kernel, seed)
        assert "of workgroup" in str(caught.value) and f"kernel {kernel}" in str(caught.value)
    # The simulator's memory is coherent: without the check nothing shows.
    add(library, arch, kernel, 0, Checks(coherence=False))


def test_between_waves_of_a_workgroup(library, arch):
    x, y, out = np.arange(512, dtype=np.int32), np.zeros(512, np.int32), np.zeros(512, np.int32)
    Simulator(library, arch).launch("reversed_right", 2, 256, [x, y, out])
    assert (out.reshape(2, 256) == x.reshape(2, 256)[:, ::-1]).all()
    with pytest.raises(CoherenceFault, match=NOT_DONE):
        Simulator(library, arch).launch("reversed_no_wait", 2, 256, [x, y, out])


def test_a_flag_in_memory(library, arch):
    for seed in range(3):
        x, flag = np.arange(64, dtype=np.int32), np.zeros(1, np.uint32)
        data, out = np.zeros_like(x), np.zeros_like(x)
        Simulator(library, arch, seed=seed).launch("flag_right", 2, 64, [x, data, flag, out])
        assert (out == x).all()
        flag[:] = 0
        with pytest.raises(CoherenceFault, match=NOT_DONE):
            Simulator(library, arch, seed=seed).launch("flag_early", 2, 64, [x, data, flag, out])


@pytest.mark.parametrize("kernel", ["lonely_plain", "lonely_among_others"])
def test_a_store_by_one_lane_is_data_too(library, arch, kernel):
    # Only a load that comes behind the store shows it.
    caught = 0
    for seed in range(8):
        data, out = np.zeros(64, np.int32), np.zeros(64, np.int32)
        try:
            Simulator(library, arch, seed=seed).launch(kernel, 2, 64, [data, out])
        except CoherenceFault as fault:
            assert NOT_DONE in str(fault)
            caught += 1
    assert caught
