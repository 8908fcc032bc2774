"""GEMMs whose products leave for the other ranks as they are finished, on devices of the simulator: every kernel on
both chips; special values; schedules that favour, delay and stop ranks; ranks that differ or never come."""

import pytest
import torch

from benchmarks.harness.forms import entry
from benchmarks.harness.gpu_cases import CONFIG_VARIABLE
from problems import skinny_gemm as gemm
from problems.buffers import Guarded, same_bytes
from problems.gemm import bias_of
from problems.inputs import FLOATS, HALF, normal, positive, short, weights
from problems.pairwise import SAMPLE, by_form, pairwise
from problems.quantize import assert_as_defined, special_values
from problems.ranks import sum_of
from scripts.machine_code_gates import skinny_shapes
from tests.gpu.simulated_kernels import loaded
from tests.gpu.simulated_ranks import SMALL, assert_another_call, assert_equal_on_all, assert_sum, parts_of
from tests.settings import SEED

kernel = loaded

# Forms, parts of K, dtypes, ranks, widths (whole vectors of 16 bytes, tiles with columns beyond the last), row strides.
FORMS = range(-1, len(skinny_shapes()))
CASES = by_form(pairwise(FORMS, (1, 2, 4), FLOATS, (2, 3, 4), (8, 40, 72), (0, 3), seed=SAMPLE), 1)
SENDS = [f"skinny_gemm_send<{i}>" for i in range(len(skinny_shapes()))] + [
    f"skinny_gemm_send_any<{i}>" for i in range(3)
]


def rows_of(shape: int) -> int:
    most = 32 if shape < 0 else skinny_shapes()[shape]["rows"]
    return most - 3


def drawn(count: int, sizes, fp8, generator, dtype=torch.bfloat16) -> list:
    """The operands of each rank."""
    return [gemm.draw(gemm.Problem(*sizes, fp8), generator, bias=bias_of(dtype)) for _ in range(count)]


def operands(inputs) -> tuple:
    return inputs.a, inputs.b, inputs.scale_a, inputs.scale_b, inputs.bias


def products(simulated_rocm, arch, inputs, dtype) -> list[torch.Tensor]:
    """What skinny_gemm makes of each rank's."""
    with simulated_rocm.on(arch, seed=SEED) as kernel:
        return [kernel.skinny_gemm(*operands(each), out_dtype=dtype) for each in inputs]


@pytest.mark.parametrize(
    "shape, splits, dtype, count, n, pad", CASES, ids=lambda v: short(v) if v in FLOATS else str(v)
)
def test_every_form(
    ranks, simulated_rocm, launched, arch, fp8, generator, environment, shape, splits, dtype, count, n, pad
):
    """Three calls in a row, so that both halves are used and one of them again."""
    environment(CONFIG_VARIABLE, entry("skinny_gemm", "rocm", shape, splits))
    sizes = rows_of(shape), n, 1040
    calls = [drawn(count, sizes, fp8, generator, dtype) for _ in range(3)]
    wanted = [sum_of(products(simulated_rocm, arch, inputs, dtype)) for inputs in calls]
    launched.names()
    with ranks(count) as together:
        outs = [[Guarded(sizes[:2], dtype, "cpu", pad=pad) for _ in range(count)] for _ in calls]
        for inputs, each in zip(calls, outs):
            together.queue(lambda rank, c: c.skinny_gemm_all_reduce(*operands(inputs[rank]), out=each[rank].t))
        together.together.run()
    for each, whole in zip(outs, wanted):
        assert_equal_on_all([out.t for out in each], whole, f"{sizes}")
        for out in each:
            out.assert_guards_intact(f"{sizes}")
    assert {name.partition("<")[0] for name in launched.names()} == {
        "skinny_gemm_send_any" if shape < 0 else "skinny_gemm_send",
        "rows_of_ranks",
    }


@pytest.mark.parametrize("shape", (-1, 0, 5))
def test_eight_ranks(ranks, simulated_rocm, arch, fp8, generator, environment, shape):
    environment(CONFIG_VARIABLE, entry("skinny_gemm", "rocm", shape))
    inputs = drawn(8, (2, 40, 272), fp8, generator)
    wanted = sum_of(products(simulated_rocm, arch, inputs, torch.bfloat16))
    with ranks(8) as together:
        got = together.results(lambda rank, c: c.skinny_gemm_all_reduce(*operands(inputs[rank])))
        assert_equal_on_all(got, wanted, "eight ranks")


def test_every_kernel_is_tried(kernels, launched, ranks, arch, fp8, generator, environment):
    """The class of rows decides which of the fallback's; here each is launched."""
    with ranks(2) as together:
        for shape in range(len(skinny_shapes())):
            environment(CONFIG_VARIABLE, entry("skinny_gemm", "rocm", shape))
            inputs = drawn(2, (rows_of(shape), 8, 272), fp8, generator)
            together.results(lambda rank, c: c.skinny_gemm_all_reduce(*operands(inputs[rank])))
        environment(CONFIG_VARIABLE, "skinny_gemm:fallback")
        for rows in (8, 16, 32):
            inputs = drawn(2, (rows, 8, 272), fp8, generator)
            together.results(lambda rank, c: c.skinny_gemm_all_reduce(*operands(inputs[rank])))
    sent = kernels.names(arch, "skinny_gemm_send", "skinny_gemm_send_any")
    assert sent == set(SENDS) and sent <= set(launched.names())


@pytest.mark.parametrize("count", (2, 3))
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_special_values_of_any_rank(ranks, simulated_rocm, arch, fp8, generator, count, dtype):
    """By a bias of them, added to products of zeros: words of ones, both infinities, NaNs, subnormals, -0; whole
    vectors of ones, and ones beside ordinary numbers."""
    ones = torch.tensor([-1], dtype=torch.int32 if dtype == torch.float32 else torch.int16).view(dtype)
    special = torch.cat([special_values(dtype), ones.repeat(16)])
    special = torch.cat([special, normal((-len(special) % 8 + 8,), dtype, generator)])
    inputs = drawn(count, (5, len(special), 64), fp8, generator, dtype)
    for rank, each in enumerate(inputs):
        each.a[1:] = 0
        each.bias = special.roll(rank) if rank < 2 else special.roll(3 * rank)
    wanted = sum_of(products(simulated_rocm, arch, inputs, dtype))
    assert wanted[1].isnan().any() and wanted[1].isinf().any()
    with ranks(count) as together:
        got = together.results(lambda rank, c: c.skinny_gemm_all_reduce(*operands(inputs[rank]), out_dtype=dtype))
        assert_equal_on_all(got, wanted, "special values")


@pytest.mark.parametrize("count", (1, 2, 3))
@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("weight_dtype", ("own", "f32"))
def test_norm_of_the_sum(ranks, simulated_rocm, arch, fp8, generator, count, dtype, weight_dtype):
    """Rows of a wave and of a workgroup; one that the row kernel takes and one that is summed in memory."""
    scale = positive((1,), generator)
    for rows, d in ((3, 496), (2, 2064)):
        inputs = drawn(count, (rows, d, 144), fp8, generator, dtype)
        inputs[0].a.view(torch.uint8)[0, 0] = 0x80 if "fnuz" in str(fp8) else 0x7F  # NaN
        residual = normal((rows, d), dtype, generator)
        weight = weights((d,), dtype if weight_dtype == "own" else torch.float32, generator)
        after, residuals = residual.clone(), [residual.clone() for _ in range(count)]
        whole = sum_of(products(simulated_rocm, arch, inputs, dtype))
        with simulated_rocm.on(arch, seed=SEED) as kernel:
            wanted = kernel.add_rms_norm_fp8(whole, after, weight, scale, 1e-5)
        with ranks(count) as together:
            got = together.results(
                lambda rank, c: c.skinny_gemm_all_reduce_add_rms_norm_fp8(
                    *operands(inputs[rank]), residuals[rank], weight, scale, 1e-5
                )
            )
        for rank in range(count):
            assert_as_defined((got[rank],), (wanted,), f"{rows} x {d}, rank {rank}")
            assert_sum(residuals[rank], after, f"{rows} x {d}, rank {rank}")


@pytest.mark.parametrize("sizes", ((2, 37), (5, 1024), (1, 8)), ids=str)
def test_what_does_not_fit_is_two_operators(ranks, simulated_rocm, launched, arch, fp8, generator, sizes):
    """Rows of no whole vectors; messages that go two ways, or in several launches."""
    inputs = drawn(3, (*sizes, 80), fp8, generator)
    wanted = sum_of(products(simulated_rocm, arch, inputs, torch.bfloat16))
    launched.names()
    with ranks(3, max_bytes=SMALL) as together:
        got = together.results(lambda rank, c: c.skinny_gemm_all_reduce(*operands(inputs[rank])))
        assert_equal_on_all(got, wanted, f"{sizes}")
    assert any("skinny_gemm_send" in name for name in launched.names()) == (sizes == (1, 8))


# --- schedules, and ranks that do not come ---


def test_the_schedule_does_not_change_bytes(ranks, simulated_rocm, arch, fp8, generator):
    """Many seeds; calls of all kinds in a row, so that each kind follows each and halves are used again."""
    count, n = 4, 24
    inputs = [drawn(count, (rows, n, 144), fp8, generator) for rows in (1, 9, 2, 1)]
    made = [products(simulated_rocm, arch, each, torch.bfloat16) for each in inputs]
    parts = parts_of((3, n), count, torch.bfloat16, generator)
    weight, scale = weights((n,), torch.bfloat16, generator), positive((1,), generator)
    quantised = []
    for each in made:
        residual = torch.zeros_like(each[0])
        with simulated_rocm.on(arch, seed=SEED) as kernel:
            quantised.append((kernel.add_rms_norm_fp8(sum_of(each), residual, weight, scale), residual))
    for number in range(6):
        with ranks(count, seed=SEED + number) as together:
            got = []
            for each in inputs:
                residuals = [torch.zeros(len(each[0].a), n, dtype=torch.bfloat16) for _ in range(count)]
                plain = together.queue(lambda rank, c: c.all_reduce(parts[rank]))
                alone = together.queue(lambda rank, c: c.skinny_gemm_all_reduce(*operands(each[rank])))
                again = together.queue(lambda rank, c: c.skinny_gemm_all_reduce(*operands(each[rank])))
                normed = together.queue(
                    lambda rank, c: c.skinny_gemm_all_reduce_add_rms_norm_fp8(
                        *operands(each[rank]), residuals[rank], weight, scale
                    )
                )
                got.append((plain, alone, again, normed, residuals))
            together.together.run()
            for (plain, alone, again, normed, residuals), each, (q, after) in zip(got, made, quantised):
                what = f"seed {SEED + number}, {len(each[0])} rows"
                assert_equal_on_all(plain, sum_of(parts), what)
                assert_equal_on_all(alone, sum_of(each), what)
                assert_equal_on_all(again, sum_of(each), what)
                assert all(same_bytes(one, q) for one in normed), what
                assert all(same_bytes(one, after) for one in residuals), what


@pytest.mark.parametrize("first", [0, 1, 2], ids=("at-once", "later", "in-the-first-half"))
def test_a_rank_that_never_comes(ranks, simulated_rocm, arch, fp8, generator, first):
    """After `first` calls of all; its words are ones, so results are NaN."""
    inputs = drawn(3, (2, 40, 80), fp8, generator)
    wanted = sum_of(products(simulated_rocm, arch, inputs, torch.bfloat16))

    def call(rank, c):
        return c.skinny_gemm_all_reduce(*operands(inputs[rank]))

    with ranks(3, timeout=2.0) as together:
        for _ in range(first):
            assert_equal_on_all(together.results(call), wanted, "before")
        got = together.queue(call, (0, 1))
        together.together.run()
        for rank in (0, 1):
            assert got[rank].isnan().all()
            with pytest.raises(RuntimeError, match=r"rank 2 of 3 did not come within 2\.? s"):
                together.all[rank].check()
            with pytest.raises(RuntimeError, match="^skinny_gemm_all_reduce: rank 2.*can only be closed"):
                call(rank, together.all[rank])


def test_a_rank_that_calls_something_else(ranks, fp8, generator):
    """The same sum without the GEMM, another number of columns, a norm behind it."""
    small, wide = drawn(2, (2, 40, 80), fp8, generator), drawn(2, (2, 48, 80), fp8, generator)
    x = parts_of((2, 40), 1, torch.bfloat16, generator)[0]
    weight, scale = weights((40,), torch.bfloat16, generator), positive((1,), generator)
    others = (
        lambda c: c.all_reduce(x),
        lambda c: c.skinny_gemm_all_reduce(*operands(wide[1])),
        lambda c: c.skinny_gemm_all_reduce_add_rms_norm_fp8(*operands(small[1]), x.clone(), weight, scale),
    )
    for other in others:
        with ranks(2, timeout=2.0) as together:
            together.run(lambda rank, c: other(c) if rank else c.skinny_gemm_all_reduce(*operands(small[0])))
            assert_another_call(together)
