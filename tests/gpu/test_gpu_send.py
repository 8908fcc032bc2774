"""GEMMs whose products leave for the other ranks as they are finished, ranks as streams of one GPU: every form that the
GPU has, any cut; special values; graphs replayed from cold beside eager calls; ranks that differ or never come."""

import pytest
import torch

from problems import skinny_gemm as gemm
from problems.buffers import Guarded, same_bytes
from problems.gemm import bias_of
from problems.inputs import FLOATS, normal, positive, short, weights
from problems.quantize import assert_as_defined, special_values
from problems.ranks import Ranks, sum_of
from tests.gpu.simulated_ranks import assert_sum

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CONFIG = "ROCM_FP8_KERNELS_CONFIG"
# Of an NVIDIA GPU: which rows a form takes, and whether it splits K there (skinny_gemm/cuda/shapes.h).
WIDTHS = {
    8: (32, 48, 64, 80, 96, 112),
    16: (24, 32, 40, 48, 56, 64, 80, 112),
    32: (24, 32, 40, 48, 56, 64, 80, 96, 112),
}
FORMS = [(f"b{width}", rows, rows <= 16 or width <= 48) for rows, widths in WIDTHS.items() for width in widths]
FORMS += [("b96w16", 32, False), ("b112w16", 32, False), ("b128w16", 32, False), ("b80c", 32, True)]


ranks = pytest.mark.parametrize("together", (2, 4), ids=lambda n: f"{n}-ranks", indirect=True)
two_ranks = pytest.mark.parametrize("together", (2,), ids=("2-ranks",), indirect=True)


def drawn(kernel, device, count: int, sizes, generator, bias=torch.float32) -> list[tuple]:
    """Operands of each rank."""
    fp8 = kernel.fp8_dtype(device)
    found = [gemm.draw(gemm.Problem(*sizes, fp8), generator, bias=bias_of(bias)) for _ in range(count)]
    return [tuple(t.to(device) for t in (x.a, x.b, x.scale_a, x.scale_b, x.bias)) for x in found]


def check(kernel, together, given, dtype, what: str, constant_b=False, pad=0) -> None:
    """skinny_gemm, then the sum, byte for byte; guards around the result; three calls in a row."""
    wanted = sum_of([kernel.skinny_gemm(*each, out_dtype=dtype) for each in given])
    outs = [[Guarded(wanted.shape, dtype, wanted.device, pad=pad) for _ in given] for _ in range(3)]

    def calls(rank, c):
        for out in outs:
            c.skinny_gemm_all_reduce(*given[rank], out=out[rank].t, constant_b=constant_b)

    together.results(calls)
    for out in outs:
        for rank in range(len(given)):
            assert_sum(out[rank].t, wanted, f"{what}, rank {rank}")
            assert same_bytes(out[rank].t, out[0].t), what
            out[rank].assert_guards_intact(what)


@two_ranks
@pytest.mark.parametrize("form, rows, may_split", FORMS, ids=lambda v: str(v))
def test_every_form(kernel, together, device, generator, environment, form, rows, may_split):
    """Cuts of all kinds: the fewest pieces, and more, whose columns are an odd number for the GEMM alone."""
    if torch.version.hip or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("forms of Hopper")
    for number, (m, n, k) in enumerate(((rows, 520, 2064), (rows // 2 + 1, 40, 4112))):
        given = drawn(kernel, device, 2, (m, n, k), generator)
        for splits in (1, 2, 3, 8) if may_split else (1,):
            for pieces in (None, n // 9):
                environment(CONFIG, f"skinny_gemm:{form},split={splits}" + (f",pieces={pieces}" if pieces else ""))
                what = f"{form} {m}x{n}x{k} split {splits} pieces {pieces}"
                check(kernel, together, given, FLOATS[(number + splits) % 3], what, bool(number), pad=3 * (splits % 2))


@ranks
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_sizes(kernel, together, device, generator, dtype):
    """By the launcher's choice: each class of rows, widths of whole vectors and of none, K of any alignment; what goes
    two ways, or takes several launches, is two operators."""
    count = len(together.all)
    for m, n, k in (
        *((1, 8, 16), (1, 4096, 1024), (3, 264, 300), (8, 1000, 2048), (9, 128, 4096), (16, 2304, 1040)),
        *((17, 4096, 512), (32, 4096, 2048), (32, 72, 17), (5, 77, 256), (2, 2, 64), (32, 16384, 256), (0, 64, 64)),
    ):
        # Ranks of one GPU take each other's places: sums that wait on every multiprocessor leave a last rank's GEMM
        # none, and it is what they wait for. (32 x 4096 with four ranks did so on an H200.)
        waiting = (count - 1) * -(-m * n * dtype.itemsize // 4096)
        if count > 2 and waiting > torch.cuda.get_device_properties(device).multi_processor_count:
            continue
        for constant_b in (False, True):
            given = drawn(kernel, device, count, (m, n, k), generator)
            check(kernel, together, given, dtype, f"{m}x{n}x{k}", constant_b)


@ranks
@pytest.mark.parametrize("dtype", FLOATS, ids=short)
def test_special_values_of_any_rank(kernel, together, device, generator, dtype):
    """By a bias of them, added to products of zeros: words of ones, both infinities, NaNs, subnormals, -0."""
    ones = torch.tensor([-1], dtype=torch.int32 if dtype == torch.float32 else torch.int16).view(dtype)
    special = torch.cat([special_values(dtype), ones.repeat(16)])
    special = torch.cat([special, normal((-len(special) % 8 + 8,), dtype, generator)])
    for m, k in ((3, 64), (24, 2048)):
        given = drawn(kernel, device, len(together.all), (m, len(special), k), generator, dtype)
        for rank, (a, *_, bias) in enumerate(given):
            a[1:] = 0
            bias.copy_(special.roll(3 * rank))
        check(kernel, together, given, dtype, f"{m} rows")


class Layer:
    """O of one layer and what follows, then Down: sums with a norm behind them, and one alone."""

    def __init__(self, kernel, together, generator, device, sizes):
        self.kernel, self.together = kernel, together
        count = len(together.all)
        self.given = [drawn(kernel, device, count, each, generator, torch.bfloat16) for each in sizes]
        self.residuals = [
            [torch.zeros(m, n, dtype=torch.bfloat16, device=device) for _ in range(count)] for m, n, _ in sizes
        ]
        self.weights = [weights((n,), torch.bfloat16, generator).to(device) for _, n, _ in sizes]
        self.scale = positive((1,), generator).to(device)

    def call(self, rank: int) -> list[torch.Tensor]:
        c, found = self.together.all[rank], []
        for given, residual, weight in zip(self.given, self.residuals, self.weights):
            residual[rank].zero_()
            found.append(c.skinny_gemm_all_reduce_add_rms_norm_fp8(*given[rank], residual[rank], weight, self.scale))
            found.append(c.skinny_gemm_all_reduce(*given[rank]))
            found.append(c.all_reduce(found[-1]))
        return found

    def draw(self, generator) -> None:
        for given in self.given:
            for a, *_ in given:
                a.copy_(normal(a.shape, torch.float32, generator, 20.0).clamp(-240, 240).to(a.dtype))
        torch.cuda.synchronize()

    def check(self, found: list[list[torch.Tensor]]) -> None:
        for i, (given, weight) in enumerate(zip(self.given, self.weights)):
            whole = sum_of([self.kernel.skinny_gemm(*each) for each in given])
            after = torch.zeros_like(whole)
            q = self.kernel.add_rms_norm_fp8(whole, after, weight, self.scale)
            for rank, results in enumerate(found):
                assert_as_defined((results[3 * i],), (q,), f"norm, rank {rank}")
                assert same_bytes(self.residuals[i][rank], after)
                assert same_bytes(results[3 * i + 1], whole)
                assert same_bytes(results[3 * i + 2], sum_of([whole] * len(given)))


@ranks
def test_graphs_from_cold_in_any_order_beside_eager_calls(kernel, together, device, generator):
    """An odd and an even number of epochs in a graph, so that replays begin with either half."""
    layers = {
        "one": Layer(kernel, together, generator, device, ((1, 1024, 2048),)),
        "two": Layer(kernel, together, generator, device, ((8, 512, 1024), (24, 256, 4096))),
    }
    graphs, results = {}, {}
    for name, layer in layers.items():
        for rank, stream in enumerate(together.streams):
            graphs[name, rank] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[name, rank], stream=stream):
                results[name, rank] = layer.call(rank)
    torch.cuda.synchronize()
    for step in ("one", "two", "one", "one", "eager", "two", "two", "eager", "eager", "one", "two"):
        layer = layers["two" if step == "eager" else step]
        layer.draw(generator)
        if step == "eager":
            layer.check(together.results(lambda rank, c: layer.call(rank)))
            continue
        for rank, stream in enumerate(together.streams):
            with torch.cuda.stream(stream):
                graphs[step, rank].replay()
        torch.cuda.synchronize()
        layer.check([results[step, rank] for rank in range(len(together.all))])
        for one in together.all:
            one.check()


@two_ranks
def test_a_rank_that_is_late(kernel, together, device, generator):
    layer = Layer(kernel, together, generator, device, ((4, 1024, 2048),))
    torch.cuda.synchronize()
    with torch.cuda.stream(together.streams[1]):
        torch.cuda._sleep(200_000_000)  # clocks: a tenth of a second
    layer.check(together.results(lambda rank, c: layer.call(rank)))


@two_ranks
def test_a_rank_that_calls_something_else(kernel, together, device, generator):
    given = drawn(kernel, device, 2, (2, 64, 256), generator)
    x = torch.ones(2, 64, dtype=torch.bfloat16, device=device)

    def call(rank, c):
        c.all_reduce(x) if rank else c.skinny_gemm_all_reduce(*given[rank])
        c.check()

    for rank, error in enumerate(together.run(call)):
        assert isinstance(error, RuntimeError), error
        assert f"rank {1 - rank} of 2 calls another operator, or one with other sizes" in str(error)


def test_a_rank_that_never_comes(kernel, device, generator, environment):
    if device.type != "cuda":
        pytest.skip("this variant is not the GPU's")
    environment("ROCM_FP8_KERNELS_PDL", "0")
    together = Ranks(kernel, device, 3, timeout=0.5)
    given = drawn(kernel, device, 3, (2, 64, 256), generator)
    got = {}

    def call(rank, c):
        got[rank] = c.skinny_gemm_all_reduce(*given[rank])
        c.check()

    errors = together.run(call, ranks=(0, 2))
    for rank in (0, 2):
        assert "rank 1 of 3 did not come within 0.5 s" in str(errors[rank])
        assert got[rank].isnan().all()
