"""A rank of test_gpu_processes.py, in a process of its own and with a GPU of its own:

python -m tests.gpu.rank_worker CASE RANK RANKS PORT SEED

Every rank draws the inputs of all, so that each knows what the result has to be.
"""

import os
import sys

import torch
import torch.distributed as dist

from problems.buffers import same_bytes
from problems.inputs import FLOATS, normal, positive, random_fp8, weights
from problems.ranks import raised, sum_of

TIMEOUT, SHORT = 30.0, 2.0
FP8 = torch.float8_e4m3fn
LAUNCHES, IN_A_GRAPH = 100_000, 50


class Inputs:
    """Of all ranks, on this rank's GPU."""

    def __init__(self, rank: int, ranks: int, g: torch.Generator):
        self.rank, self.ranks, self.g = rank, ranks, g

    def parts(self, shape, dtype=torch.bfloat16) -> list[torch.Tensor]:
        return [normal(shape, dtype, self.g).cuda() for _ in range(self.ranks)]

    def norm(self, d: int, dtype=torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
        return weights((d,), dtype, self.g).cuda(), positive((1,), self.g).cuda()

    def gemms(self, m: int, n: int, k: int, blocks: bool = False) -> list[tuple]:
        scales = ((m, -(-k // 128)), (-(-n // 128), -(-k // 128))) if blocks else ((1,), (1,))
        found = []
        for _ in range(self.ranks):
            operands = random_fp8((m, k), FP8, self.g), random_fp8((n, k), FP8, self.g)
            found.append(tuple(t.cuda() for t in (*operands, *(positive(shape, self.g) for shape in scales))))
        return found

    def number(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.g))


def sums(kernel, inputs: Inputs) -> None:
    """Every collective, messages of one epoch and of several, two communicators at the same time."""
    rank, ranks = inputs.rank, inputs.ranks
    for max_bytes in (8 << 20, 16384):
        with kernel.comm.Communicator(max_bytes=max_bytes, timeout=TIMEOUT) as c, kernel.comm.Communicator() as other:
            assert (c.rank, c.ranks) == (rank, ranks)
            for dtype in FLOATS:
                for shape in ((ranks, 64), (ranks * 3, 1000), (ranks * 33, 4096), (ranks, 77)):
                    given = inputs.parts(shape, dtype)
                    wanted = sum_of(given)
                    assert same_bytes(c.all_reduce(given[rank]), wanted), (dtype, shape)
                    assert same_bytes(other.all_reduce(given[rank]), wanted), (dtype, shape)
                    assert same_bytes(c.reduce_scatter(given[rank]), wanted.chunk(ranks)[rank]), (dtype, shape)
                    assert same_bytes(other.all_gather(given[rank]), torch.cat(given)), (dtype, shape)
            given = inputs.parts((1024, 4096))  # large: by copies, where a chunk fits
            out = torch.empty(ranks * 1024, 4096, dtype=given[0].dtype, device="cuda") if rank else None
            assert same_bytes(c.all_gather(given[rank], out), torch.cat(given))
            for rows, d in ((1, 4096), (7, 8192), (128, 5120), (3, 16384), (600, 1024), (5, 1000)):
                if max_bytes < 2 * d:
                    continue
                norms(kernel, c, inputs, rows, d)
            c.check(), other.check()


def norms(kernel, c, inputs: Inputs, rows: int, d: int) -> None:
    given, (weight, scale) = inputs.parts((rows, d)), inputs.norm(d)
    whole = sum_of(given)

    def both(call_of_ranks, call_alone) -> None:
        residual, after = torch.ones_like(whole), torch.ones_like(whole)
        got, wanted = call_of_ranks(given[c.rank], residual), call_alone(whole, after)
        for x, y in zip(got, wanted):
            assert same_bytes(x, y) and x.stride() == y.stride(), (rows, d)
        assert same_bytes(residual, after), (rows, d)

    both(
        lambda x, residual: (c.all_reduce_add_rms_norm_fp8(x, residual, weight, scale),),
        lambda x, residual: (kernel.add_rms_norm_fp8(x, residual, weight, scale),),
    )
    for scaling in ("row", "tensor", *(("group",) if d % 128 == 0 else ())):
        keywords = dict(scaling=scaling, column_major_scales=scaling == "group")
        both(
            lambda x, residual: c.all_reduce_add_rms_norm_dynamic_fp8(x, residual, weight, **keywords),
            lambda x, residual: kernel.add_rms_norm_dynamic_fp8(x, residual, weight, **keywords),
        )


def gemms(kernel, inputs: Inputs) -> None:
    """skinny_gemm whose products leave as they are finished, and block_scaled_gemm in chunks."""
    rank, ranks = inputs.rank, inputs.ranks
    with kernel.comm.Communicator(max_bytes=32 << 20, timeout=TIMEOUT) as c:
        for m, n, k in ((1, 4096, 1024), (3, 264, 300), (16, 8192, 4096), (17, 1000, 2048), (32, 8192, 2048)):
            given, (weight, scale) = inputs.gemms(m, n, k), inputs.norm(n)
            whole = sum_of([kernel.skinny_gemm(*each) for each in given])
            for constant_b in (False, True):
                got = c.skinny_gemm_all_reduce(*given[rank], constant_b=constant_b)
                assert same_bytes(got, whole), (m, n, k)
                residual, after = torch.ones_like(whole), torch.ones_like(whole)
                got = c.skinny_gemm_all_reduce_add_rms_norm_fp8(
                    *given[rank], None, residual, weight, scale, constant_b=constant_b
                )
                assert same_bytes(got, kernel.add_rms_norm_fp8(whole, after, weight, scale)), (m, n, k)
                assert same_bytes(residual, after), (m, n, k)
        for m, n, k in ((256 * ranks, 512, 256), (2048, 4096, 512), (8192, 2048, 256)):
            given = inputs.gemms(m, n, k, blocks=True)
            wanted = sum_of([kernel.block_scaled_gemm(*each) for each in given]).chunk(ranks)[rank]
            for constant_b in (False, True):
                got = c.block_scaled_gemm_reduce_scatter(*given[rank], constant_b=constant_b)
                assert same_bytes(got, wanted), (m, n, k)
            rows = [each[0].chunk(ranks)[0] for each in given], [each[2].chunk(ranks)[0] for each in given]
            a, scale_a = torch.cat([x.view(torch.uint8) for x in rows[0]]).view(FP8), torch.cat(rows[1])
            wanted = kernel.block_scaled_gemm(a, given[rank][1], scale_a, given[rank][3])
            got = c.all_gather_block_scaled_gemm(rows[0][rank], given[rank][1], rows[1][rank], given[rank][3])
            assert same_bytes(got, wanted), (m, n, k)
        c.check()


class Layer:
    """One of each operator, results compared on the device: graphs count their own faults."""

    def __init__(self, kernel, c, inputs: Inputs, rows: int, d: int, wrong: torch.Tensor):
        self.kernel, self.c, self.wrong = kernel, c, wrong
        self.given, (self.weight, self.scale) = inputs.parts((rows, d)), inputs.norm(d)
        self.operands = inputs.gemms(min(rows, 32), d, 512)
        self.whole = sum_of(self.given)
        self.product = sum_of([kernel.skinny_gemm(*each) for each in self.operands])
        self.after = self.whole.clone()
        self.q = kernel.add_rms_norm_fp8(self.whole, self.after, self.weight, self.scale)
        self.residual = torch.empty_like(self.whole)

    def call(self, which: int) -> None:
        c, rank = self.c, self.c.rank
        if which == 0:
            self.compare((c.all_reduce(self.given[rank]), self.whole))
        elif which == 1:
            self.compare((c.skinny_gemm_all_reduce(*self.operands[rank]), self.product))
        else:
            self.residual.copy_(self.whole)
            q = c.all_reduce_add_rms_norm_fp8(self.given[rank], self.residual, self.weight, self.scale)
            self.compare((q, self.q), (self.residual, self.after))

    def compare(self, *pairs) -> None:
        for got, wanted in pairs:
            self.wrong += (got.view(torch.uint8) != wanted.view(torch.uint8)).any()


def recorded(layers: list[Layer], order: list[tuple[int, int]]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer, which in order:
            layers[layer].call(which)
    return graph


def many(kernel, inputs: Inputs) -> None:
    """A hundred thousand launches of changing sizes, by graphs from cold, eager ones between them, ranks late by turns.
    Every result is compared."""
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    with kernel.comm.Communicator(timeout=TIMEOUT) as c:
        sizes = [(inputs.number(1, 64), 8 * inputs.number(1, 512)) for _ in range(8)] + [(1, 4096), (32, 8192)]
        layers = [Layer(kernel, c, inputs, *size, wrong) for size in sizes]
        graphs = []
        for _ in range(4):
            order = [(inputs.number(0, len(layers) - 1), inputs.number(0, 2)) for _ in range(IN_A_GRAPH)]
            graphs.append(recorded(layers, order))
        torch.cuda.synchronize()
        for turn in range(LAUNCHES // IN_A_GRAPH):
            graphs[inputs.number(0, len(graphs) - 1)].replay()
            if turn % 50 == 0:
                layers[inputs.number(0, len(layers) - 1)].call(inputs.number(0, 2))
            if turn % 100 == inputs.rank * 37 % 100:
                torch.cuda._sleep(1_000_000)
            if turn % 500 == 0:
                c.check()
        c.check()
        assert wrong.item() == 0, f"{wrong.item()} wrong results; sizes {sizes}"


def death(kernel, inputs: Inputs) -> None:
    """The last rank ends in the middle, without a word."""
    rank, ranks = inputs.rank, inputs.ranks
    c = kernel.comm.Communicator(timeout=SHORT)
    x = torch.ones(2, 64, device="cuda")
    assert c.all_reduce(x).eq(ranks).all()
    torch.cuda.synchronize()
    if rank == ranks - 1:
        os._exit(0)
    c.all_reduce(x)
    message = raised(c.check)
    assert f"rank {ranks - 1} of {ranks} did not come within {SHORT:g} s" in message, message
    assert "can only be closed" in raised(lambda: c.all_reduce(x))
    c.close()
    print("death: done", flush=True)
    os._exit(0)  # torch.distributed waits for the rank that is gone


def other_call(kernel, inputs: Inputs) -> None:
    c = kernel.comm.Communicator(timeout=TIMEOUT)
    x = torch.ones(2 + inputs.rank, 64, device="cuda")
    c.all_reduce(x)
    message = raised(c.check)
    assert "calls another operator, or one with other sizes" in message, message
    c._drop()


def lives(kernel, inputs: Inputs) -> None:
    """Communicators come and go; nothing is left behind."""
    free = []
    for _ in range(6):
        with kernel.comm.Communicator(max_bytes=16 << 20, timeout=TIMEOUT) as c:
            assert c.all_reduce(torch.ones(3, 8, device="cuda")).eq(inputs.ranks).all()
        del c
        torch.cuda.synchronize()
        dist.barrier()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[-1] >= free[1], free


def main() -> None:
    case, (rank, ranks, port, seed) = sys.argv[1], map(int, sys.argv[2:6])
    torch.cuda.set_device(rank)
    from scripts.load import default_backend, load_kernel

    kernel = load_kernel(default_backend())
    address = f"tcp://127.0.0.1:{port}"
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=ranks, device_id=device)
    globals()[case](kernel, Inputs(rank, ranks, torch.Generator().manual_seed(seed)))
    print(f"{case}: done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
