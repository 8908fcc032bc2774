"""The ROCm variant's operators between ranks, on devices of the simulator: every kernel on both chips; schedules
that favour, delay and stop ranks; messages that arrive late and torn; ranks that disagree or never come."""

import itertools
import struct

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS
from problems.buffers import Guarded, same_bytes
from problems.inputs import FLOATS, HALF, normal, positive, short, weights
from problems.quantize import assert_as_defined, special_values
from problems.ranks import CONTROL_BYTES, sum_of
from simulator.devices import Devices
from tests.gpu.simulated_kernels import row_launch, row_width
from tests.gpu.simulated_ranks import SMALL, assert_another_call, assert_equal_on_all, assert_sum, parts_of
from tests.settings import SEED, full

# Eight ranks are eight launches. Their kernels run with three in the other cases.
every_count = pytest.mark.parametrize("count", (1, 2, 3, full(4), full(8)), ids=lambda count: f"{count}-ranks")
# Kernels are those of two ranks and of up to eight: there each dtype.
every_kernel = pytest.mark.parametrize(
    "count, dtype",
    [
        *((1, torch.float16), full(4, torch.bfloat16), full(8, torch.bfloat16), full(8, torch.float32)),
        *((count, dtype) for count in (2, 3) for dtype in FLOATS),
    ],
    ids=lambda v: f"{v}-ranks" if isinstance(v, int) else short(v),
)
# Of a communicator that takes SMALL at once: rows and columns of one way, of two ways with more than two ranks, of
# several launches; whole vectors, and not.
SHAPES = ((1, 8), (3, 77), (2, 2304), (1, 9001))


# --- values alone ---


@every_kernel
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


@every_kernel
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


@every_kernel
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


@every_count
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_norm_of_the_sum(ranks, simulated_rocm, arch, generator, count, dtype):
    scale = positive((1,), generator)
    for rows, d in ((5, 496), (2, 2000), (2, 1000)):
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


NORMS = [
    f"norm_of_sum<{', '.join(each)}, {most}>"
    for each in itertools.product(("f16", "bf16"), ("fp8", "computed"), ("wave, 1", "wave, 2", "wave, 4"))
    for most in (2, 8)
]
NORMS += [name.replace("wave", "workgroup") for name in NORMS]


def launch_norm(devices, kernels, host_arguments, arch, name: str, way: int, count: int, operands: list) -> None:
    """A kernel by itself, on rows that its launcher would give to another one. `operands` of each rank: x, residual,
    weight, scale or scales, out."""
    simulator, symbol = kernels.found(arch, name)
    rows, holder = len(operands[0][0]), name.split(", ")[2]
    half, size = 1 << 18, CONTROL_BYTES + (2 << 18)
    memories = [torch.full((size,), 0xFF, dtype=torch.uint8) for _ in range(count)]
    state, report = torch.zeros(count, 4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    devices.share_address(report.data_ptr(), report.nbytes, "report")
    for rank, memory in enumerate(memories):
        memory[:CONTROL_BYTES] = 0
        devices.share_address(memory.data_ptr(), memory.nbytes, f"memory of rank {rank}")
        for each in (state[rank], *operands[rank]):
            devices.own_address(rank, each.data_ptr(), each.nbytes)
    groups, threads = row_launch(holder, rows)
    pointers = [memory.data_ptr() for memory in memories] + [0] * (8 - count)
    for rank, (x, residual, weight, scale, out) in enumerate(operands):
        by_row = scale.dim() == 2
        dynamic = host_arguments.dynamic_scale(scale, None, 448.0 / 2, 0, False) if by_row else None
        args = host_arguments.rms_norm(x, residual, weight, None if by_row else scale, out, 1e-6, dynamic)
        sizes = half, 10**10, half // count // 128 * 128, rank, count, -1
        peers = struct.pack("<10QqQqiii4x", *pointers, state[rank].data_ptr(), report.data_ptr(), *sizes)
        devices.launch(rank, simulator, symbol, groups, threads, [threads, args, peers, way, 1])
    devices.run()
    for memory in memories:
        assert (memory[CONTROL_BYTES:] == 0xFF).all(), name
    assert not report.any() and (state[:, :3] == torch.tensor([1, 0, 0])).all()


@pytest.mark.parametrize("name", NORMS)
def test_every_norm_kernel(kernels, host_arguments, simulated_rocm, arch, generator, name):
    """On one way and on two; workgroups and waves that have rows behind the last one, lanes that have vectors there."""
    dtype_name, output, holder, held, most = name.partition("<")[2].rstrip(">").split(", ")
    dtype, count = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype_name], 2 if most == "2" else 3
    rows, d, fp8 = 2, row_width(holder, int(held)), FORMATS[arch]
    parts, weight = parts_of((rows, d), count, dtype, generator), weights((d,), dtype, generator)
    residual, scale = normal((rows, d), dtype, generator), positive((1,), generator)
    after = residual.clone()
    with simulated_rocm.on(arch, seed=SEED) as kernel:
        if output == "fp8":
            wanted = kernel.add_rms_norm_fp8(sum_of(parts), after, weight, scale), scale
        else:
            wanted = kernel.add_rms_norm_dynamic_fp8(sum_of(parts), after, weight, scaling="row", fp8_max=224.0)
    for way in (0, 1) if most == "8" else (0,):
        outs = [torch.full((rows, d), 0x80, dtype=torch.uint8).view(fp8) for _ in range(count)]
        scales = [scale.clone() if output == "fp8" else torch.full((rows, 1), torch.nan) for _ in range(count)]
        residuals = [residual.clone() for _ in range(count)]
        operands = [[parts[r], residuals[r], weight.clone(), scales[r], outs[r]] for r in range(count)]
        devices = Devices(count, memory=kernels.found(arch, name)[0].memory, seed=SEED)
        try:
            launch_norm(devices, kernels, host_arguments, arch, name, way, count, operands)
        finally:
            devices.end()
        for rank in range(count):
            assert_as_defined((outs[rank], scales[rank]), wanted, f"{name}, rank {rank}")
            assert same_bytes(residuals[rank], after)


def test_every_kernel_is_tried(kernels, launched, ranks, arch, generator):
    """Those of values by the launchers, on 2 and on 3 ranks; with the norm as above."""
    assert kernels.names(arch, "norm_of_sum") == set(NORMS)
    for count in (2, 3):
        with ranks(count) as together:
            for d in (16, 9):
                for dtype in FLOATS:
                    x = normal((count, d), dtype, generator)
                    x = [x.clone() for _ in range(count)]
                    together.queue(lambda rank, c: c.all_reduce(x[rank]))
                    together.queue(lambda rank, c: c.reduce_scatter(x[rank]))
                    together.queue(lambda rank, c: c.all_gather(x[rank]))
                codes = [torch.full((1, d), rank, dtype=torch.int8) for rank in range(count)]
                together.queue(lambda rank, c: c.all_gather(codes[rank]))
            together.together.run()
    assert set(launched.names()) == kernels.names(arch, "rows_of_ranks")


# --- schedules, and ranks that do not come ---


def test_the_schedule_does_not_change_bytes(ranks, generator):
    """Many seeds, messages of changing sizes in a row: one way, two ways, several launches."""
    count = 4
    calls = [parts_of((1, d), count, torch.bfloat16, generator) for d in (8, 600, 4000, 40, 9000, 600, 8)]
    for number in range(6):
        with ranks(count, seed=SEED + number, max_bytes=SMALL) as together:
            got = [together.queue(lambda rank, c, parts=parts: c.all_reduce(parts[rank])) for parts in calls]
            together.together.run()
            for parts, outs in zip(calls, got):
                assert_equal_on_all(outs, sum_of(parts), f"seed {SEED + number}, {parts[0].shape}")


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("first", [0, 2], ids=("at-once", "later"))
def test_a_rank_that_never_comes(ranks, generator, count, first):
    """After `first` calls of all; two launches wait in vain on each of the others."""
    parts, absent = parts_of((3, 1000), count, torch.bfloat16, generator), count - 1
    with ranks(count, timeout=2.0, max_bytes=SMALL) as together:
        for _ in range(first):
            assert_equal_on_all(together.results(lambda rank, c: c.all_reduce(parts[rank])), sum_of(parts), "before")
        others = range(count - 1)
        for _ in range(2):
            together.queue(lambda rank, c: c.all_reduce(parts[rank]), others)
        together.together.run()
        for rank in others:
            with pytest.raises(RuntimeError, match=rf"rank {absent} of {count} did not come within 2\.? s"):
                together.all[rank].check()
            with pytest.raises(RuntimeError, match="can only be closed"):
                together.all[rank].all_reduce(parts[rank])


def test_a_rank_that_calls_something_else(ranks, generator):
    """With other sizes, or another operator; found even where less is waited for than was sent."""
    small, large = parts_of((1, 64), 2, torch.float16, generator), parts_of((4, 2000), 2, torch.float16, generator)
    for other in (lambda c: c.all_reduce(large[1]), lambda c: c.all_gather(small[1]), lambda c: c.all_reduce(large[1])):
        with ranks(2, timeout=2.0) as together:
            together.run(lambda rank, c: c.all_reduce(small[0]) if rank == 0 else other(c))
            assert_another_call(together)
