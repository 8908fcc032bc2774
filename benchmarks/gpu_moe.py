#!/usr/bin/env python3
"""Mixtures of experts on this GPU, as markdown: routing, sorting and combining, and fused_moe at models' sizes.

    python -m benchmarks.gpu_moe
    python -m benchmarks.gpu_moe --tokens 64 --only I2048

FP8 weights of random codes with scales of 128x128 blocks, routings at random, launches in a graph. Each result is held
to the reference's parts before it is timed. Layers of one call follow one another without a pause: what the cache holds
of their weights is as in a model whose layers are as large.
"""

import argparse
import statistics
import sys
from collections.abc import Callable

import torch

from benchmarks.harness import sections
from benchmarks.harness.gpu_environment import find_gpu
from benchmarks.harness.gpu_report import table_header, table_row

LAYERS = ((256, 8, 7168, 256), (256, 8, 7168, 2048), (128, 8, 4096, 768), (8, 2, 4096, 14336))  # E, top, D, I
TOKENS = (1, 16, 64, 256, 1024)
BLOCK = 128
LAUNCHES, SAMPLES = 5, 5


def graph_us(call: Callable[[], object], launches: int = LAUNCHES) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            call()
    samples = []
    for _ in range(SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / launches)
    return statistics.median(samples)


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
    print(table_header(["64 tokens, E 256, top 8, D 7168", "us"]))
    for name, call in calls.items():
        print(table_row([name, f"{graph_us(call, 20):.1f}"]), flush=True)
    print()


def fused(kernel, layer: tuple[int, int, int, int], tokens: tuple[int, ...]) -> None:
    experts, chosen, d, hidden = layer
    fp8 = kernel.fp8_dtype("cuda")
    w13, w2 = codes((experts, 2 * hidden, d), fp8), codes((experts, d, hidden), fp8)
    scales = dict(
        scale_w13=torch.rand(experts, -(-2 * hidden // BLOCK), -(-d // BLOCK), device="cuda") * 1e-3,
        scale_w2=torch.rand(experts, -(-d // BLOCK), -(-hidden // BLOCK), device="cuda") * 1e-3,
    )
    for count in tokens:
        x = torch.randn(count, d, device="cuda", dtype=torch.bfloat16)
        weights, ids = kernel.moe_route(torch.randn(count, experts, device="cuda"), chosen, renormalize=True)
        arguments = (x, w13, w2, weights, ids)
        got = kernel.fused_moe(*arguments, **scales)
        few = slice(0, min(count, 4))  # the reference takes wide copies of experts
        wanted = kernel.reference.fused_moe(x[few], w13, w2, weights[few], ids[few], **scales)
        if not (got[few] - wanted).float().norm() <= 2e-2 * wanted.float().norm():
            raise SystemExit(f"fused_moe is wrong at {layer}, {count} tokens")
        us, active = graph_us(lambda a=arguments: kernel.fused_moe(*a, **scales)), len(ids.unique())
        read, work = active * 3 * hidden * d / us / 1e6, 6 * count * chosen * hidden * d / us / 1e6
        name = f"E{experts} top{chosen} D{d} I{hidden}"
        print(table_row([name, str(count), str(active), f"{us:.1f}", f"{read:.2f}", f"{work:.0f}"]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--only", default="", metavar="TEXT", help="layers whose name (E256 top8 D7168 I2048) holds it")
    sections.add_options(parser)
    args = parser.parse_args()
    gpu = find_gpu()
    kernel = gpu.kernel
    torch.manual_seed(0)
    with sections.recorded("gpu_moe", args):
        print(f"- {', '.join(gpu.environment.values())}\n")
        routing_parts(kernel)
        print(table_header(["fused_moe", "tokens", "active experts", "us", "TB/s of weights", "TFLOPS"]))
        for layer in LAYERS:
            if args.only in "E{} top{} D{} I{}".format(*layer):
                fused(kernel, layer, tuple(args.tokens or TOKENS))


if __name__ == "__main__":
    sys.exit(main())
