"""The collective operators between ranks of one process: byte for byte a gather, the sum in the order of ranks, and the
operator without communication."""

import time

import pytest
import torch

from problems.buffers import Guarded, same_bytes
from problems.inputs import FLOATS, HALF, normal, positive, random_codes, random_fp8, short, weights
from problems.quantize import assert_as_defined, special_values
from problems.ranks import Ranks, sum_of

RANKS = (1, 2, 3, 4, 8)
# Rows, columns: few bytes and many; whole vectors, and not; more than one launch takes.
SHAPES = ((1, 8), (1, 4096), (5, 72), (3, 1000), (7, 1), (2, 77), (9, 2048), (1, 70001))

every_count = pytest.mark.parametrize("count", RANKS, ids=lambda count: f"{count}-ranks")


@pytest.fixture(autouse=True)
def not_simulated(request):
    if request.config.getoption("--simulate"):
        pytest.skip("several devices at the same time: tests/gpu/test_rocm_all_reduce.py has them")


@pytest.fixture(autouse=True)
def places_for_all_ranks(environment):
    environment("ROCM_FP8_KERNELS_PDL", "0")


@pytest.fixture
def ranks(kernel, device, backend):
    """ranks(count, ...) -> Ranks; at the end nothing of what they sent may be left."""
    made = []

    def make(count: int, **options) -> Ranks:
        made.append(Ranks(kernel, device, count, **options))
        return made[-1]

    yield make
    for each in made if backend != "cpu" else ():
        if not any(int(one._report[0]) for one in each.all):
            each.assert_clean()


def parts_of(shape, count: int, dtype: torch.dtype, generator, device) -> list[torch.Tensor]:
    return [normal(shape, dtype, generator, 2.0).to(device) for _ in range(count)]


def assert_sum(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, what
    nan = wanted.isnan()
    assert torch.equal(got.isnan(), nan), f"{what}: NaN"
    assert same_bytes(got[~nan], wanted[~nan]), f"{what}: {int((got != wanted).sum())} of {got.numel()} differ"


# --- values alone ---


@every_count
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_sums(ranks, device, generator, count, dtype):
    together = ranks(count)
    for shape in SHAPES:
        parts = parts_of(shape, count, dtype, generator, device)
        wanted = sum_of(parts)
        outs = [Guarded(shape, dtype, device, pad=3, shift=1) for _ in range(count)]
        aligned = together.results(lambda rank, c: c.all_reduce(parts[rank]))
        strided = together.results(lambda rank, c: c.all_reduce(parts[rank], out=outs[rank].t))
        for rank in range(count):
            assert_sum(aligned[rank], wanted, f"{shape}, rank {rank}")
            assert_sum(strided[rank], wanted, f"{shape}, rank {rank}, strided")
            outs[rank].assert_guards_intact(f"{shape}, rank {rank}")


@every_count
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_special_values_of_any_rank_in_every_lane(ranks, device, generator, count, dtype):
    """Beside ordinary numbers: the words that stand for nothing on a GPU are among them."""
    special = special_values(dtype)
    ones = torch.tensor([-1], dtype=torch.int32 if dtype == torch.float32 else torch.int16).view(dtype)
    special = torch.cat([special, ones, ones, ones, ones])
    parts = parts_of((len(special) + 5, 256), count, dtype, generator, device)
    for rank, part in enumerate(parts):
        for row in range(len(special)):
            part[row, rank::3] = special.roll(-row).repeat(256)[: len(part[row, rank::3])].to(device)
            part[row] = part[row].roll(row)
    parts[-1][-1] = ones.to(device)  # whole vectors of them
    got = ranks(count).results(lambda rank, c: c.all_reduce(parts[rank]))
    for each in got:
        assert_sum(each, sum_of(parts), "special values")


def test_in_place_and_in_batches(ranks, device, generator):
    together = ranks(2)
    parts = [normal((3, 4, 40), torch.bfloat16, generator).to(device) for _ in range(2)]
    wanted = sum_of(parts)
    turned = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in parts]
    for got in together.results(lambda rank, c: c.all_reduce(turned[rank])):
        assert same_bytes(got, wanted)
    got = together.results(lambda rank, c: c.all_reduce(parts[rank], out=parts[rank]))
    assert all(each is part and same_bytes(part, wanted) for each, part in zip(got, parts))


@every_count
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_each_rank_has_its_rows_of_the_sum(ranks, device, generator, count, dtype):
    together = ranks(count)
    for rows, d in ((count, 8), (3 * count, 1000), (5 * count, 77), (40 * count, 2048), (0, 8), (count, 0)):
        parts = parts_of((rows, d), count, dtype, generator, device)
        outs = [Guarded((rows // count, d), dtype, device, pad=8) for _ in range(count)]
        together.results(lambda rank, c: c.reduce_scatter(parts[rank], out=outs[rank].t))
        for rank, wanted in enumerate(sum_of(parts).chunk(count)):
            assert_sum(outs[rank].t, wanted, f"{rows} x {d}, rank {rank}")
            outs[rank].assert_guards_intact(f"{rows} x {d}")


@every_count
def test_gathers(ranks, device, generator, count, formats):
    together = ranks(count)
    for rows, d in ((1, 16), (3, 1000), (5, 77), (40, 2048)):
        for dtype in (*FLOATS, *formats, torch.int8):
            if dtype.itemsize == 1:  # every byte, those too of which four are a word of ones
                parts = [torch.randint(0, 256, (rows, d), generator=generator).to(torch.uint8) for _ in range(count)]
                parts = [torch.where(part % 3 == 0, 255, part).to(torch.uint8).to(device).view(dtype) for part in parts]
            else:
                parts = parts_of((rows, d), count, dtype, generator, device)
            outs = [Guarded((rows * count, d), dtype, device, pad=4) for _ in range(count)]
            together.results(lambda rank, c: c.all_gather(parts[rank], out=outs[rank].t))
            for out in outs:
                assert same_bytes(
                    out.t,
                    torch.cat([part.view(torch.int8) for part in parts]).view(dtype)
                    if dtype.itemsize == 1
                    else torch.cat(parts),
                ), f"{rows} x {d} {dtype}"
                out.assert_guards_intact(f"{rows} x {d} {dtype}")


# --- with the norm ---

SCALINGS = (
    dict(scaling="row"),
    dict(scaling="tensor"),
    dict(scaling="group"),
    dict(scaling="group", group_size=32, power_of_two=True, column_major_scales=True),
    dict(scaling="group", scale_dtype=torch.float8_e8m0fnu),
    dict(scaling="row", fp8_max=224.0, normalized=True),
)
NORM_SHAPES = ((1, 4096), (3, 128), (5, 256), (2, 1000), (4, 77), (9, 8192), (1, 16384), (33, 512))


@every_count
@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("weight_dtype", ("own", "f32"))
def test_norm_of_the_sum(kernel, ranks, device, generator, count, dtype, weight_dtype):
    together = ranks(count)
    scale = positive((1,), generator).to(device)
    for rows, d in NORM_SHAPES:
        parts = parts_of((rows, d), count, dtype, generator, device)
        parts[0][0, 0] = float("nan")
        residual = normal((rows, d), dtype, generator).to(device)
        weight = weights((d,), dtype if weight_dtype == "own" else torch.float32, generator).to(device)
        after = residual.clone()
        wanted = kernel.add_rms_norm_fp8(sum_of(parts), after, weight, scale, 1e-5)
        residuals = [Guarded((rows, d), dtype, device, pad=8).holding(residual) for _ in range(count)]
        outs = [Guarded((rows, d), wanted.dtype, device, pad=16) for _ in range(count)]

        def norm(rank, c):
            return c.all_reduce_add_rms_norm_fp8(parts[rank], residuals[rank].t, weight, scale, 1e-5, out=outs[rank].t)

        together.results(norm)
        for rank in range(count):
            what = f"{rows} x {d}, rank {rank}"
            assert_as_defined((outs[rank].t,), (wanted,), what)
            assert_sum(residuals[rank].t, after, what)
            outs[rank].assert_guards_intact(what)
            residuals[rank].assert_guards_intact(what)


@every_count
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_norm_of_the_sum_by_computed_scales(kernel, ranks, device, generator, count, scaling):
    together = ranks(count)
    scaling = dict(scaling)
    keeps = scaling.pop("normalized", False)
    for rows, d in ((1, 4096), (5, 256), (3, 1024), (2, 1000), (9, 8192)):
        parts = parts_of((rows, d), count, torch.bfloat16, generator, device)
        residual = normal((rows, d), torch.bfloat16, generator).to(device)
        weight = weights((d,), torch.bfloat16, generator).to(device)
        after, kept = residual.clone(), torch.empty_like(residual)
        extra = dict(normalized_out=kept) if keeps else {}
        wanted = kernel.add_rms_norm_dynamic_fp8(sum_of(parts), after, weight, **scaling, **extra)
        residuals = [residual.clone() for _ in range(count)]
        normalized = [torch.full_like(residual, float("nan")) for _ in range(count)]

        def norm(rank, c):
            extra = dict(normalized_out=normalized[rank]) if keeps else {}
            return c.all_reduce_add_rms_norm_dynamic_fp8(parts[rank], residuals[rank], weight, **scaling, **extra)

        for rank, got in enumerate(together.results(norm)):
            assert_as_defined(got, wanted, f"{rows} x {d}, rank {rank}")
            assert same_bytes(residuals[rank], after)
            if keeps:
                assert same_bytes(normalized[rank], kept)


# --- with the GEMM ---


@pytest.mark.parametrize("count", (1, 2, 4), ids=lambda count: f"{count}-ranks")
def test_gemms(kernel, ranks, device, generator, count):
    """Each equals its parts one after the other: the product rounded, the collective, the norm."""
    together = ranks(count)
    fp8 = kernel.fp8_dtype(device)
    rows, n, k = 4 * count, 128, 256
    a = [random_fp8((rows, k), fp8, generator).to(device) for _ in range(count)]
    b = [random_fp8((n, k), fp8, generator).to(device) for _ in range(count)]
    scale_a = [positive((rows, 1), generator).to(device) for _ in range(count)]
    scale_b = [positive((1, n), generator).to(device) for _ in range(count)]
    bias = normal((n,), torch.bfloat16, generator).to(device)

    products = [kernel.skinny_gemm(*each, bias) for each in zip(a, b, scale_a, scale_b)]
    wanted = sum_of(products)
    for got in together.results(lambda r, c: c.skinny_gemm_all_reduce(a[r], b[r], scale_a[r], scale_b[r], bias)):
        assert same_bytes(got, wanted)

    weight, scale = weights((n,), torch.bfloat16, generator).to(device), positive((1,), generator).to(device)
    residual = normal((rows, n), torch.bfloat16, generator).to(device)
    after, residuals = residual.clone(), [residual.clone() for _ in range(count)]
    q = kernel.add_rms_norm_fp8(wanted, after, weight, scale)

    def whole(r, c):
        operands = a[r], b[r], scale_a[r], scale_b[r], bias, residuals[r], weight, scale
        return c.skinny_gemm_all_reduce_add_rms_norm_fp8(*operands)

    for rank, got in enumerate(together.results(whole)):
        assert_as_defined((got,), (q,), f"rank {rank}")
        assert same_bytes(residuals[rank], after)

    blocks_a = [positive((rows, 2), generator).to(device) for _ in range(count)]
    blocks_b = [positive((1, 2), generator).to(device) for _ in range(count)]
    products = [kernel.block_scaled_gemm(*each) for each in zip(a, b, blocks_a, blocks_b)]
    got = together.results(lambda r, c: c.block_scaled_gemm_reduce_scatter(a[r], b[r], blocks_a[r], blocks_b[r]))
    for each, part in zip(got, sum_of(products).chunk(count)):
        assert same_bytes(each, part)

    gathered = torch.cat([each.view(torch.uint8) for each in a]).view(fp8), torch.cat(blocks_a)
    got = together.results(lambda r, c: c.all_gather_block_scaled_gemm(a[r], b[r], blocks_a[r], blocks_b[r]))
    for rank, each in enumerate(got):
        assert same_bytes(each, kernel.block_scaled_gemm(gathered[0], b[rank], gathered[1], blocks_b[rank]))
    one, exponents = torch.tensor([0.5], device=device), torch.float8_e8m0fnu
    got = together.results(lambda r, c: c.all_gather_block_scaled_gemm(a[r], b[r], one, blocks_b[r]))
    for rank, each in enumerate(got):
        assert same_bytes(each, kernel.block_scaled_gemm(gathered[0], b[rank], one, blocks_b[rank]))
    powers = [torch.full((rows, 2), 0.25 * (r + 1)).to(device).to(exponents) for r in range(count)]
    got = together.results(lambda r, c: c.all_gather_block_scaled_gemm(a[r], b[r], powers[r], blocks_b[r]))
    scales = torch.cat([each.float() for each in powers])
    for rank, each in enumerate(got):
        assert same_bytes(each, kernel.block_scaled_gemm(gathered[0], b[rank], scales, blocks_b[rank]))


# --- many calls ---


@pytest.mark.parametrize("count", (2, 4), ids=lambda count: f"{count}-ranks")
def test_calls_of_changing_sizes(kernel, ranks, device, generator, count):
    """Halves are used again and again; ranks are late by turns."""
    together = ranks(count)
    sizes = [(int(rows), int(d) * 8) for rows, d in torch.randint(1, 40, (60, 2), generator=generator)]
    parts = [parts_of(size, count, torch.bfloat16, generator, device) for size in sizes]
    weight = [weights((d,), torch.bfloat16, generator).to(device) for _, d in sizes]
    scale = positive((1,), generator).to(device)
    pauses = torch.rand(count, len(sizes), generator=generator)

    def calls(rank, c):
        found = []
        for i in range(len(sizes)):
            if pauses[rank, i] < 0.1 and device.type == "cpu":
                time.sleep(float(pauses[rank, i]) / 20)
            if i % 3 == 0:
                residual = torch.zeros_like(parts[i][rank])
                found.append(c.all_reduce_add_rms_norm_fp8(parts[i][rank], residual, weight[i], scale))
            else:
                found.append(c.all_reduce(parts[i][rank]))
        return found

    wanted = [sum_of(each) for each in parts]
    for i in range(0, len(sizes), 3):
        wanted[i] = kernel.add_rms_norm_fp8(wanted[i], torch.zeros_like(wanted[i]), weight[i], scale)
    for rank, found in enumerate(together.results(calls)):
        for i, (got, expected) in enumerate(zip(found, wanted)):
            assert same_bytes(got, expected), f"rank {rank}, call {i}, {sizes[i]}"


# --- ranks that fail ---


def test_a_rank_that_does_not_come(ranks, device):
    together = ranks(3, timeout=0.5)
    x = torch.ones(4, 64, dtype=torch.bfloat16, device=device)

    def call(rank, c):
        c.all_reduce(x)
        c.check()

    errors = together.run(call, ranks=(0, 2))
    for error in (errors[0], errors[2]):
        assert isinstance(error, RuntimeError)
        assert "rank 1 of 3 did not come within 0.5 s" in str(error)
    for rank in (0, 2):  # afterwards, at once
        with pytest.raises(RuntimeError, match="^all_reduce: rank 1 of 3 did not come"):
            together.all[rank].all_reduce(x)
        together.all[rank].close()


@pytest.mark.parametrize("sizes", (((2, 64), (3, 64)), ((2, 64), (2, 128)), ((40, 512), (1, 8))), ids=str)
def test_ranks_with_other_sizes(ranks, device, sizes):
    together = ranks(2, timeout=600.0)

    def call(rank, c):
        c.all_reduce(torch.ones(sizes[rank], device=device))
        c.check()

    for rank, error in enumerate(together.run(call)):
        assert isinstance(error, RuntimeError), error
        assert f"rank {1 - rank} of 2 calls another operator, or one with other sizes" in str(error)


def test_ranks_with_other_operators(ranks, device, generator):
    together = ranks(2, timeout=600.0)
    x, weight = torch.ones(2, 64, dtype=torch.bfloat16, device=device), torch.ones(64, device=device).bfloat16()

    def call(rank, c):
        if rank:
            c.all_reduce(x)
        else:
            c.all_reduce_add_rms_norm_dynamic_fp8(x, x.clone(), weight)
        c.check()

    for rank, error in enumerate(together.run(call)):
        # The CPU's norm of a sum is all_reduce, then the operator: there is nothing that differs between ranks.
        assert error is None if device.type == "cpu" else f"rank {1 - rank} of 2 calls another" in str(error)


def test_a_closed_communicator_is_refused(ranks, device):
    (one,) = ranks(1).all
    one.close()
    one.close()
    with pytest.raises(RuntimeError, match="communicator: closed"):
        one.all_reduce(torch.ones(2, 8, device=device))


def test_random_bytes_are_gathered_as_they_are(ranks, device, generator):
    parts = [random_codes((7, 33), torch.float8_e4m3fn, generator).to(device) for _ in range(2)]
    for got in ranks(2).results(lambda rank, c: c.all_gather(parts[rank])):
        assert same_bytes(got.view(torch.uint8), torch.cat([part.view(torch.uint8) for part in parts]))
