"""Ranks as devices of the simulator, and what their results are held to."""

import pytest
import torch

from problems.buffers import same_bytes
from problems.inputs import normal
from problems.ranks import Ranks

SMALL = 4096  # max_bytes of a communicator whose messages are soon too long


class OnDevices(Ranks):
    """A rank a device; what a body calls runs when all have called it."""

    def __init__(self, together, count: int, **options):
        super().__init__(together.kernel, torch.device("cpu"), count, **options)
        self.together = together
        for rank, one in enumerate(self.all):
            together.share(self.memory[rank], f"memory of rank {rank}")
            together.share(one._report, f"report of rank {rank}")
            together.own(rank, one._state)

    def queue(self, body, ranks=None) -> list:
        """Calls body of each rank, or of those named; errors are results. The launches wait for the next run."""
        results: list = [None] * len(self.all)
        for rank in range(len(self.all)) if ranks is None else ranks:
            with self.together.on(rank):
                try:
                    results[rank] = body(rank, self.all[rank])
                except RuntimeError as error:
                    results[rank] = error
        return results

    def run(self, body, ranks=None) -> list:
        results = self.queue(body, ranks)
        self.together.run()
        return results


def parts_of(shape, count: int, dtype: torch.dtype, generator) -> list[torch.Tensor]:
    return [normal(shape, dtype, generator, 2.0) for _ in range(count)]


def assert_sum(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    nan = wanted.isnan()
    assert torch.equal(got.isnan(), nan), f"{what}: NaN"
    assert same_bytes(got[~nan], wanted[~nan]), f"{what}: {int((got != wanted).sum())} of {got.numel()} differ"


def assert_equal_on_all(got: list[torch.Tensor], wanted: torch.Tensor, what: str) -> None:
    for rank, each in enumerate(got):
        assert_sum(each, wanted, f"{what}, rank {rank}")
        assert same_bytes(each, got[0]), f"{what}: rank {rank} differs from rank 0"


def assert_another_call(together: Ranks) -> None:
    """Every rank has failed, and at least one says that the other called something else."""
    errors = []
    for one in together.all:
        with pytest.raises(RuntimeError) as found:
            one.check()
        errors.append(str(found.value))
    assert any("calls another operator, or one with other sizes" in each for each in errors), errors
