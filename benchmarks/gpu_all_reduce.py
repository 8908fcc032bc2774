"""All-reduce between the GPUs of this host, alone and with what is around it, as markdown: ours and torch's.

    torchrun --nproc-per-node 2 -m benchmarks measure all-reduce
    torchrun --nproc-per-node 8 -m benchmarks measure all-reduce --only gemm
    torchrun --nproc-per-node 2 -m benchmarks measure all-reduce --only step    # eight layers of Llama 70B
    python -m benchmarks measure all-reduce --one-gpu 2     # two ranks as streams of one GPU: latencies without a link
    python -m benchmarks measure all-reduce --one-gpu 2 --only gemm

Microseconds of a launch in a graph, the slowest rank's, median of rounds that take the competitors in turn. norm:
residual, RMSNorm and FP8 behind the sum. nccl, one_shot and two_shot: torch's all-reduce (torch.ops.symm_mem), then
add_rms_norm_fp8. flashinfer: its fused kernel, where it is installed; with GEMMs behind ours. "one by one" are our
operators one after the other, "torch, bf16" torch's fused ones (symm_mem) in bfloat16. Norms are held to the sum before
they are timed, GEMMs to the operators one by one. step: a decode step's kernels without attention
(benchmarks/harness/parallel_step.py). --one-gpu has no PDL, and no competitors.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist

from benchmarks.harness import sections
from benchmarks.harness.fused_comm import flashinfer_case, torch_cases
from benchmarks.harness.gpu_environment import find_gpu
from benchmarks.harness.gpu_report import note
from benchmarks.harness.parallel_step import Step, layers_of
from benchmarks.harness.shapes import LLAMA_70B
from benchmarks.harness.table import Table

HIDDEN, TOKENS = (4096, 8192, 16384), (1, 4, 8, 16, 32, 64, 128, 512)
LINEARS = [LLAMA_70B.linears[name] for name in ("O", "Down")]  # N, K of one rank alone
LAYERS = 8  # of a step
LAUNCHES, ROUNDS = 30, 11

Case = Callable[[], object]


class Rank:
    """This process's place among the others."""

    def __init__(self):
        self.rank, self.ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        if self.ranks > 1:
            dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))

    def wait(self) -> None:
        torch.cuda.synchronize()
        if self.ranks > 1:
            dist.barrier()

    def slowest(self, value: float) -> float:
        times = torch.tensor([value], device="cuda")
        if self.ranks > 1:
            dist.all_reduce(times, op=dist.ReduceOp.MAX)
        return times.item()


def graph_of(case: Case, stream: torch.cuda.Stream, launches: int) -> torch.cuda.CUDAGraph:
    with torch.cuda.stream(stream):
        case()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(launches):
            case()
    return graph


def times(cases: dict[str, Case], rank: Rank, launches: int = LAUNCHES) -> dict[str, float]:
    stream, samples = torch.cuda.Stream(), {name: [] for name in cases}
    graphs = {}
    for name, case in cases.items():
        rank.wait()
        graphs[name] = graph_of(case, stream, launches)
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            rank.wait()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            with torch.cuda.stream(stream):
                graph.replay()  # the ranks meet here
                begin.record()
                graph.replay()
                end.record()
            end.synchronize()
            samples[name].append(rank.slowest(begin.elapsed_time(end) * 1e3 / launches))
    return {name: statistics.median(found) for name, found in samples.items()}


def fp8(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(torch.float8_e4m3fn)


# --- the sum, and the norm behind it ---


def norm_cases(kernel, c, rank: Rank, hidden: int, tokens: int) -> dict[str, Case]:
    torch.manual_seed(1 + rank.rank)
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    torch.manual_seed(0)
    residual, weight = torch.randn_like(x), torch.rand(hidden, device="cuda", dtype=torch.bfloat16)
    scale, q = torch.tensor([0.05], device="cuda"), torch.empty_like(x, dtype=torch.float8_e4m3fn)
    verify(kernel, c, x, residual, weight, scale)
    cases = {
        "ours": lambda: c.all_reduce_add_rms_norm_fp8(x, residual, weight, scale, out=q),
        "ours, groups": lambda: c.all_reduce_add_rms_norm_dynamic_fp8(x, residual, weight, scaling="group", out=q),
        "the norm alone": lambda: kernel.add_rms_norm_fp8(x, residual, weight, scale, out=q),
    }
    if rank.ranks > 1:
        import torch.distributed._symmetric_memory as symmetric

        name, y = dist.group.WORLD.group_name, x.clone()
        t = symmetric.empty(x.numel(), dtype=x.dtype, device="cuda")
        symmetric.rendezvous(t, dist.group.WORLD)
        t.copy_(x.flatten())

        def norm(of: torch.Tensor) -> None:
            kernel.add_rms_norm_fp8(of.view_as(x), residual, weight, scale, out=q)

        cases |= {
            "nccl": lambda: (dist.all_reduce(y), norm(y)),
            "one_shot": lambda: norm(torch.ops.symm_mem.one_shot_all_reduce(t, "sum", name)),
            "two_shot": lambda: (torch.ops.symm_mem.two_shot_all_reduce_(t, "sum", name), norm(t)),
        }
        cases |= flashinfer_case(rank, x, residual, weight, scale, q, first=(tokens, hidden) == (TOKENS[0], HIDDEN[0]))
    return cases


def verify(kernel, c, x, residual, weight, scale) -> None:
    parts = [torch.empty_like(x) for _ in range(c.ranks)]
    if c.ranks > 1:
        dist.all_gather(parts, x)
    else:
        parts = [x]
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    mine, theirs = residual.clone(), residual.clone()
    got = c.all_reduce_add_rms_norm_fp8(x, mine, weight, scale)
    wanted = kernel.add_rms_norm_fp8(total.to(x.dtype), theirs, weight, scale)
    c.check()
    if not torch.equal(got.view(torch.uint8), wanted.view(torch.uint8)) or not torch.equal(mine, theirs):
        raise SystemExit(f"wrong: {list(x.shape)} on rank {c.rank}")


# --- with the GEMM before it ---


def gemm_cases(kernel, c, rank: Rank, n: int, k: int, rows: int) -> dict[str, Case]:
    k = k // rank.ranks
    a, weights = fp8(rows, k), [fp8(n, k) for _ in range(4)]
    one, scale = torch.full((1,), 0.02, device="cuda"), torch.tensor([0.05], device="cuda")
    residual = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
    weight, q = torch.rand(n, device="cuda", dtype=torch.bfloat16), fp8(rows, n)
    turn = iter(range(10**9))

    def operands() -> tuple[torch.Tensor, ...]:
        return a, weights[next(turn) % len(weights)], one, one

    def product() -> torch.Tensor:
        return kernel.skinny_gemm(*operands(), constant_b=True)

    def ours() -> None:
        c.skinny_gemm_all_reduce_add_rms_norm_fp8(*operands(), None, residual, weight, scale, out=q, constant_b=True)

    def one_by_one() -> None:
        c.all_reduce_add_rms_norm_fp8(product(), residual, weight, scale, out=q)

    def nccl() -> None:
        y = product()
        dist.all_reduce(y)
        kernel.add_rms_norm_fp8(y, residual, weight, scale, out=q)

    def both(first: Case, second: Case) -> list[torch.Tensor]:
        found = []
        for each in (first, second):
            kept = residual.clone()
            each()
            found += [q.view(torch.uint8).clone(), residual.clone()]
            residual.copy_(kept)
        return found

    weights[1:] = weights[:1] * 3  # the same for both
    results = both(ours, one_by_one)
    if not torch.equal(results[0], results[2]) or not torch.equal(results[1], results[3]):
        raise SystemExit(f"wrong: {rows} x {n} x {k} on rank {rank.rank}")
    weights[1:] = [fp8(n, k) for _ in range(3)]
    cases = {"ours": ours, "one by one": one_by_one, "the GEMM alone": product}
    if rank.ranks == 1:
        return cases
    x = product()
    behind = flashinfer_case(rank, x, residual, weight, scale, q, first=False)

    def flashinfer() -> None:
        kernel.skinny_gemm(*operands(), constant_b=True, out=x)
        behind["flashinfer"]()

    return cases | {"nccl": nccl} | ({"flashinfer": flashinfer} if behind else {})


def row_cases(kernel, c, rank: Rank, n: int, k: int, rows: int) -> dict[str, Case]:
    """Many rows: block_scaled_gemm with reduce-scatter behind it, and with all-gather before it."""

    def scales(of: torch.Tensor) -> torch.Tensor:
        return torch.rand(of.shape[0], of.shape[1] // 128, device="cuda")

    a, b = fp8(rows, k // rank.ranks), fp8(n, k // rank.ranks)
    sa, sb = scales(a), torch.rand(n // 128, k // rank.ranks // 128, device="cuda")
    few, wide = fp8(rows // rank.ranks, k), fp8(n // rank.ranks, k)
    s_few, s_wide = scales(few), torch.rand(n // rank.ranks // 128, k // 128, device="cuda")
    cases = {
        "reduce_scatter": lambda: c.block_scaled_gemm_reduce_scatter(a, b, sa, sb, constant_b=True),
        "one by one": lambda: c.reduce_scatter(kernel.block_scaled_gemm(a, b, sa, sb, constant_b=True)),
        "the GEMM alone": lambda: kernel.block_scaled_gemm(a, b, sa, sb, constant_b=True),
        "all_gather": lambda: c.all_gather_block_scaled_gemm(few, wide, s_few, s_wide, constant_b=True),
        "one by one, all_gather": lambda: kernel.block_scaled_gemm(
            c.all_gather(few), wide, c.all_gather(s_few), s_wide, constant_b=True
        ),
    }
    for first, second in (("reduce_scatter", "one by one"), ("all_gather", "one by one, all_gather")):
        if not torch.equal(cases[first](), cases[second]()):
            raise SystemExit(f"wrong: {first} of {rows} x {n} x {k} on rank {rank.rank}")
    if rank.ranks > 1:
        out = torch.empty(rows // rank.ranks, n, device="cuda", dtype=torch.bfloat16)
        whole = torch.empty(rows, k, device="cuda", dtype=torch.uint8)
        s_whole = torch.empty(rows, k // 128, device="cuda")

        def scatter() -> None:
            dist.reduce_scatter_tensor(out, kernel.block_scaled_gemm(a, b, sa, sb, constant_b=True))

        def gather() -> None:
            dist.all_gather_into_tensor(whole, few.view(torch.uint8))
            dist.all_gather_into_tensor(s_whole, s_few)
            kernel.block_scaled_gemm(whole.view(torch.float8_e4m3fn), wide, s_whole, s_wide, constant_b=True)

        cases |= {"nccl reduce_scatter": scatter, "nccl all_gather": gather}
        cases |= torch_cases(rank, a, b, few, wide)
    return cases


def table(
    rank: Rank, what: str, sizes: list[tuple], make: Callable[..., dict[str, Case]], launches: int = LAUNCHES
) -> None:
    shown = None
    for size in sizes:
        found = times(make(*size), rank, launches)
        if rank.rank:
            continue
        if shown is None:
            print()
            shown = Table([what, *found], [*found])
        shown.row(" x ".join(map(str, size)), *(f"{found[name]:.2f}" for name in shown.times))


# --- ranks as streams ---


def streams_of(kernel, count: int, max_bytes: int):
    from problems.ranks import Ranks

    os.environ["ROCM_FP8_KERNELS_PDL"] = "0"
    kernel.reread_environment()
    return Ranks(kernel, torch.device("cuda"), count, max_bytes=max_bytes, timeout=5.0)


def one_gpu(kernel, count: int) -> None:
    together = streams_of(kernel, count, max_bytes=4 << 20)
    timed = ["ours", "all_reduce", "the norm alone"]
    shown = Table([f"{count} ranks on one GPU, hidden x tokens", *timed], timed)
    for hidden in HIDDEN:
        for tokens in (t for t in TOKENS if t * hidden * count * count <= 1 << 21):
            torch.manual_seed(0)
            xs = [torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
            residuals, outs = [x.clone() for x in xs], [torch.empty_like(x) for x in xs]
            weight, scale = torch.rand(hidden, device="cuda").bfloat16(), torch.tensor([0.05], device="cuda")
            cases = (
                lambda c, r: c.all_reduce_add_rms_norm_fp8(xs[r], residuals[r], weight, scale),
                lambda c, r: c.all_reduce(xs[r], out=outs[r]),
                lambda c, r: kernel.add_rms_norm_fp8(xs[r], residuals[r], weight, scale),
            )
            shown.row(f"{hidden} x {tokens}", *(f"{streams_us(together, case):.2f}" for case in cases))


def one_gpu_gemms(kernel, count: int) -> None:
    """skinny_gemm and the norm of the sum: products sent as they are finished, beside one operator after the other."""
    together = streams_of(kernel, count, max_bytes=1 << 20)
    timed = ["ours", "one by one", "the GEMM alone"]
    shown = Table([f"{count} ranks on one GPU, N x K x rows", *timed], timed)
    for n, k in LINEARS:
        k = k // count
        for rows in (rows for rows in (1, 4, 8, 16) if rows * n * count * count <= 1 << 20):
            of_ranks = [(fp8(rows, k), fp8(n, k)) for _ in range(count)]
            one, scale = torch.full((1,), 0.02, device="cuda"), torch.tensor([0.05], device="cuda")
            residuals = [torch.zeros(rows, n, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
            weight = torch.rand(n, device="cuda").bfloat16()

            def fused(c, r):
                c.skinny_gemm_all_reduce_add_rms_norm_fp8(*of_ranks[r], one, one, None, residuals[r], weight, scale)

            def apart(c, r):
                c.all_reduce_add_rms_norm_fp8(kernel.skinny_gemm(*of_ranks[r], one, one), residuals[r], weight, scale)

            cases = fused, apart, lambda c, r: kernel.skinny_gemm(*of_ranks[r], one, one)
            shown.row(f"{n} x {k} x {rows}", *(f"{streams_us(together, case):.2f}" for case in cases))


def streams_us(together, case) -> float:
    graphs, samples = [], []
    for rank, stream in enumerate(together.streams):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(LAUNCHES):
                case(together.all[rank], rank)
        graphs.append(graph)
    for _ in range(ROUNDS):
        pairs = []
        for graph, stream in zip(graphs, together.streams):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            with torch.cuda.stream(stream):
                graph.replay()
                begin.record()
                graph.replay()
                end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        samples.append(max(begin.elapsed_time(end) for begin, end in pairs) * 1e3 / LAUNCHES)
    for each in together.all:
        each.check()
    return statistics.median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["norm", "gemm", "rows", "step"], help="one of the tables")
    parser.add_argument("--one-gpu", type=int, choices=range(2, 9), metavar="RANKS", help="ranks as streams of a GPU")
    sections.add_options(parser)
    args = parser.parse_args()
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    rank = Rank()
    gpu = find_gpu()
    if rank.rank:
        args.write = None
    with sections.recorded("gpu_all_reduce", args):
        if rank.rank == 0:
            print(f"- {rank.ranks} x {', '.join(gpu.environment.values())}\n")
        if args.one_gpu:
            if args.only in (None, "norm"):
                one_gpu(gpu.kernel, args.one_gpu)
            if args.only in (None, "gemm"):
                one_gpu_gemms(gpu.kernel, args.one_gpu)
            return
        if rank.ranks == 1:
            note("one rank: nothing is sent; torchrun --nproc-per-node N, or --one-gpu N")
        with gpu.kernel.comm.Communicator(max_bytes=64 << 20) as c:
            if args.only in (None, "norm"):
                sizes = [(hidden, tokens) for hidden in HIDDEN for tokens in TOKENS]
                table(rank, "norm: hidden x tokens", sizes, lambda *size: norm_cases(gpu.kernel, c, rank, *size))
            for name, what, cases, counts in (
                ("gemm", "skinny_gemm, norm: N x K x rows", gemm_cases, (1, 4, 16, 32)),
                ("rows", "block_scaled_gemm: N x K x rows", row_cases, (2048, 8192)),
            ):
                if args.only in (None, name):
                    sizes = [(*nk, rows) for nk in LINEARS for rows in counts]
                    table(rank, what, sizes, lambda *size, cases=cases: cases(gpu.kernel, c, rank, *size))
            if args.only in (None, "step") and rank.ranks > 1:
                shape = replace(LLAMA_70B, ranks=rank.ranks)
                layers = layers_of(shape, LAYERS)
                sizes = [(rows,) for rows in (1, 4, 8, 16, 32)]
                step = lambda rows: Step(gpu.kernel, c, shape, layers, rows).cases()
                table(rank, f"{LAYERS} layers of Llama 70B: rows", sizes, step, launches=1)
    if rank.ranks > 1:
        dist.destroy_process_group()
