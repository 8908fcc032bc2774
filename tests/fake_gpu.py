"""Fixtures of the GPU benchmarks' tests: a device that the test drives, and the CPU's operators in a GPU's place."""

import contextlib
import os
import types

import pytest

from benchmarks import cuda, cuda_pieces, gpu_builds, gpu_cases, gpu_layer, gpu_report, gpu_timing, rocm, tune_skinny_gemm
from benchmarks.gpu_environment import Gpu


class FakeGpu:
    """Stands in for torch.cuda: launches name themselves, a replay takes as long as its launches say."""

    def __init__(self):
        # Whole microseconds add up exactly, milliseconds do not.
        self.now_us, self.log, self.recording, self.streams = 0.0, [], None, 0
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool):
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.now_us

            def elapsed_time(self, end: "Event") -> float:
                return (end.at - self.at) / 1e3

        class CUDAGraph:
            def __init__(self):
                self.launched = []

            def replay(self) -> None:
                for name, i, us in self.launched:
                    gpu.now_us += us() if callable(us) else us
                    gpu.log.append((name, i))

        self.Event, self.CUDAGraph = Event, CUDAGraph

    def Stream(self):
        self.streams += 1
        return types.SimpleNamespace(wait_stream=lambda other: None)

    current_stream = Stream

    def stream(self, stream):
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def graph(self, graph, stream):
        self.recording = graph.launched
        yield
        self.recording = None

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def launch(self, name: str, us):
        """A launch that takes `us` microseconds; not recorded, it is logged as eager."""

        def call(i: int) -> None:
            if self.recording is None:
                self.log.append(("eager", i))
            else:
                self.recording.append((name, i, us))

        return call


@pytest.fixture
def gpu(monkeypatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(gpu_timing, "torch", types.SimpleNamespace(cuda=fake))
    return fake


@pytest.fixture
def cpu(kernel, device, monkeypatch, generator) -> Gpu:
    """The CPU in the place of an MI300X; caches of 32 KiB, rows of 96."""
    if device.type != "cpu":
        pytest.skip("the CPU's operators stand in for a GPU's")
    monkeypatch.setattr(gpu_timing, "LAST_LEVEL_CACHE", 1 << 15)
    monkeypatch.setattr(gpu_cases, "WIDTH", 96)
    facts = {"GPU": "Some GPU", "torch": "2.13", "runtime": "HIP 7", "date": "2026-11-21", "commit": "0123456789ab"}
    return Gpu(types.SimpleNamespace(**vars(kernel)), device, "gfx942", facts)


@pytest.fixture
def flow(cpu, gpu, monkeypatch):
    """main() of rocm.py, cuda.py, the tuner, cuda_pieces.py, gpu_builds.py and gpu_layer.py on the CPU's operators and the fake clock: a
    launch takes as many microseconds as `speed` says of its case and configuration."""

    def record(launch, count):
        launch(count - 1)  # on the CPU, at once
        config = os.environ.get(gpu_cases.GEMM_VARIABLE)
        kind = getattr(launch, "__name__", "")
        return original(gpu.launch(kind, speed.us(kind, config, launch)), count)

    speed = types.SimpleNamespace(us=lambda kind, config, launch: 10.0)
    original = gpu_timing.record
    monkeypatch.setattr(cpu.kernel, "ops", types.SimpleNamespace(backend=lambda: "rocm"))
    for module in (rocm, cuda, gpu_report, gpu_timing):
        monkeypatch.setattr(module, "record", record)
    for module in (rocm, cuda, cuda_pieces, gpu_builds, gpu_layer, tune_skinny_gemm):
        monkeypatch.setattr(module, "find_gpu", lambda: cpu)
    return speed
