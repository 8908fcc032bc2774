"""What ordinary HIP programs ask of the runtime besides launches: events, streams, occupancy; samples of a launch."""

import contextlib
import ctypes

import numpy as np
import pytest

from simulator import MemoryFault
from simulator.counting.profile import Profile
from simulator.counting.report import describe
from simulator.faults import SimulationError
from simulator.host.library import Runtime
from simulator.tests.harness import ARCHS, compile_hip, hip_toolchain, needs_clang
from simulator.timing.recording import record

pytestmark = needs_clang

SOURCE = r"""
#include <hip/hip_runtime.h>
__global__ __launch_bounds__(256) void scale(const float* in, float* out, float factor) {
    __shared__ float kept[4096];
    const int at = blockIdx.x * 256 + threadIdx.x;
    kept[threadIdx.x] = in[at];
    __syncthreads();
    out[at] = factor * kept[255 - threadIdx.x];
}
__global__ void later(const float* in, float* out, int first) {
    if (int(blockIdx.x) >= first) out[blockIdx.x * 256 + threadIdx.x] = in[blockIdx.x * 256 + threadIdx.x];
}
extern "C" int from(const float* in, float* out, int groups, int first) {
    later<<<groups, 256>>>(in, out, first);
    return hipGetLastError();
}
extern "C" float timed(const float* in, float* out, int groups) {
    hipEvent_t begin, end;
    hipStream_t stream;
    float milliseconds = -1;
    if (hipEventCreate(&begin) || hipEventCreateWithFlags(&end, hipEventDefault) || hipStreamCreate(&stream)) return -2;
    if (hipMemsetAsync(out, 0, 1024 * groups, stream) || hipEventRecord(begin, stream)) return -3;
    scale<<<groups, 256, 0, stream>>>(in, out, 2.f);
    if (hipGetLastError() || hipEventRecord(end, stream) || hipEventSynchronize(end) || hipEventQuery(end)) return -4;
    if (hipStreamWaitEvent(stream, end, 0) || hipStreamQuery(stream) || hipDeviceSynchronize()) return -5;
    if (hipEventElapsedTime(&milliseconds, begin, end)) return -6;
    if (hipEventDestroy(begin) || hipEventDestroy(end) || hipStreamDestroy(stream)) return -7;
    return milliseconds;
}
extern "C" int moved(const float* in, float* out) {  // to another device, with what the launch cannot wait for
    (void)hipGetLastError();
    later<<<1, 256>>>(in, out, 0);
    if (hipGetLastError()) return -1;
    return hipMemsetAsync(out, 0, 4, nullptr) == hipSuccess || hipDeviceSynchronize() == hipSuccess ? -2 : 0;
}
extern "C" float* allocated() {
    void* p;
    return hipMalloc(&p, 1024) == hipSuccess ? (float*)p : nullptr;
}
extern "C" int held(int threads, int lds) {
    int groups = -1;
    const hipError_t code = hipOccupancyMaxActiveBlocksPerMultiprocessor(&groups, scale, threads, lds);
    return code ? -int(code) : groups;
}
"""


@pytest.fixture
def program(tmp_path):
    runtime = Runtime.shared(hip_toolchain().include)
    runtime.configure()
    library = runtime.open(compile_hip(SOURCE, tmp_path))
    library.timed.restype = ctypes.c_float
    return runtime, library


def timed(runtime, library, groups: int) -> tuple[float, np.ndarray, np.ndarray]:
    values = np.random.default_rng().standard_normal(256 * groups).astype(np.float32)
    out = np.full_like(values, np.nan)
    for each in (values, out):
        runtime.memory.register(each)
    try:
        pointers = (ctypes.c_void_p(each.ctypes.data) for each in (values, out))
        return runtime.call(library.timed, *pointers, groups), values, out
    finally:
        for each in (values, out):
            runtime.memory.unregister(each.ctypes.data)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_program_that_times_itself(program, arch):
    with program[0].on(arch):
        milliseconds, values, out = timed(*program, 3)
    assert milliseconds == 0
    assert (out.reshape(3, 256) == 2 * values.reshape(3, 256)[:, ::-1]).all()


@pytest.mark.parametrize("arch, lds", [("gfx942", 64 << 10), ("gfx950", 160 << 10)])
def test_occupancy_is_the_simulators(program, arch, lds):
    runtime, library = program
    with runtime.on(arch):
        # 16 KiB of its own, then with 20 KiB more.
        assert runtime.call(library.held, 256, 0) == min(8, lds // (16 << 10))
        assert runtime.call(library.held, 256, 20 << 10) == lds // (36 << 10)
        assert runtime.call(library.held, 256, lds) < 0


@pytest.mark.parametrize("arch", ARCHS)
def test_devices_that_run_together(program, arch):
    """Launches are queued on the current device; memory that it has allocated is its own."""
    runtime, library = program
    library.allocated.restype = ctypes.c_void_p
    library.moved.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    values, shared = np.random.default_rng().standard_normal(256).astype(np.float32), np.zeros(256, np.float32)
    with runtime.devices(arch, 2) as devices:
        address = devices.share(shared)
        own = []
        for device in range(2):
            with runtime.on(arch, device):
                own.append(library.allocated())
                own_values = np.ctypeslib.as_array((ctypes.c_float * 256).from_address(own[-1]))
                own_values[:] = values + device
        with runtime.on(arch, 1):
            assert runtime.call(library.moved, own[1], address) == 0
        assert not shared.any()
        before = len(runtime.launches)
        devices.run()
        assert (shared == values + 1).all() and len(runtime.launches) == before + 1
        with runtime.on(arch, 0):
            assert runtime.call(library.moved, own[1], address) == 0
        with pytest.raises(MemoryFault):
            devices.run()
        with pytest.raises(SimulationError, match="not one of those that run together"), runtime.on(arch):
            runtime.call(library.moved, own[1], address)
        with pytest.raises(ValueError, match="once at a time"), runtime.devices(arch, 2):
            pass
    assert runtime.memory.find(address) is None


@contextlib.contextmanager
def sampled(runtime, arch, workgroups):
    """(profile, list of what each launch hands over) of launches that run these workgroups alone."""
    profile, seen = Profile(), []
    runtime.configure(sample=lambda grid: workgroups, profile=profile)
    runtime.on_launched = lambda *found: seen.append(found)
    try:
        with runtime.on(arch):
            yield profile, seen
    finally:
        runtime.on_launched = None
        runtime.configure()


@pytest.mark.parametrize("arch", ARCHS)
def test_a_sample_tells_what_is_shared(program, arch):
    """Two workgroups run whole; the beginnings of chiplet 0's 5 say that nothing is shared, and write nothing wrong."""
    runtime, library = program
    with sampled(runtime, arch, [0, 7]) as (profile, seen):
        _, values, out = timed(runtime, library, 40)
    ((counters, beginnings),) = seen
    assert counters.workgroups == 2 and counters.grid == 40 and beginnings.workgroups == 5
    assert [each.fills for each in record(counters, profile, beginnings).buffers] == [1.0, 1.0]
    written = np.flatnonzero((out.reshape(40, 256) != 0).any(axis=1)).tolist()
    assert written == [0, 7, 8, 16, 24, 32]
    assert (out.reshape(40, 256)[7] == 2 * values.reshape(40, 256)[7, ::-1]).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_a_sample_is_of_workgroups_with_work(program, arch):
    """Of 20 workgroups the first 9 have none: two others run instead, and of chiplet 0 only one is in flight."""
    runtime, library = program
    values, out = np.ones(20 * 256, np.float32), np.zeros(20 * 256, np.float32)
    addresses = [runtime.memory.register(each) for each in (values, out)]
    try:
        with sampled(runtime, arch, [0, 1]) as (profile, seen):
            pointers = (ctypes.c_void_p(each.ctypes.data) for each in (values, out))
            assert runtime.call(getattr(library, "from"), *pointers, 20, 9) == 0
    finally:
        for each in addresses:
            runtime.memory.unregister(each)
    ((counters, beginnings),) = seen
    assert sorted(profile.courses) == [9, 10] and beginnings.workgroups == 1
    assert (counters.grid, counters.idle) == (20, 9) and record(counters, profile, beginnings).busy == 11
    assert "9 have no work" in describe(counters, profile)
