"""GEMMs beside their collectives, and large gathers, ranks as streams of one GPU: byte for byte one operator after the
other; in graphs, too."""

import pytest
import torch

from problems import block_scaled_gemm as gemm
from problems.buffers import Guarded, same_bytes
from problems.gemm import Problem, bias_of, no_bias
from problems.ranks import Ranks, sum_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# So small that products take several chunks.
SMALL, MAX_BYTES = dict(LEAST=1 << 16, LEAST_GATHER=1 << 16, TILE=128), 1 << 19
SIZES = ((1024, 1024, 512), (1024, 776, 2064), (2048, 512, 1024))


@pytest.fixture
def together(kernel, device, request, environment, monkeypatch):
    if device.type != "cuda":
        pytest.skip("this variant is not the GPU's")
    environment("ROCM_FP8_KERNELS_PDL", "0")
    for name, value in SMALL.items():
        monkeypatch.setattr(kernel.comm.collectives.overlap, name, value)
    made = Ranks(kernel, device, request.param, timeout=20.0, max_bytes=MAX_BYTES)
    yield made
    made.assert_clean()


every_count = pytest.mark.parametrize("together", (2, 4), ids=lambda n: f"{n}-ranks", indirect=True)


def drawn(kernel, device, count: int, sizes, generator, bias=no_bias) -> list[tuple]:
    found = [gemm.draw(Problem(*sizes, kernel.fp8_dtype(device)), generator, bias=bias) for _ in range(count)]
    return [tuple(None if t is None else t.to(device) for t in (x.a, x.b, x.scale_a, x.scale_b, x.bias)) for x in found]


def scattered(kernel, given, dtype) -> tuple[torch.Tensor, ...]:
    return sum_of([kernel.block_scaled_gemm(*each, out_dtype=dtype) for each in given]).chunk(len(given))


def gathered(kernel, given, dtype) -> list[torch.Tensor]:
    a = torch.cat([each[0].view(torch.uint8) for each in given]).view(given[0][0].dtype)
    scale_a = torch.cat([each[2] for each in given])
    return [kernel.block_scaled_gemm(a, each[1], scale_a, *each[3:], out_dtype=dtype) for each in given]


@every_count
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32), ids=("bf16", "f32"))
@pytest.mark.parametrize("m, n, k", SIZES)
def test_equal_to_one_after_the_other(kernel, together, device, generator, dtype, m, n, k):
    count = len(together.all)
    overlap = kernel.comm.collectives.overlap
    given = drawn(kernel, device, count, (m, n, k), generator, bias_of(torch.float32))
    several = n == 1024 and dtype == torch.float32
    assert len(overlap.chunks_of_columns(together.all[0], *given[0][:2], dtype)) > several
    outs = [Guarded((m // count, n), dtype, device, pad=8) for _ in range(count)]
    together.results(lambda r, c: c.block_scaled_gemm_reduce_scatter(*given[r], out=outs[r].t, constant_b=True))
    for rank, wanted in enumerate(scattered(kernel, given, dtype)):
        assert same_bytes(outs[rank].t, wanted), f"rank {rank}"
        outs[rank].assert_guards_intact(f"rank {rank}")
    rows = [(each[0][: m // count], each[1], each[2][: m // count], *each[3:]) for each in given]
    least = {2: 3, 4: 0}[count] if k == 2064 else 1  # none: two chunks do not fit into staging
    assert len(overlap.chunks_of_product(together.all[0], *rows[0][:3])) >= least
    outs = [Guarded((m, n), dtype, device, pad=8) for _ in range(count)]
    together.results(lambda r, c: c.all_gather_block_scaled_gemm(*rows[r], out=outs[r].t))
    for rank, wanted in enumerate(gathered(kernel, rows, dtype)):
        assert same_bytes(outs[rank].t, wanted), f"rank {rank}"
        outs[rank].assert_guards_intact(f"rank {rank}")


@every_count
def test_large_gathers(kernel, together, device, generator):
    """Bytes as they are, of rows with any stride; one chunk and several."""
    count, overlap = len(together.all), kernel.comm.collectives.overlap
    for rows, d in ((256, 1024), (1000, 4096), (2048, 1000)):
        drawn_bytes = torch.randint(0, 256, (count, rows, d + 24), generator=generator).to(torch.uint8)
        x = list(drawn_bytes.to(device))
        for given in (x, [each[:, 8 : d + 8] for each in x]):
            given = [each.view(kernel.fp8_dtype(device)) for each in given]
            assert overlap.chunks_of_rows(together.all[0], given[0])
            wanted = torch.cat([each.contiguous().view(torch.uint8) for each in given])
            # A rank that brings its result goes the way of those that do not.
            outs = [None, *(Guarded(wanted.shape, given[0].dtype, device, pad=8) for _ in range(count - 1))]
            for rank, found in enumerate(
                together.results(lambda rank, c: c.all_gather(given[rank], outs[rank] and outs[rank].t))
            ):
                assert torch.equal(found.view(torch.uint8), wanted), f"rank {rank}"
                if rank:
                    outs[rank].assert_guards_intact(f"rank {rank}, {list(wanted.shape)}")


@every_count
def test_in_graphs_beside_other_collectives(kernel, together, device, generator):
    """Forked and joined inside the capture; replayed from cold, then with other operands."""
    count = len(together.all)
    given = drawn(kernel, device, count, (1024, 768, 1024), generator)
    rows = [(each[0][: 1024 // count], each[1], each[2][: 1024 // count], *each[3:]) for each in given]

    def call(rank, c):
        first = c.block_scaled_gemm_reduce_scatter(*given[rank])
        return first, c.all_gather(first), c.all_gather_block_scaled_gemm(*rows[rank])

    graphs, results = [], []
    for rank, stream in enumerate(together.streams):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            results.append(call(rank, together.all[rank]))
    torch.cuda.synchronize()
    for step in range(4):
        for each in given:
            each[2].mul_(1.5)
        torch.cuda.synchronize()
        if step == 2:
            found = together.results(call)
        else:
            for graph, stream in zip(graphs, together.streams):
                with torch.cuda.stream(stream):
                    graph.replay()
            torch.cuda.synchronize()
            found = results
        parts, whole = scattered(kernel, given, torch.bfloat16), gathered(kernel, rows, torch.bfloat16)
        for rank in range(count):
            assert same_bytes(found[rank][0], parts[rank])
            assert same_bytes(found[rank][1], torch.cat(parts))
            assert same_bytes(found[rank][2], whole[rank])


@every_count
def test_a_wrong_result_is_refused(kernel, together, device, generator):
    count = len(together.all)
    given = drawn(kernel, device, count, (1024, 768, 256), generator)[0]
    c = together.all[0]
    with pytest.raises(RuntimeError, match="^block_scaled_gemm_reduce_scatter: out: shape"):
        c.block_scaled_gemm_reduce_scatter(*given, out=torch.empty(1024 // count, 800, device=device))
    with pytest.raises(RuntimeError, match="^all_gather_block_scaled_gemm: out: shape"):
        c.all_gather_block_scaled_gemm(*given, out=torch.empty(1024, 768, device=device))
    x = torch.ones(256, 1024, device=device)
    refused = (
        (torch.empty(256 * count, 1000, device=device), "out: shape"),
        (torch.empty(256 * count, 1024, device=device, dtype=torch.bfloat16), "out: torch.bfloat16"),
        (torch.empty(256 * count, 1024), "out: torch.float32 on cpu"),
        (torch.empty(1024, 256 * count, device=device).t(), "out: strides"),
        (torch.empty(1, 1024, device=device).expand(256 * count, -1), "out: strides"),
    )
    for out, message in refused:
        with pytest.raises(RuntimeError, match=f"^all_gather: {message}"):
            c.all_gather(x, out)
    whole = torch.empty(256 * count, 1024, device=device)
    with pytest.raises(RuntimeError, match="^all_gather: out: overlaps x"):
        c.all_gather(whole[:256], whole)
