"""Mixtures of experts on this GPU, as markdown: the parts, and layers beside DeepGEMM, torch.compile and vLLM.

Timed are routing, sorting and combining, and fused_moe at models' sizes; both grouped GEMMs of a layer beside
DeepGEMM's, where it can be imported; fused_moe beside torch.compile of torch's own operators with bfloat16 weights, and
beside vLLM's own experts, where it is installed: in Triton, and in CUTLASS with a scale a channel or an expert.

    python -m benchmarks measure moe
    python -m benchmarks measure moe --tokens 64 --only I2048
    python -m benchmarks measure moe --tables vllm channels  beside peers alone; each row is timed in turn
    python -m benchmarks measure moe --skew 1             some experts are chosen more often than others, as in models

FP8 weights of random codes with scales of 128x128 blocks, and MX ones beside 16-bit rows; routings at random,
launches in a graph. Each result is held to the reference's before it is timed. Layers of one call follow one another
without a pause: what the cache holds of their weights is as in a model whose layers are as large.
"""

import argparse
import functools
import statistics
from collections.abc import Callable

import torch

from benchmarks.harness import mx_cases, sections
from benchmarks.harness.gpu_environment import find_gpu
from benchmarks.harness.gpu_report import attempt
from benchmarks.harness.moe_peers import deep_gemm_call, dequantised, of_cutlass, of_vllm, unfused
from benchmarks.harness.routings import add_skew, drawn_experts
from benchmarks.harness.table import Table, cell

LAYERS = (  # E, top, D, I
    *((256, 8, 7168, 256), (256, 8, 7168, 2048), (128, 8, 4096, 768), (128, 8, 2048, 768), (8, 2, 4096, 14336)),
)
TOKENS = (1, 16, 64, 256, 1024)
BLOCK = 128
PEER_TOKENS = (1, 8, 32, 128, 1024)
LAUNCHES, SAMPLES = 5, 5


def recorded(call: Callable[[], object], launches: int) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            call()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, launches: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / launches


def graph_us(call: Callable[[], object], launches: int = LAUNCHES) -> float:
    graph = recorded(call, launches)
    return statistics.median(replay_us(graph, launches) for _ in range(SAMPLES))


def in_turn_us(calls: dict[str, Callable[[], object]], launches: int = LAUNCHES) -> dict[str, float]:
    """Medians of graphs that are replayed in turn; those that cannot be recorded are left out."""
    graphs = {name: attempt(name, lambda call=call: recorded(call, launches)) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name, graph in graphs.items() if graph}
    for turn in range(2 * SAMPLES):
        for name in sorted(samples, reverse=turn % 2 == 1):
            samples[name].append(replay_us(graphs[name], launches))
    return {name: statistics.median(each) for name, each in samples.items()}


def codes(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Any positive or negative numbers but NaN."""
    drawn = torch.randint(1, 120, shape, dtype=torch.uint8, device="cuda")
    return (drawn | (torch.randint(0, 2, shape, dtype=torch.uint8, device="cuda") << 7)).view(dtype)


def routing_parts(kernel) -> None:
    logits, bias = torch.randn(64, 256, device="cuda"), torch.randn(256, device="cuda")
    grouped = dict(scoring="sigmoid", bias=bias, groups=8, top_groups=4, renormalize=True, factor=2.5)
    weights, experts = kernel.moe_route(logits, 8, **grouped)
    _, _, positions = kernel.moe_sort(experts, 256)
    y = torch.randn(512, 7168, device="cuda", dtype=torch.bfloat16)

    def together() -> None:
        weights, experts = kernel.moe_route(logits, 8, **grouped)
        kernel.moe_combine(y, weights, kernel.moe_sort(experts, 256)[2])

    calls = {
        "moe_route, groups": lambda: kernel.moe_route(logits, 8, **grouped),
        "moe_route, softmax": lambda: kernel.moe_route(logits, 8, renormalize=True),
        "moe_sort": lambda: kernel.moe_sort(experts, 256),
        "moe_combine": lambda: kernel.moe_combine(y, weights, positions),
        "all three": together,
    }
    table = Table(["64 tokens, E 256, top 8, D 7168", "us"], ["us"])
    for name, call in calls.items():
        table.row(name, f"{graph_us(call, 20):.1f}")
    print()


def title(layer: tuple[int, int, int, int]) -> str:
    return "E{} top{} D{} I{}".format(*layer)


def fp8_weights(kernel, layer: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """w13 and w2."""
    experts, _, d, hidden = layer
    fp8 = kernel.fp8_dtype("cuda")
    return codes((experts, 2 * hidden, d), fp8), codes((experts, d, hidden), fp8)


def fp8_experts(kernel, layer: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """w13, w2, and of fused_moe's keywords their scales, of blocks."""
    experts, _, d, hidden = layer
    w13, w2 = fp8_weights(kernel, layer)
    scales = dict(
        scale_w13=torch.rand(experts, -(-2 * hidden // BLOCK), -(-d // BLOCK), device="cuda") * 1e-3,
        scale_w2=torch.rand(experts, -(-d // BLOCK), -(-hidden // BLOCK), device="cuda") * 1e-3,
    )
    return w13, w2, scales


def channels_experts(kernel, layer: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """The same, with a scale an output channel and a row of inputs."""
    w13, w2 = fp8_weights(kernel, layer)
    scales = [torch.rand(*w.shape[:2], 1, device="cuda") * 1e-3 for w in (w13, w2)]
    return w13, w2, dict(scale_w13=scales[0], scale_w2=scales[1], inputs="row")


def static_experts(kernel, layer: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """The same, with a scale an expert and static inputs."""
    w13, w2 = fp8_weights(kernel, layer)
    scales = [torch.rand(layer[0], 1, 1, device="cuda") * 1e-3 for _ in (w13, w2)]
    static = dict(input_scale=torch.full((1,), 0.01, device="cuda"), hidden_scale=torch.full((1,), 0.5, device="cuda"))
    return w13, w2, dict(scale_w13=scales[0], scale_w2=scales[1], inputs="static", **static)


class Router:
    """Weights and experts of tokens, as moe_route gives them."""

    def __init__(self, skew: float, device: str = "cuda"):
        self.skew, self.generator = skew, torch.Generator(device).manual_seed(0)

    def __call__(self, tokens: int, experts: int, chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.rand(tokens, chosen, device=self.generator.device, generator=self.generator)
        ids = drawn_experts(tokens, experts, chosen, self.skew, self.generator)
        return weights / weights.sum(1, keepdim=True), ids


def fused(table: Table, kernel, name: str, chosen: int, weights_of: tuple, tokens: tuple[int, ...], route) -> None:
    """weights_of: w13, w2 and keywords."""
    w13, w2, keywords = weights_of
    (experts, d), device = w2.shape[:2], w2.device
    each = sum(t.nbytes for t in (w13, w2, *keywords.values()) if isinstance(t, torch.Tensor)) / experts
    for count in tokens:
        x = torch.randn(count, d, device=device, dtype=torch.bfloat16)
        weights, ids = route(count, experts, chosen)
        arguments = (x, w13, w2, weights, ids)
        got = kernel.fused_moe(*arguments, **keywords)
        few = slice(0, min(count, 4))  # the reference takes wide copies of experts
        wanted = kernel.reference.fused_moe(x[few], w13, w2, weights[few], ids[few], **keywords)
        held_to(got[few], wanted, 2e-2, f"fused_moe at {name}, {count} tokens")
        us, active = graph_us(lambda a=arguments: kernel.fused_moe(*a, **keywords)), len(ids.unique())
        read, work = active * each / us / 1e6, 3 * count * chosen * w13.shape[1] * d / us / 1e6
        table.row(name, str(count), str(active), f"{us:.1f}", f"{read:.2f}", f"{work:.0f}")


def held_to(got: torch.Tensor, wanted: torch.Tensor, least: float, what: str) -> None:
    if not (got.float() - wanted.float()).norm() <= least * wanted.float().norm():
        raise SystemExit(f"{what} is wrong")


def beside_deep_gemm(table: Table, kernel, layer: tuple[int, int, int, int], tokens: tuple[int, ...], route) -> None:
    """Sorted rows without a gather, which DeepGEMM has not; its padding of rows is made outside of the call."""
    experts, chosen, d, hidden = layer
    for n, k in ((2 * hidden, d), (d, hidden)):
        b = codes((experts, n, k), kernel.fp8_dtype("cuda"))
        scale_b = torch.rand(experts, -(-n // BLOCK), -(-k // BLOCK), device="cuda") * 1e-3
        for count in tokens:
            _, offsets, _ = kernel.moe_sort(route(count, experts, chosen)[1], experts)
            a, scale_a = codes((count * chosen, k), b.dtype), torch.rand(count * chosen, -(-k // BLOCK), device="cuda")
            out = torch.empty(count * chosen, n, dtype=torch.bfloat16, device="cuda")
            operands = a, scale_a, b, scale_b, offsets

            def ours(a=a, scale_a=scale_a, b=b, offsets=offsets, out=out, scale_b=scale_b) -> None:
                kernel.grouped_gemm(a, b, scale_a, scale_b, offsets, out=out)

            calls = {"ours": ours}
            peer = attempt("DeepGEMM", lambda operands=operands: deep_gemm_call(*operands))
            if peer:
                call, result = peer
                calls["peer"] = call
                ours(), call()
                held_to(result(), out[: int(offsets[-1])], 1e-2, f"DeepGEMM, or ours, at {layer}, {count} tokens")
            us = in_turn_us(calls)
            ratio = us["peer"] / us["ours"] if "peer" in us else None
            name = f"E{experts} top{chosen}, {n} x {k}"
            table.row(name, str(count), cell(us["ours"]), cell(us.get("peer")), cell(ratio))


def of_torch(w13: torch.Tensor, w2: torch.Tensor, scales: dict) -> Callable:
    wide = dequantised(w13, scales["scale_w13"]), dequantised(w2, scales["scale_w2"])
    compiled = torch.compile(unfused, fullgraph=True)
    return lambda x, weights, ids: compiled(x, *wide, weights, ids)


def beside(
    table: Table, kernel, layer: tuple, tokens: tuple[int, ...], route, name: str, make: Callable, draw=fp8_experts
) -> None:
    """fused_moe of draw's weights, and what make gives of them: a function of rows, weights and experts."""
    experts, chosen, d, _ = layer
    w13, w2, scales = draw(kernel, layer)
    peer = attempt(name, lambda: make(w13, w2, scales))
    for count in tokens:
        torch._dynamo.reset()  # each size is compiled for itself
        x = torch.randn(count, d, device="cuda", dtype=torch.bfloat16)
        weights, ids = route(count, experts, chosen)
        calls = {"ours": functools.partial(kernel.fused_moe, x, w13, w2, weights, ids, **scales)}
        theirs = peer and functools.partial(peer, x, weights, ids)
        result = theirs and attempt(name, theirs)
        if result is not None:
            calls["theirs"] = theirs
            # Ours rounds x and hidden values to FP8.
            held_to(calls["ours"](), result, 0.1, f"fused_moe, or {name}, at {layer}, {count} tokens")
        us = in_turn_us(calls)
        ratio = us["theirs"] / us["ours"] if "theirs" in us else None
        table.row(title(layer), str(count), cell(us["ours"]), cell(us.get("theirs")), cell(ratio))


in_cutlass = functools.partial(beside, name="CUTLASS", make=of_cutlass)
OURS = "routing", "fp8", "mx"
# Table -> what is timed, beside what, by whom.
PEERS = {
    "deepgemm": ("grouped_gemm", "DeepGEMM", beside_deep_gemm),
    "torch": ("fused_moe", "torch.compile, bfloat16", functools.partial(beside, name="torch", make=of_torch)),
    "vllm": ("fused_moe", "vLLM's Triton", functools.partial(beside, name="vLLM", make=of_vllm)),
    "channels": ("fused_moe, channels", "vLLM's CUTLASS", functools.partial(in_cutlass, draw=channels_experts)),
    "static": ("fused_moe, static", "vLLM's CUTLASS", functools.partial(in_cutlass, draw=static_experts)),
}


def fused_tables(kernel, layers: list[tuple], route: Router, args: argparse.Namespace) -> None:
    columns = ["tokens", "active experts", "us", "TB/s of weights", "TFLOPS"]
    if "fp8" in args.tables:
        table = Table(["fused_moe", *columns], ["us"])
        for layer in layers:
            experts, counts = fp8_experts(kernel, layer), tuple(args.tokens or TOKENS)
            fused(table, kernel, title(layer), layer[1], experts, counts, route)
        print()
    if "mx" not in args.tables:
        return
    for title_of, draw in (("MXFP4 weights", mx_cases.mxfp4), ("MXFP8 weights", mx_cases.mxfp8)):
        table = Table([title_of, *columns], ["us"])
        for layer in mx_cases.MIXTURES:
            if args.only in layer.name:
                experts = mx_cases.experts_of(layer, route.generator, draw)
                fused(table, kernel, layer.name, layer.chosen, experts, tuple(args.tokens or mx_cases.TOKENS), route)
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--only", default="", metavar="TEXT", help="layers whose name (E256 top8 D7168 I2048) holds it")
    parser.add_argument("--tables", nargs="+", choices=(*OURS, *PEERS), default=OURS, help=f"default: {' '.join(OURS)}")
    add_skew(parser)
    sections.add_options(parser)
    args = parser.parse_args()
    gpu = find_gpu()
    kernel = gpu.kernel
    torch.manual_seed(0)
    route = Router(args.skew)
    with sections.recorded("gpu_moe", args):
        print(f"- {', '.join(gpu.environment.values())}\n")
        layers = [layer for layer in LAYERS if args.only in title(layer)]
        if "routing" in args.tables:
            routing_parts(kernel)
        fused_tables(kernel, layers, route, args)
        for name, (operator, peer, run) in PEERS.items():
            if name in args.tables:
                table = Table([operator, "tokens", "us", f"{peer}, us", "ratio"], ["us", f"{peer}, us"])
                for layer in layers:
                    run(table, kernel, layer, tuple(args.tokens or PEER_TOKENS), route)
                print()
