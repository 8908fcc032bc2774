"""Several ranks in one process: threads on a CPU, streams on one GPU, devices of the simulator.

Their memory is that of plain tensors, so nothing of torch.distributed takes part. On one GPU all ranks' kernels have to
be resident together: few workgroups each, and no PDL (ROCM_FP8_KERNELS_PDL=0), by which launches that wait would take
their places.
"""

import threading
from collections.abc import Callable
from types import ModuleType

import torch

CONTROL_BYTES = 4096


class PlainMemory:
    """One of the ranks' memories, as comm.memory's classes are."""

    locks = -1

    def __init__(self, tensors: list[torch.Tensor], staging: list[torch.Tensor]):
        self.tensors, self.staging = tensors, staging
        self.addresses = [tensor.data_ptr() for tensor in tensors]

    def free(self) -> None:
        self.tensors, self.staging = [], []


class Ranks:
    """A communicator for each of `count` ranks; run() calls a function for all of them at the same time."""

    def __init__(self, kernel: ModuleType, device: torch.device, count: int, *, max_bytes=1 << 16, timeout=600.0):
        module = kernel.comm.communicator
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.half = device, module.half_of(max_bytes, count)
        size = CONTROL_BYTES + 2 * self.half
        self.memory = [torch.full((size,), 0xFF, dtype=torch.uint8, device=device) for _ in range(count)]
        self.staging = [
            torch.empty(module.staging_of(max_bytes), dtype=torch.uint8, device=device) for _ in range(count)
        ]
        self.streams = [torch.cuda.Stream(device) for _ in range(count)] if device.type == "cuda" else [None] * count
        self.all = []
        for rank, memory in enumerate(self.memory):
            memory[:CONTROL_BYTES] = 0
            one = module.Communicator.__new__(module.Communicator)
            one._open(PlainMemory(self.memory, self.staging), rank, count, self.half, timeout, device)
            self.all.append(one)

    def run(self, body: Callable, ranks=None) -> list:
        """body(rank, communicator) of each rank, or of those named; errors are results."""
        ranks = range(len(self.all)) if ranks is None else ranks
        results: list = [None] * len(self.all)

        def call(rank: int) -> None:
            try:
                if self.streams[rank] is None:
                    results[rank] = body(rank, self.all[rank])
                    return
                torch.cuda.set_device(self.device)
                with torch.cuda.stream(self.streams[rank]):
                    results[rank] = body(rank, self.all[rank])
            except BaseException as error:  # raised by the caller
                results[rank] = error

        if self.device.type == "cuda":
            torch.cuda.synchronize()  # the inputs' copies
        threads = [threading.Thread(target=call, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return results

    def results(self, body: Callable) -> list:
        """The same; raises the first error."""
        found = self.run(body)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return found

    def assert_clean(self) -> None:
        """On a GPU what was sent has been taken away again: a later launch would take it for its own."""
        for rank, memory in enumerate(self.memory):
            left = (memory[CONTROL_BYTES:] != 0xFF).nonzero()
            assert left.numel() == 0, f"rank {rank}: bytes of messages are left, the first at {int(left[0])}"


def sum_of(parts: list[torch.Tensor]) -> torch.Tensor:
    """What all_reduce computes."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


def raised(function: Callable[[], object]) -> str:
    """The RuntimeError that it raises."""
    try:
        function()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")
