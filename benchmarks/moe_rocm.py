"""Mixtures of experts on an MI300X by the simulator's clock, beside what AITER has published.

    python -m benchmarks simulate moe                     the two GEMM stages, at AITER's sizes
    python -m benchmarks simulate moe --only "D7168 I2048" --tokens 256 --config t128x128
    python -m benchmarks simulate moe --only "D7168 I2048" --tokens 256 --first t64x256      stage 1 alone by that form
    python -m benchmarks simulate moe --challenge         the AMD MoE challenge's problem: float16, all parts
    python -m benchmarks simulate moe --mxfp4             models with MXFP4 experts, bfloat16 rows
    python -m benchmarks simulate moe --mxfp4 --rows mxfp8 --arch gfx950      MXFP8 rows, which a kernel quantises

Stage 1 is grouped_gemm_swiglu_fp8 of 2 I columns, its rows gathered, in one launch or two; stage 2 is grouped_gemm to D
columns. Of 16-bit experts stage 1 has no SwiGLU; of MXFP4 ones it is grouped_gemm_gate and, of MX rows, quantisation.
Routings are drawn at random, by --skew; all tokens have the last expert, but of MXFP4 ones.
Estimates rank; they are no measurement (simulator/README.md).
"""

import argparse
import math
from dataclasses import dataclass

import torch

from benchmarks.harness import sections
from benchmarks.harness.clock import Clock, parser
from benchmarks.harness.forms import Config
from benchmarks.harness.gpu_cases import forced
from benchmarks.harness.mx_cases import BLOCK, MIXTURES, TOKENS, Mixture
from benchmarks.harness.routings import add_skew, drawn_experts
from benchmarks.harness.simulated_rocm import FORMATS, empty
from benchmarks.harness.table import Table
from simulator.timing import cost

CHIPLETS = 4  # whose first workgroups are looked at, and of which one each is played: groups differ


@dataclass(frozen=True)
class Layer:
    d: int
    hidden: int
    experts: int  # with the shared one
    chosen: int  # with the shared one
    aiter: dict[int, float]  # tokens -> microseconds of both stages, FP8 with scales of 128 values

    @property
    def name(self) -> str:
        return f"D{self.d} I{self.hidden} E{self.experts} top{self.chosen}"


# aiter/configs/model_configs: a8w8_blockscale_tuned_fmoe_ds_v3.csv and the one of GLM-5.1, MI300X, 304 compute units.
LAYERS = (
    Layer(7168, 2048, 33, 9, {1: 99.2, 2: 169.7, 4: 220.9, 8: 327.9, 16: 354.3, 32: 355.3, 64: 363.5, 128: 407.8,
                              256: 470.8, 512: 671.6, 1024: 1091, 2048: 1857, 4096: 3549}),
    Layer(6144, 256, 257, 9, {1: 67.4, 16: 123.6, 32: 215.5, 64: 288, 128: 328, 256: 341, 512: 311, 1024: 353,
                              4096: 809}),
)  # fmt: skip
CHALLENGE = (Layer(7168, 2048, 33, 5, {}), (2048, 8192))


def routing(tokens: int, layer: Layer | Mixture, skew: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    if isinstance(layer, Mixture):
        return drawn_experts(tokens, layer.experts, layer.chosen, skew, generator)
    routed = drawn_experts(tokens, layer.experts - 1, layer.chosen - 1, skew, generator)
    return torch.cat([routed, torch.full((tokens, 1), layer.experts - 1, dtype=torch.int32)], 1)


def placed(values: torch.Tensor) -> torch.Tensor:
    return empty(tuple(values.shape), values.dtype).copy_(values)


def us(clock: Clock, call) -> tuple[float, str]:
    """Of what `call(kernel)` launches: microseconds, and the bound of its first launch."""

    def sample(grid: tuple) -> list[int]:
        count = math.prod(grid)
        if count > 608:
            return [count // 5, count // 2]
        return sorted({(count * i // 4 + count // 8 + 1 + i) % count for i in range(4)})

    results = [cost.of_fullest(each, timing="profiler") for each in clock.recordings(call, sample, chiplets=CHIPLETS)]
    return 1e6 * sum(each.seconds for each in results), results[0].bound


def stages(clock: Clock, tokens: int, layer: Layer, dtype: torch.dtype | None, args: argparse.Namespace):
    """(microseconds, bound) of stage 1 and of stage 2. dtype: of the experts; None: FP8."""
    fp8, kernel = dtype is None, clock.rocm.kernel
    kind = FORMATS[clock.arch] if fp8 else dtype
    rows, offsets, _ = kernel.reference.moe_sort(routing(tokens, layer, args.skew), layer.experts)
    rows, offsets, slots = placed(rows), placed(offsets), tokens * layer.chosen

    def gemm(a_rows: int, n: int, k: int, gates: bool, **gather):
        a, b = empty((a_rows, k), kind), empty((layer.experts, n, k), kind)
        blocks = -(-k // 128)
        scales = (None, None)
        if fp8:
            scales = (
                empty((a_rows, blocks), torch.float32),
                empty((layer.experts, -(-n // 128), blocks), torch.float32),
            )
        operands = (a, b, *scales, offsets)
        if gates:
            out = empty((slots, n // 2), kind)
            return us(
                clock, lambda kernel: kernel.grouped_gemm_swiglu_fp8(*operands, **gather, scaling="group", out=out)
            )
        out = empty((slots, n), dtype or torch.bfloat16)
        return us(clock, lambda kernel: kernel.grouped_gemm(*operands, **gather, out=out))

    with forced("grouped_gemm", args.first or args.config):
        to_hidden = gemm(tokens, 2 * layer.hidden, layer.d, fp8, rows=rows, slots=layer.chosen)
    with forced("grouped_gemm", args.config):
        return to_hidden, gemm(slots, layer.d, layer.hidden, False)


# Of MI355X: aiter/configs/model_configs, MXFP8 rows by MXFP4 experts, 256 compute units; both stages.
SHARDS = (
    (Mixture("DeepSeek-V4-Flash TP8", 256, 6, 4096, 256), {1: 15, 8: 25, 32: 56, 128: 83, 1024: 113, 8192: 442}),
    (Mixture("Kimi-K3 TP8", 896, 16, 3584, 384), {1: 18, 8: 54, 32: 147, 128: 283, 1024: 339, 8192: 1104}),
)
ROWS = ("bf16", "mxfp8", "mxfp4")


def ones(*shape: int) -> torch.Tensor:
    """Exponents of numbers [..., K]."""
    *rows, k = shape
    return placed(torch.tensor(127, dtype=torch.uint8).expand(*rows, k // BLOCK)).view(torch.float8_e8m0fnu)


def mx_rows(kind: str, rows: int, k: int, arch: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows and their exponents, of whatever numbers: their time is that of all."""
    if kind == "bf16":
        return empty((rows, k), torch.bfloat16), None
    codes = empty((rows, k), FORMATS[arch]) if kind == "mxfp8" else empty((rows, k // 2), torch.uint8)
    return codes, ones(rows, k)


def mx_stages(clock: Clock, tokens: int, layer: Mixture, args: argparse.Namespace):
    """As `stages`, each with its biases."""
    ids, kind = routing(tokens, layer, args.skew), args.rows
    rows, offsets, _ = map(placed, clock.rocm.kernel.reference.moe_sort(ids, layer.experts))
    slots, bf16 = tokens * layer.chosen, torch.bfloat16

    def gemm(kernel, a_rows: int, n: int, k: int, gate: dict | None = None, **gather) -> torch.Tensor:
        (a, scale), b = mx_rows(kind, a_rows, k, clock.arch), empty((layer.experts, n, k // 2), torch.uint8)
        bias = empty((layer.experts, n), bf16) if layer.biased else None
        operands = a, b, scale, ones(layer.experts, n, k), offsets
        if gate is None:
            return kernel.grouped_gemm(*operands, bias=bias, **gather, out=empty((slots, n), bf16))
        return kernel.grouped_gemm_gate(*operands, bias=bias, **gather, **gate, out=empty((slots, n // 2), bf16))

    def to_hidden(kernel) -> None:
        hidden = gemm(kernel, tokens, 2 * layer.hidden, layer.d, layer.gate, rows=rows, slots=layer.chosen)
        if kind == "mxfp8":
            kernel.quantize_fp8(hidden, scaling="group", group_size=BLOCK, scale_dtype=torch.float8_e8m0fnu)
        elif kind == "mxfp4":
            kernel.quantize_mxfp4(hidden, rounding="even")

    return us(clock, to_hidden), us(clock, lambda kernel: gemm(kernel, slots, layer.d, layer.hidden))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", metavar="TEXT", help="layers whose name holds it")
    options.add_argument("--tokens", type=int, action="append")
    options.add_argument("--first", type=Config.parse, metavar="FORM", help="as --config, of stage 1")
    add_skew(options)
    problems = options.add_mutually_exclusive_group()
    problems.add_argument("--challenge", action="store_true")
    problems.add_argument("--mxfp4", action="store_true")
    options.add_argument("--rows", choices=ROWS, default=ROWS[0], help="of MXFP4 experts")
    args = options.parse_args()
    if args.rows != ROWS[0] and not args.mxfp4:
        options.error("--rows: of --mxfp4")
    if args.mxfp4 and (args.config or args.first):
        options.error("--mxfp4: its kernels have one form")
    clock = Clock(args.arch)
    layers = [(CHALLENGE[0], CHALLENGE[1])] if args.challenge else [(layer, tuple(layer.aiter)) for layer in LAYERS]
    if args.mxfp4:
        layers = [(layer, TOKENS) for layer in (*MIXTURES, *(shard for shard, _ in SHARDS if args.arch == "gfx950"))]
    dtype = torch.float16 if args.challenge else None
    with sections.recorded("moe_rocm", args):
        table(clock, layers, dtype, args)


def table(clock: Clock, layers: list, dtype: torch.dtype | None, args: argparse.Namespace) -> None:
    timed = ["stage 1, us", "stage 2, us", "stages, us", "AITER, us"]
    shown = Table(["layer", "tokens", *timed, "ratio"], timed)
    for layer, tokens in layers:
        for count in args.tokens or tokens if not args.only or args.only in layer.name else ():
            if isinstance(layer, Mixture):
                parts = mx_stages(clock, count, layer, args)
                published = [times for shard, times in SHARDS if shard == layer and args.rows == "mxfp8"]
                theirs = published[0].get(count) if published else None
            else:
                parts, theirs = stages(clock, count, layer, dtype, args), layer.aiter.get(count)
            total = sum(time for time, _ in parts)
            cells = [f"{time:.1f} {bound}".strip() for time, bound in parts]
            beside = [f"{theirs:.1f}", f"{theirs / total:.2f}"] if theirs else ["", ""]
            shown.row(layer.name, str(count), *cells, f"{total:.1f}", *beside)
