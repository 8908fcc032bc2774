"""Time of each operator at the layer shapes of real Llamas, beside torch's and beside what memory allows."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F

from benchmarks.harness import gpu_timing
from benchmarks.harness.shapes import LlamaShapes
from benchmarks.harness.timing import ceiling_cases, copies, floor, samples_in_turn

ROUNDS = 9


@dataclass(frozen=True)
class OperatorTime:
    """Seconds. `floor`: of an operator that reads memory, its bytes at the memory's rate (timing.floor).

    None where all operands fit into the caches.
    """

    model: str
    operator: str
    shape: str
    kernel: float
    torch: float
    floor: float | None


@dataclass(frozen=True)
class _Case:
    operator: str
    shape: str
    kernel: Callable[[int], object]
    torch: Callable[[int], object]
    count: int = 1  # of the operands in rotation
    from_memory: int = 0  # bytes that the kernel reads from memory; torch reads twice as many


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
            lambda i: kernel.skinny_gemm(a, weights[i % count], one, one, constant_b=True),
            lambda i: F.linear(a_wide, wide[i % wides]),
            count,
            n * k,
        )


def _row_cases(kernel: ModuleType, shapes: LlamaShapes, device: str, fp8: torch.dtype) -> Iterator[_Case]:
    scale = torch.tensor(0.02, device=device)
    d, inner = shapes.hidden, shapes.intermediate_per_rank

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).bfloat16()

    x, residual, weight = random(1, d), random(1, d), torch.rand(d, device=device).bfloat16()

    def torch_add_rms_norm(_: int) -> torch.Tensor:
        h = x + residual
        return kernel.reference.encode_fp8(F.rms_norm(h, (d,), weight, 1e-5) / scale, fp8)

    yield _Case(
        "add_rms_norm_fp8",
        f"1x{d}",
        lambda i: kernel.add_rms_norm_fp8(x, residual, weight, scale, 1e-5, out_dtype=fp8),
        torch_add_rms_norm,
    )
    gate_up = random(1, 2 * inner)

    def torch_swiglu(_: int) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return kernel.reference.encode_fp8(F.silu(gate) * up / scale, fp8)

    yield _Case(
        "swiglu_fp8", f"1x{2 * inner}", lambda i: kernel.swiglu_fp8(gate_up, scale, out_dtype=fp8), torch_swiglu
    )


def _samples(case: _Case, device: str, rounds: int, probe: dict) -> dict[str, list[float]]:
    """Seconds, round by round. On a GPU in graphs, as decoding launches them; on a CPU the probe runs in turn."""
    functions = {"kernel": case.kernel, "torch": case.torch}
    if device == "cpu":
        return samples_in_turn(functions | probe, rounds)
    graphs = {name: gpu_timing.record(function, case.count) for name, function in functions.items()}
    times = gpu_timing.measure(graphs, gpu_timing.QUICK)
    return {name: [us / 1e6 for us in one.samples_us] for name, one in times.items()}


def measure(kernel: ModuleType, shapes: LlamaShapes, device: str) -> Iterator[OperatorTime]:
    """One row of activations through each operator of a layer. Weights rotate through memory; a row of
    activations stays in the caches, as it does in decoding."""
    fp8, known_rate, probe, moved = kernel.fp8_dtype(device), 0.0, {}, {}
    if device == "cpu":
        ceilings, moved = ceiling_cases(torch.Generator().manual_seed(0))
        probe, moved = {"read": ceilings["read"]}, {"read": moved["read"]}
    else:
        peak = gpu_timing.peak_rate(torch.cuda.get_device_name())
        known_rate = (peak or gpu_timing.read_rate(gpu_timing.QUICK)) * 1e6
    for case in _row_cases(kernel, shapes, device, fp8):
        yield _operator_time(shapes, case, _samples(case, device, 20 * ROUNDS, {}), None)
    for case in _linear_cases(kernel, shapes, device, fp8):
        samples = _samples(case, device, ROUNDS, probe)
        read = moved | {"kernel": case.from_memory, "torch": 2 * case.from_memory}
        least = floor(case.from_memory, [(each, samples[name]) for name, each in read.items()], known_rate)
        yield _operator_time(shapes, case, samples, least)


def _operator_time(
    shapes: LlamaShapes, case: _Case, samples: dict[str, list[float]], least: float | None
) -> OperatorTime:
    times = (statistics.median(samples[name]) for name in ("kernel", "torch"))
    return OperatorTime(shapes.name, case.operator, case.shape, *times, least)


def table(times: list[OperatorTime]) -> str:
    lines = [f"{'operator':<22}{'shape':>14}{'kernel us':>12}{'torch us':>12}{'floor us':>12}{'vs torch':>11}"]
    for t in times:
        least = "-" if t.floor is None else f"{t.floor * 1e6:.1f}"
        lines.append(
            f"{t.operator:<22}{t.shape:>14}{t.kernel * 1e6:>12.1f}{t.torch * 1e6:>12.1f}{least:>12}"
            f"{t.torch / t.kernel:>10.1f}x"
        )
    return "\n".join(lines)
