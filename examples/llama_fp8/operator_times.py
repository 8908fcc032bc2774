"""Time of each operator at the layer shapes of real Llamas, beside torch's and beside what memory allows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F

from benchmarks import gpu_timing
from benchmarks.shapes import LlamaShapes
from benchmarks.timing import ceiling_cases, copies, in_turn

ROUNDS = 9


@dataclass(frozen=True)
class OperatorTime:
    """Seconds. `floor`: the operator's bytes at the rate at which this machine reads memory."""

    model: str
    operator: str
    shape: str
    kernel: float
    torch: float
    floor: float


@dataclass(frozen=True)
class _Case:
    operator: str
    shape: str
    bytes_moved: int
    kernel: Callable[[int], object]
    torch: Callable[[int], object]
    count: int = 1  # of the operands in rotation


def _linear_cases(kernel: ModuleType, shapes: LlamaShapes, device: str, fp8: torch.dtype) -> Iterator[_Case]:
    one = torch.ones(1, device=device)
    for name, (n, k) in shapes.linears.items():
        count = copies(n * k)
        # Random bytes would hold NaN codes and huge numbers; a permuted copy of normal ones does not.
        base = torch.randn(1 << 20, device=device).to(fp8).view(torch.uint8)
        fill = base.repeat(-(-n * k // base.numel()))[: n * k].view(n, k)
        weights = [fill.roll(i).view(fp8) for i in range(count)]
        # On a CPU two are larger than its caches.
        wides = 2 if device == "cpu" else copies(2 * n * k)
        wide = [(fill.roll(-i).view(fp8)).to(torch.bfloat16) for i in range(wides)]
        a = torch.randn(1, k, device=device).to(fp8)
        a_wide = a.to(torch.bfloat16)
        yield _Case(
            f"skinny_gemm {name}",
            f"{n}x{k}",
            n * k,
            lambda i: kernel.skinny_gemm(a, weights[i % count], one, one, constant_b=True),
            lambda i: F.linear(a_wide, wide[i % wides]),
            count,
        )


def _row_cases(kernel: ModuleType, shapes: LlamaShapes, device: str, fp8: torch.dtype) -> Iterator[_Case]:
    scale = torch.tensor(0.02, device=device)
    d, inner = shapes.hidden, shapes.intermediate_per_rank

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).bfloat16()

    x, residual, weight = random(1, d), random(1, d), torch.rand(d, device=device).bfloat16()

    def torch_add_rms_norm(_: int) -> torch.Tensor:
        h = x + residual
        return kernel.reference.quantize_fp8(F.rms_norm(h, (d,), weight, 1e-5) / scale, fp8)

    yield _Case(
        "add_rms_norm_fp8",
        f"1x{d}",
        9 * d,  # x, residual read and written, weight: 2 bytes each; out: 1
        lambda i: kernel.add_rms_norm_fp8(x, residual, weight, scale, 1e-5, out_dtype=fp8),
        torch_add_rms_norm,
    )
    gate_up = random(1, 2 * inner)

    def torch_swiglu(_: int) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return kernel.reference.quantize_fp8(F.silu(gate) * up / scale, fp8)

    yield _Case(
        "swiglu_fp8",
        f"1x{2 * inner}",
        5 * inner,
        lambda i: kernel.swiglu_fp8(gate_up, scale, out_dtype=fp8),
        torch_swiglu,
    )


def _read_rate(device: str) -> float:
    """Bytes a second."""
    if device != "cpu":
        return gpu_timing.read_rate(gpu_timing.QUICK) * 1e6
    ceilings, moved = ceiling_cases(torch.Generator().manual_seed(0))
    return moved["read"] / in_turn({"read": ceilings["read"]}, rounds=ROUNDS)["read"]


def _in_turn(case: _Case, device: str, rounds: int) -> dict[str, float]:
    """Seconds. On a GPU in graphs, as decoding launches them."""
    functions = {"kernel": case.kernel, "torch": case.torch}
    if device == "cpu":
        return in_turn(functions, rounds)
    graphs = {name: gpu_timing.record(function, case.count) for name, function in functions.items()}
    return {name: times.median_us / 1e6 for name, times in gpu_timing.measure(graphs, gpu_timing.QUICK).items()}


def measure(kernel: ModuleType, shapes: LlamaShapes, device: str) -> Iterator[OperatorTime]:
    """One row of activations through each operator of a layer. Weights rotate through memory; a row of
    activations stays in the caches, as it does in decoding."""
    fp8, read = kernel.fp8_dtype(device), _read_rate(device)
    for make, rounds in ((_row_cases, 20 * ROUNDS), (_linear_cases, ROUNDS)):
        for case in make(kernel, shapes, device, fp8):
            times = _in_turn(case, device, rounds)
            floor = case.bytes_moved / read
            yield OperatorTime(shapes.name, case.operator, case.shape, times["kernel"], times["torch"], floor)


def table(times: list[OperatorTime]) -> str:
    lines = [f"{'operator':<22}{'shape':>14}{'kernel us':>12}{'torch us':>12}{'floor us':>12}{'vs torch':>11}"]
    for t in times:
        lines.append(
            f"{t.operator:<22}{t.shape:>14}{t.kernel * 1e6:>12.1f}{t.torch * 1e6:>12.1f}{t.floor * 1e6:>12.1f}"
            f"{t.torch / t.kernel:>10.1f}x"
        )
    return "\n".join(lines)
