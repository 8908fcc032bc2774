"""The ROCm variant's operators between ranks, on several devices of the simulator: every kernel on both chips, schedules
that favour, delay and stop ranks, messages that arrive late and torn; ranks that disagree or never come."""

import contextlib

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS
from tests.problems.buffers import Guarded, same_bytes
from tests.problems.inputs import FLOATS, HALF, normal, positive, short, weights
from tests.problems.quantize import assert_as_defined, special_values
from tests.problems.ranks import CONTROL_BYTES, Ranks, sum_of
from tests.settings import SEED, needs_rocm_toolchain

pytestmark = needs_rocm_toolchain
COUNTS = (1, 2, 4, 8)
every_count = pytest.mark.parametrize("count", COUNTS, ids=lambda count: f"{count}-ranks")
# Of a communicator that takes 4 KiB at once: rows and columns of one way, of two ways with more than two ranks, of
# several launches; whole vectors, and not.
SMALL = 4096
SHAPES = ((1, 8), (3, 77), (2, 2304), (5, 1000), (1, 9001))


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


@pytest.fixture
def ranks(simulated_rocm, arch):
    """with ranks(count, ...) as together: at its end nothing of what was sent may be left."""

    @contextlib.contextmanager
    def make(count: int, seed=SEED, **options):
        with simulated_rocm.devices(arch, count, seed=seed) as devices:
            together = OnDevices(devices, count, **options)
            yield together
            if not any(int(one._report[0]) for one in together.all):
                together.assert_clean()

    return make


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


# --- values alone ---


@every_count
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_sums(ranks, generator, count, dtype):
    """All shapes in a row, each rank in its time: buffers are used again at once."""
    with ranks(count, max_bytes=SMALL) as together:
        calls = []
        for shape in SHAPES:
            parts = parts_of(shape, count, dtype, generator)
            outs = [Guarded(shape, dtype, "cpu", pad=3, shift=1) for _ in range(count)]
            aligned = together.queue(lambda rank, c: c.all_reduce(parts[rank]))
            together.queue(lambda rank, c: c.all_reduce(parts[rank], out=outs[rank].t))
            calls.append((shape, sum_of(parts), aligned, outs, parts))
        together.together.run()
        for shape, wanted, aligned, outs, _ in calls:
            assert_equal_on_all(aligned, wanted, f"{shape}")
            assert_equal_on_all([out.t for out in outs], wanted, f"{shape} strided")
            for out in outs:
                out.assert_guards_intact(f"{shape}")


@every_count
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_special_values_of_any_rank_in_every_lane(ranks, generator, count, dtype):
    """The words that stand for nothing are among them, and whole vectors of these."""
    ones = torch.tensor([-1], dtype=torch.int32 if dtype == torch.float32 else torch.int16).view(dtype)
    special = torch.cat([special_values(dtype), ones, ones, ones, ones])
    parts = parts_of((len(special) + 1, 128), count, dtype, generator)
    for rank, part in enumerate(parts):
        for row in range(len(special)):
            part[row, rank::3] = special.roll(-row).repeat(128)[: len(part[row, rank::3])]
            part[row] = part[row].roll(row)
    parts[-1][-1] = ones
    with ranks(count, max_bytes=SMALL) as together:
        assert_equal_on_all(
            together.results(lambda rank, c: c.all_reduce(parts[rank])), sum_of(parts), "special values"
        )


@every_count
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_parts_of_sums_and_gathers(ranks, generator, count, dtype):
    with ranks(count, max_bytes=SMALL) as together:
        for rows, d in ((1, 8), (2, 77), (3, 500)):
            parts = parts_of((rows * count, d), count, dtype, generator)
            outs = together.results(lambda rank, c: c.reduce_scatter(parts[rank]))
            for rank, wanted in enumerate(sum_of(parts).chunk(count)):
                assert_sum(outs[rank], wanted, f"{rows} x {d}, rank {rank}")
            for each in together.results(lambda rank, c: c.all_gather(parts[rank])):
                assert same_bytes(each, torch.cat(parts))


@every_count
def test_gathers_of_bytes(ranks, arch, generator, count):
    """Every byte, those too of which four are a word of ones."""
    with ranks(count, max_bytes=SMALL) as together:
        for rows, d in ((3, 1008), (5, 77)):
            codes = [torch.randint(0, 256, (rows, d), generator=generator) for _ in range(count)]
            parts = [torch.where(c % 3 == 0, 255, c).to(torch.uint8).view(FORMATS[arch]) for c in codes]
            for each in together.results(lambda rank, c: c.all_gather(parts[rank])):
                assert same_bytes(each.view(torch.uint8), torch.cat([part.view(torch.uint8) for part in parts]))


# --- with the norm ---

# Columns for each form's holder: the last vectors of some lanes lie behind the row's end. (form, d)
FORMS = (("wave, 1", 496), ("wave, 2", 976), ("workgroup, 1", 2000))


@every_count
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_norm_of_the_sum(ranks, simulated_rocm, arch, generator, count, dtype):
    scale = positive((1,), generator)
    for rows, d in ((1, 128), (5, 496), (3, 976), (2, 2000), (2, 1000)):
        parts = parts_of((rows, d), count, dtype, generator)
        parts[0][0, 0] = float("nan")
        residual, weight = normal((rows, d), dtype, generator), weights((d,), dtype, generator)
        after, kept = residual.clone(), torch.empty_like(residual)
        after_row = residual.clone()
        with simulated_rocm.on(arch, seed=SEED) as kernel:
            wanted = kernel.add_rms_norm_fp8(sum_of(parts), after, weight, scale, 1e-5)
            by_row = kernel.add_rms_norm_dynamic_fp8(
                sum_of(parts), after_row, weight, 1e-5, scaling="row", normalized_out=kept
            )
        with ranks(count) as together:
            residuals = [Guarded((rows, d), dtype, "cpu", pad=8).holding(residual) for _ in range(count)]
            outs = [Guarded((rows, d), wanted.dtype, "cpu", pad=16) for _ in range(count)]
            together.results(
                lambda rank, c: c.all_reduce_add_rms_norm_fp8(
                    parts[rank], residuals[rank].t, weight, scale, 1e-5, out=outs[rank].t
                )
            )
            others = [residual.clone() for _ in range(count)]
            normalized = [torch.full_like(residual, float("nan")) for _ in range(count)]
            got = together.results(
                lambda rank, c: c.all_reduce_add_rms_norm_dynamic_fp8(
                    parts[rank], others[rank], weight, 1e-5, scaling="row", normalized_out=normalized[rank]
                )
            )
        for rank in range(count):
            what = f"{rows} x {d}, rank {rank}"
            assert_as_defined((outs[rank].t,), (wanted,), what)
            assert_sum(residuals[rank].t, after, what)
            outs[rank].assert_guards_intact(what)
            residuals[rank].assert_guards_intact(what)
            assert_as_defined(got[rank], by_row, what)
            assert_sum(normalized[rank], kept, what)
            assert_sum(others[rank], after_row, what)
