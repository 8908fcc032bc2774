"""A device that a test drives, in the place of torch.cuda; and the fixture that puts it there."""

import contextlib
import types

import pytest

from benchmarks.harness import gpu_timing


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
