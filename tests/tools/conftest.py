"""Fixtures of the GPU benchmarks' tests: a device that the test drives, and the CPU's operators in a GPU's place."""

import os
import types

import pytest

from benchmarks import cuda, gpu_builds, gpu_gemms, gpu_layer, rocm, tune
from benchmarks.harness import gpu_cases, gpu_report, gpu_timing, sweep
from benchmarks.harness.gpu_environment import Gpu
from tests.tools.fake_gpu import gpu


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
    """main() of the GPU benchmarks and the tuner on the CPU's operators and the fake clock.

    A launch takes as many microseconds as `speed` says of its case and configuration."""

    def record(launch, count, launches=None):
        launch(count - 1)  # on the CPU, at once
        config = os.environ.get(gpu_cases.CONFIG_VARIABLE, "").partition(":")[2] or None
        kind = getattr(launch, "__name__", "")
        return original(gpu.launch(kind, speed.us(kind, config, launch)), count, launches)

    speed = types.SimpleNamespace(us=lambda kind, config, launch: 10.0)
    original = gpu_timing.record
    monkeypatch.setattr(cpu.kernel, "ops", types.SimpleNamespace(backend=lambda: "rocm"))
    for module in (rocm, cuda, gpu_gemms, gpu_report, gpu_timing, sweep):
        monkeypatch.setattr(module, "record", record)
    monkeypatch.setattr(gpu_timing, "read_rate", lambda effort: 1000.0)
    monkeypatch.setattr(gpu_timing, "launch_floor", lambda effort: 1.0)
    for module in (rocm, cuda, gpu_builds, gpu_gemms, gpu_layer, tune):
        monkeypatch.setattr(module, "find_gpu", lambda: cpu)
    return speed
