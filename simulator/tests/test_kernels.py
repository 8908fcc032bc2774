"""Kernels that clang compiled, launched by host code that clang compiled: the whole way, under several schedules."""

import ctypes

import numpy as np
import pytest

from simulator import MemoryFault, SimulationError, Simulator
from simulator.host.library import Runtime
from simulator.tests.harness import ARCHS, compile_hip, hip_toolchain, needs_clang

pytestmark = needs_clang

SOURCE = r"""
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <hip/hip_bf16.h>

__constant__ const float kTable[] = {0.5f, 1.5f, -2.0f, 4.0f};

__global__ void add(const float* a, const float* b, float* c, int n, float scale) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] / b[i] + kTable[i & 3] * scale;
}

__global__ void halves(const __half2* a, const __half2* b, __half2* c, const __hip_bfloat16* d, __hip_bfloat16* e,
                       int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    c[i] = __hadd2(a[i], b[i]);
    e[i] = __float2bfloat16(__bfloat162float(d[i]) * 1.001f);
}

// Sums in double-checked order: lanes by shuffles, waves through LDS.
__global__ void sum(const int* x, int* out, int n) {
    __shared__ int partial[16];
    int v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
    for (int d = 32; d; d >>= 1) v += __shfl_down(v, d);
    if (threadIdx.x % 64 == 0) partial[threadIdx.x / 64] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        int all = 0;
        for (unsigned w = 0; w < blockDim.x / 64; ++w) all += partial[w];
        out[blockIdx.x] = all;
    }
}

// The last workgroup to arrive adds up what all have stored; the counter is left at zero.
__global__ void last_arriver(const int* x, int* partial, int* out, unsigned* arrived) {
    extern __shared__ int values[];
    values[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    __shared__ unsigned last;
    if (threadIdx.x == 0) {
        int all = 0;
        for (unsigned i = 0; i < blockDim.x; ++i) all += values[i];
        partial[blockIdx.x] = all;
        __threadfence();
        last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        __threadfence();
        int all = 0;
        for (unsigned i = 0; i < gridDim.x; ++i) all += partial[i];
        *out = all;
        *arrived = 0;
    }
}

// A producer wave hands numbers to a consumer wave through LDS flags.
__global__ void hand_over(const int* x, int* out, int rounds) {
    __shared__ int slot[64], flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    const int lane = threadIdx.x % 64;
    for (int i = 0; i < rounds; ++i) {
        if (threadIdx.x < 64) {
            while (__hip_atomic_load(&flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP) != 2 * i)
                __builtin_amdgcn_s_sleep(1);
            slot[lane] = x[i * 64 + lane];
            __hip_atomic_store(&flag, 2 * i + 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
        } else {
            while (__hip_atomic_load(&flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP) != 2 * i + 1)
                __builtin_amdgcn_s_sleep(1);
            out[i * 64 + lane] = slot[lane] * 3;
            __hip_atomic_store(&flag, 2 * i + 2, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
        }
    }
}

extern "C" {
int run_add(const float* a, const float* b, float* c, int n, float scale) {
    add<<<dim3((n + 127) / 128), 128>>>(a, b, c, n, scale);
    return int(hipGetLastError());
}
int run_halves(const void* a, const void* b, void* c, const void* d, void* e, int n) {
    halves<<<(n + 63) / 64, 64>>>((const __half2*)a, (const __half2*)b, (__half2*)c, (const __hip_bfloat16*)d,
                                  (__hip_bfloat16*)e, n);
    return int(hipGetLastError());
}
int run_sum(const int* x, int* out, int rows, int n) {
    sum<<<rows, 256>>>(x, out, n);
    return int(hipGetLastError());
}
int run_last_arriver(const int* x, int* out, int groups) {
    int* memory = nullptr;
    if (hipMalloc((void**)&memory, (groups + 1) * 4) != hipSuccess) return -1;
    (void)hipMemsetAsync(memory, 0, (groups + 1) * 4, nullptr);
    last_arriver<<<groups, 64, 64 * 4>>>(x, memory + 1, out, (unsigned*)memory);
    const int left = memory[0];
    (void)hipFree(memory);
    return int(hipGetLastError()) + 1000 * left;
}
int run_hand_over(const int* x, int* out, int rounds) {
    hand_over<<<2, 128>>>(x, out, rounds);
    return int(hipGetLastError());
}
int describe(char* name) {
    int device = -1;
    hipDeviceProp_t properties;
    (void)hipGetDevice(&device);
    (void)hipGetDeviceProperties(&properties, device);
    __builtin_strcpy(name, properties.gcnArchName);
    return properties.multiProcessorCount;
}
}
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    found = Runtime.shared(hip_toolchain().include)
    found.library_path = compile_hip(SOURCE, tmp_path_factory.mktemp("kernels"))
    found.library = found.open(found.library_path)
    return found


def pointers(*arrays):
    return [ctypes.c_void_p(each.ctypes.data) for each in arrays]


@pytest.fixture
def buffers(runtime):
    """Registers arrays for one test."""
    known = []

    def register(*arrays):
        for each in arrays:
            known.append(runtime.memory.register(each))
        return pointers(*arrays)

    yield register
    for address in known:
        runtime.memory.unregister(address)


@pytest.mark.parametrize("arch", ARCHS)
def test_single_precision(runtime, buffers, arch):
    rng = np.random.default_rng(0)
    n = 300
    a, b = rng.standard_normal((2, n)).astype(np.float32)
    c = np.full(n + 8, 7, np.float32)
    a[:4] = [np.inf, 0, 1e-40, np.nan]
    with runtime.on(arch):
        assert runtime.call(runtime.library.run_add, *buffers(a, b, c), n, ctypes.c_float(3)) == 0
    table = np.array([0.5, 1.5, -2.0, 4.0], np.float32)[np.arange(n) & 3]
    quotient = (a / b).astype(np.float64)
    expected = (quotient + table.astype(np.float64) * 3).astype(np.float32)  # contracted: one fma
    assert np.array_equal(c[:n], expected, equal_nan=True)
    assert (c[n:] == 7).all()
    assert runtime.launches[-1][1:4] == ((3, 1, 1), (128, 1, 1), 0)


@pytest.mark.parametrize("arch", ARCHS)
def test_sixteen_bits(runtime, buffers, arch):
    rng = np.random.default_rng(1)
    n = 100
    a, b = rng.standard_normal((2, 2 * n)).astype(np.float16)
    c = np.zeros(2 * n, np.float16)
    d = (rng.standard_normal(n).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    e = np.zeros(n, np.uint16)
    with runtime.on(arch):
        assert runtime.call(runtime.library.run_halves, *buffers(a, b, c, d, e), n) == 0
    assert (c == a + b).all()
    wide = (d.astype(np.uint32) << 16).view(np.float32) * np.float32(1.001)
    bits = wide.view(np.uint32)
    assert (e == (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("arch", ARCHS)
def test_workgroups_under_schedules(runtime, buffers, arch, seed):
    runtime.seed = seed
    rng = np.random.default_rng(seed)
    rows, n = 5, 700
    x, out = rng.integers(-1000, 1000, (rows, n)).astype(np.int32), np.zeros(rows, np.int32)
    flat, total = rng.integers(0, 99, 7 * 64).astype(np.int32), np.zeros(1, np.int32)
    given, taken = rng.integers(0, 99, 12 * 64).astype(np.int32), np.zeros(12 * 64, np.int32)
    with runtime.on(arch):
        assert runtime.call(runtime.library.run_sum, *buffers(x, out), rows, n) == 0
        assert runtime.call(runtime.library.run_last_arriver, *buffers(flat, total), 7) == 0
        assert runtime.call(runtime.library.run_hand_over, *buffers(given, taken), 12) == 0
    assert (out == x.sum(axis=1)).all()
    assert total[0] == flat.sum()
    assert (taken == given * 3).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_errors_reach_the_caller(runtime, buffers, arch):
    a, b, c = (np.ones(100, np.float32) for _ in range(3))
    with runtime.on(arch):
        with pytest.raises(MemoryFault, match="100 bytes|buffer"):
            runtime.call(runtime.library.run_add, *buffers(a, b, c), 101, ctypes.c_float(1))
        # What the host code saw, it got as HIP's error; the next launch is not affected.
        assert runtime.call(runtime.library.run_add, *pointers(a, b, c), 100, ctypes.c_float(1)) == 0


def test_devices(runtime):
    name = ctypes.create_string_buffer(256)
    for arch, units in (("gfx942", 304), ("gfx950", 256)):
        with runtime.on(arch):
            assert runtime.library.describe(name) == units
        assert name.value.decode().startswith(arch + ":")


@pytest.mark.parametrize("arch", ARCHS)
def test_launch_by_name(runtime, arch):
    simulator = Simulator(runtime.library_path, arch)
    kernel = next(name for name in simulator.kernels if "sum" in name)
    x, out = np.arange(64, dtype=np.int32), np.zeros(1, np.int32)
    counters = simulator.launch(kernel, 1, 128, [x, out, 64])
    assert out[0] == x.sum()
    assert counters.instructions["barrier"] == 2 and counters.bytes_loaded == 256 and counters.bytes_stored == 4
    with pytest.raises(SimulationError):
        simulator.launch(kernel, 1, 2048, [x, out, 64])


def test_compressed_bundles(tmp_path):
    library = compile_hip(SOURCE, tmp_path, "--offload-compress")
    assert b"CCOB" in library.read_bytes()
    for arch in ARCHS:
        assert len(Simulator(library, arch).kernels) == 5


PRELOADED = r"""
#include <hip/hip_runtime.h>

extern "C" __global__ void scaled(const float* x, float* out, int n, float scale, float more) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[blockIdx.y * 256 + i] = x[i] * scale + more;
}
"""


def test_arguments_that_the_hardware_preloads(tmp_path):
    """Two pointers and an integer arrive in SGPRs, before the workgroup's place; the others are loaded."""
    library = compile_hip(PRELOADED, tmp_path, "-mllvm", "-amdgpu-kernarg-preload-count=3")
    for arch in ARCHS:
        simulator = Simulator(library, arch)
        kernel = simulator.kernels["scaled"]
        # The kernarg pointer's two SGPRs, then five dwords from the segment's start.
        assert kernel.preload_dwords == (0, 5) and kernel.user_sgprs >= 7
        x, out = np.arange(200, dtype=np.float32), np.zeros((3, 256), np.float32)
        counters = simulator.launch("scaled", (4, 3), 64, [x, out, 199, 0.5, 3.0])
        assert (out[:, :199] == x[:199] * 0.5 + 3).all() and not out[:, 199:].any()
        # From the entry on they would be loaded by the instructions for firmware that preloads nothing.
        assert not [ins for ins in counters.program if ins.address < kernel.entry + 256]
        loaded = {int(ins.text.operands[2], 0) for ins in counters.program if ins.kind == "smem"}
        assert 0x14 in loaded and min(loaded) >= 0x14


THREE_DIMENSIONS = r"""
#include <hip/hip_runtime.h>

extern "C" __global__ void place(int* out) {
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[thread] = threadIdx.x + 100 * threadIdx.y + 10000 * threadIdx.z;
}
extern "C" __global__ void place_xy(int* out) {
    out[threadIdx.y * blockDim.x + threadIdx.x] = threadIdx.x + 100 * threadIdx.y;
}
extern "C" __global__ void place_x(int* out) { out[threadIdx.x] = threadIdx.x + 1; }
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_threads_in_more_than_one_dimension(tmp_path, arch):
    simulator = Simulator(compile_hip(THREE_DIMENSIONS, tmp_path), arch)
    asked = {name: kernel.bits("rsrc2", 11, 2) for name, kernel in simulator.kernels.items()}
    assert asked == {"place": 2, "place_xy": 1, "place_x": 0}
    x, y, z = 5, 7, 6
    out = np.zeros((z, y, x), np.int32)
    simulator.launch("place", 1, (x, y, z), [out])
    steps = np.arange(x), 100 * np.arange(y)[:, None], 10000 * np.arange(z)[:, None, None]
    assert (out == steps[0] + steps[1] + steps[2]).all()
    plane = np.zeros((40, 20), np.int32)
    simulator.launch("place_xy", 1, (20, 40), [plane])
    assert (plane == np.arange(20) + 100 * np.arange(40)[:, None]).all()
    # A kernel that asks for x alone gets it without the others' bits: its rows all write the same.
    line = np.zeros(20, np.int32)
    simulator.launch("place_x", 1, (20, 40), [line])
    assert (line == np.arange(20) + 1).all()
