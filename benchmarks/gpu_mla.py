"""mla_decode on this GPU, as markdown: heads, batches, lengths and kinds of caches.

    python -m benchmarks measure mla
    python -m benchmarks measure mla --heads 16 --batch 128 --tokens 4096

Pages of 64 tokens in random order, launches in a graph, other queries and pages each. The first sequences' results are
held to the reference before they are timed.
"""

import argparse
import statistics

import torch

from benchmarks.gpu_moe import graph_us
from benchmarks.harness import sections
from benchmarks.harness.gpu_environment import find_gpu
from benchmarks.harness.table import Table

CASES = (  # batch, heads, tokens
    *((128, 128, 512), (128, 128, 2048), (128, 128, 4096), (128, 128, 6144), (32, 128, 4096), (8, 128, 8192)),
    *((1, 128, 32768), (128, 16, 4096), (32, 16, 4096), (8, 16, 8192), (1, 16, 32768)),
    *((128, heads, 4096) for heads in (1, 8, 24, 32, 64, 96)),
)
PAGE, SCALE, LEAST_BYTES = 64, 192**-0.5, 300e6  # a pool larger than the caches of the chip
BYTES = {"bfloat16": 1152, "fp8": 576, "deepseek": 656}


def pool(kind: str, pages: int) -> torch.Tensor:
    values = torch.randn(pages, PAGE, 576, device="cuda", dtype=torch.bfloat16)
    if kind == "bfloat16":
        return values
    if kind == "fp8":
        return values.to(torch.float8_e4m3fn)
    scales = torch.full((pages, PAGE, 4), 0.01, device="cuda")
    parts = (values[..., :512] * 100).clamp(-448, 448).to(torch.float8_e4m3fn), scales, values[..., 512:].contiguous()
    return torch.cat([part.view(torch.uint8) for part in parts], dim=-1)


def timed(kernel, kind: str, batch: int, heads: int, tokens: int) -> float:
    pages = max(batch * tokens // PAGE, int(LEAST_BYTES / (PAGE * BYTES[kind])))
    cache, count = pool(kind, pages), max(2, min(8, pages * PAGE // (batch * tokens)))
    scale = dict(cache_scale=torch.ones(1, device="cuda")) if kind == "fp8" else {}
    lengths = torch.full((batch,), tokens, dtype=torch.int32, device="cuda")
    queries = [torch.randn(batch, 1, heads, 576, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    tables = [
        torch.randperm(pages, device="cuda")[: batch * tokens // PAGE].int().view(batch, -1) for _ in range(count)
    ]
    few = slice(0, 2)
    given = queries[0], cache, lengths, SCALE
    got = kernel.mla_decode(*given, block_table=tables[0], **scale)[few].float()
    wanted = kernel.reference.mla_decode(
        queries[0][few], cache, lengths[few], SCALE, block_table=tables[0][few], **scale
    )
    if not (got - wanted.float()).norm() <= 2e-2 * wanted.float().norm():
        raise SystemExit(f"mla_decode is wrong: {kind}, batch {batch}, {heads} heads, {tokens} tokens")
    turn = iter(range(10**9))

    def call() -> None:
        i = next(turn) % count
        kernel.mla_decode(queries[i], cache, lengths, SCALE, block_table=tables[i], **scale)

    return statistics.median(graph_us(call, count) for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("batch", "heads", "tokens"):
        parser.add_argument(f"--{name}", type=int)
    sections.add_options(parser)
    args = parser.parse_args()
    gpu = find_gpu()
    torch.manual_seed(0)
    with sections.recorded("gpu_mla", args):
        print(f"- {', '.join(gpu.environment.values())}\n")
        table = Table(["mla_decode", "batch", "heads", "tokens", "us", "TB/s of the cache", "TFLOPS"], ["us"])
        for kind in BYTES:
            for case in CASES:
                wanted = args.batch, args.heads, args.tokens
                if any(w not in (None, got) for w, got in zip(wanted, case)):
                    continue
                batch, heads, tokens = case
                us = timed(gpu.kernel, kind, *case)
                read, work = batch * tokens * BYTES[kind] / us / 1e6, 2 * 1088 * batch * heads * tokens / us / 1e6
                table.row(kind, str(batch), str(heads), str(tokens), f"{us:.1f}", f"{read:.2f}", f"{work:.0f}")
