"""Where FP8 scales lie, and what that is worth: a scale a tensor, a square block or a group of a row, beside bfloat16.

    python -m benchmarks measure strategies [--m 256] [--n 1024] [--k 2048] [--windows 16] [--plot PNG]

Four questions, each of the same four ways to compute a linear layer with block_scaled_gemm (bfloat16: torch):

    memory   bits of a weight, its share of the scales included
    error    of a product beside float64's, where a few channels of a few rows of the activations are larger than all
             others: the mean of the rows
    text     bits per byte of the byte-level Llama on text that it was not trained on, all its linears computed so
    time     of a product, without and with the quantisation of the activations, as a share of bfloat16's; rotated
             buffers, medians, in turn in one process

--plot draws the error and the time. Runs on a GPU where there is one, in microseconds too; a CPU's are ratios alone.
"""

import argparse
import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import bars
from benchmarks.harness.table import Table
from benchmarks.harness.timing import copies, samples_in_turn
from examples.llama_fp8 import decoding, text
from scripts.load import load_kernel

BLOCK = 128
OUTLIERS = (1, 1_000, 10_000, 100_000)  # how much larger one channel in 1024 is, in one row of 64
Quantise = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Strategy:
    """How both operands are quantised: of bfloat16 [rows, K], (FP8 [rows, K], float32 scales)."""

    name: str
    activations: Quantise
    weights: Quantise


def by_blocks(x: torch.Tensor, fp8: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Square blocks of 128x128: no operator of the package computes these for activations, which is torch's here."""
    rows, k = x.shape
    filled = torch.nn.functional.pad(x.float(), (0, -k % BLOCK, 0, -rows % BLOCK))
    blocks = filled.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    limit = torch.finfo(fp8).max
    scale = blocks.abs().amax((1, 3)).clamp(min=1e-10) / limit
    q = (blocks / scale[:, None, :, None]).clamp(-limit, limit).to(fp8)
    return q.flatten(2, 3).flatten(0, 1)[:rows, :k].contiguous(), scale


def strategies(kernel, fp8: torch.dtype) -> list[Strategy]:
    def computed(scaling: str) -> Quantise:
        return lambda x: kernel.quantize_fp8(x, scaling=scaling, group_size=BLOCK, out_dtype=fp8)

    def blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return by_blocks(x, fp8)

    return [
        Strategy("global", computed("tensor"), computed("tensor")),
        Strategy("128x128", blocks, blocks),
        Strategy("1x128", computed("group"), computed("group")),
    ]


class Linear(torch.nn.Module):
    """A torch.nn.Linear by a strategy."""

    def __init__(self, kernel, strategy: Strategy, linear: torch.nn.Linear):
        super().__init__()
        self._kernel, self._strategy, self._bias = kernel, strategy, linear.bias
        self._weight, self._scale = strategy.weights(linear.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, scale = self._strategy.activations(x.reshape(-1, x.shape[-1]))
        out = self._kernel.block_scaled_gemm(q, self._weight, scale, self._scale, self._bias, out_dtype=x.dtype)
        return out.view(*x.shape[:-1], out.shape[-1])


def bits_of_a_weight(strategy: Strategy, weight: torch.Tensor) -> float:
    q, scale = strategy.weights(weight)
    return 8 * (q.nbytes + scale.nbytes) / q.numel()


def operands(m: int, n: int, k: int, factor: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 x [m, k] and weight [n, k]; of one row in 64, one channel in 1024 of x is `factor`, others about 1."""
    x, weight = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator) / k**0.5
    rows = torch.randperm(m, generator=generator)[: max(1, m // 64)]
    channels = torch.randperm(k, generator=generator)[: max(1, k // 1024)]
    x[rows[:, None], channels] = factor
    return x.bfloat16(), weight.bfloat16()


def errors(kernel, found: list[Strategy], args, device, generator: torch.Generator) -> dict[str, list[float]]:
    """Strategy -> of each factor, the norm of a row's error by the row's norm, the mean of the rows."""
    result: dict[str, list[float]] = {name: [] for name in ("bfloat16", *(s.name for s in found))}
    for factor in OUTLIERS:
        x, weight = operands(args.m, args.n, args.k, factor, generator)
        x, weight = x.to(device), weight.to(device)
        exact = x.double() @ weight.double().t()

        def of(out: torch.Tensor, exact=exact) -> float:
            return ((out.double() - exact).norm(dim=1) / exact.norm(dim=1)).mean().item()

        result["bfloat16"].append(of(x @ weight.t()))
        for each in found:
            (q, s), (w, t) = each.activations(x), each.weights(weight)
            result[each.name].append(of(kernel.block_scaled_gemm(q, w, s, t)))
    return result


def bits_per_byte(kernel, found: list[Strategy], count: int, device) -> dict[str, float]:
    loaded = text.load(None, str(device))
    windows = text.held_out_windows(loaded.tokenizer, 512, count)
    result = {"bfloat16": decoding.measure(loaded.model, loaded.tokenizer, windows, lambda _: None).bits_per_byte}
    for each in found:
        model = copy.deepcopy(loaded.model)
        for layer in model.model.layers:
            for parent in (layer.self_attn, layer.mlp):
                for name, linear in list(parent.named_children()):
                    if isinstance(linear, torch.nn.Linear):
                        setattr(parent, name, Linear(kernel, each, linear))
        result[each.name] = decoding.measure(model, loaded.tokenizer, windows, lambda _: None).bits_per_byte
    return result


def times(kernel, found: list[Strategy], args, device, generator) -> dict[str, tuple[float, float]]:
    """Strategy -> seconds of (the product, quantisation and product)."""
    count = copies(args.n * args.k)
    pairs = [tuple(t.to(device) for t in operands(args.m, args.n, args.k, 10, generator)) for _ in range(min(count, 8))]

    def plain(i: int) -> None:
        x, w = pairs[i % len(pairs)]
        _done(x @ w.t())

    cases: dict[str, Callable[[int], object]] = {"bfloat16": plain}
    for each in found:
        quantised = [(each.activations(x), each.weights(w)) for x, w in pairs]

        def product(i: int, quantised=quantised) -> None:
            (q, s), (w, t) = quantised[i % len(quantised)]
            _done(kernel.block_scaled_gemm(q, w, s, t))

        def both(i: int, each=each, quantised=quantised) -> None:
            (q, s), (w, t) = each.activations(pairs[i % len(pairs)][0]), quantised[i % len(quantised)][1]
            _done(kernel.block_scaled_gemm(q, w, s, t))

        cases |= {each.name: product, f"{each.name}, with quantisation": both}
    medians = {name: statistics.median(samples) for name, samples in samples_in_turn(cases).items()}
    result = {"bfloat16": (medians["bfloat16"], medians["bfloat16"])}
    return result | {each.name: (medians[each.name], medians[f"{each.name}, with quantisation"]) for each in found}


def _done(out: torch.Tensor) -> None:
    if out.is_cuda:
        torch.cuda.synchronize()


def draw(
    names: list[str], found: dict[str, list[float]], taken: dict[str, tuple[float, float]], where: str, path: Path
):
    colours = dict(zip(names, ("0.55", "tab:red", "tab:orange", "tab:blue")))
    groups = [f"{factor:,}x" for factor in OUTLIERS]
    error = [bars.Bars(name, colours[name], [100 * value for value in found[name]]) for name in names]
    base = taken["bfloat16"][0]
    shares = [
        bars.Bars("product", "tab:blue", [taken[name][0] / base for name in names]),
        bars.Bars("with quantisation", "tab:cyan", [taken[name][1] / base for name in names]),
    ]
    panels = [
        bars.Panel("Error of a product", "% of its norm", "a few numbers are larger by", groups, error),
        bars.Panel("Time", "share of bfloat16's", "", names, shares, line=1.0),
    ]
    bars.draw(panels, where, path)


def parse(arguments: list[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("m", 256), ("n", 1024), ("k", 2048), ("windows", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=None, help="of the random data (default: a new one)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="of the error and the time")
    args = parser.parse_args(arguments)
    if min(args.m, args.n, args.k, args.windows) < 1:
        parser.error("sizes and --windows are at least 1")
    return args


@torch.no_grad()
def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernel = load_kernel("rocm" if torch.version.hip else device.type)
    generator = torch.Generator()
    seed = generator.seed() if args.seed is None else args.seed
    generator.manual_seed(seed)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{where}, {args.m} x {args.n} x {args.k}, seed {seed}\n")
    found = strategies(kernel, kernel.fp8_dtype(device))
    names = ["bfloat16", *(each.name for each in found)]
    weight = operands(1, args.n, args.k, 1, generator)[1].to(device)
    memory = [16.0, *(bits_of_a_weight(each, weight) for each in found)]
    error = errors(kernel, found, args, device, generator)
    bits = bits_per_byte(kernel, found, args.windows, device)
    taken = times(kernel, found, args, device, generator)
    base = taken["bfloat16"][0]
    columns = {"bits a weight": [f"{value:.3f}" for value in memory]}
    for i, factor in enumerate(OUTLIERS):
        columns[f"error, {factor:,}x"] = [f"{100 * error[name][i]:.2f} %" for name in names]
    columns["bits per byte"] = [f"{bits[name]:.4f}" for name in names]
    columns["time"] = [f"{taken[name][0] / base:.2f}" for name in names]
    columns["with quantisation"] = [f"{taken[name][1] / base:.2f}" for name in names]
    if device.type == "cuda":
        columns["us"] = [f"{1e6 * taken[name][0]:.1f}" for name in names]
    table = Table(["", *columns], ["us"] * ("us" in columns))
    for row in zip(names, *columns.values()):
        table.row(*row)
    if args.plot:
        draw(names, error, taken, f"Scales of FP8 operands, {args.m} x {args.n} x {args.k}, {where}", args.plot)
    return 0
