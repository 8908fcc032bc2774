"""What the operator reaches beside plain PyTorch and beside a copy, which moves the same bytes.

    LOCAL_KERNELS=rocm-fp8-kernels/increment=$PWD/examples/increment python examples/increment/benchmarks/benchmark.py

runs on the GPU that torch finds, else on the CPU; `kernels benchmark ./examples/increment` runs the same class, see README.md.
"""

import os
import statistics
import time
from collections.abc import Callable

import torch
from kernels.benchmark import Benchmark

REPO_ID = "rocm-fp8-kernels/increment"
ROUNDS = 30


class IncrementBenchmark(Benchmark):
    seed = 0

    def _allocate(self, count: int) -> None:
        self.x = torch.randn(count, device=self.device)
        # NaN: the verification fails if the kernel leaves elements out.
        self.out = torch.full_like(self.x, torch.nan)

    def setup_small(self):
        self._allocate(4096)

    def benchmark_small(self):
        self.kernel.increment(self.x, out=self.out)

    def verify_small(self) -> torch.Tensor:
        return self.x + 1

    def setup_large(self):
        # 64 MiB a tensor: larger than most caches.
        self._allocate(1 << 24)

    def benchmark_large(self):
        self.kernel.increment(self.x, out=self.out)

    def verify_large(self) -> torch.Tensor:
        return self.x + 1


def seconds_of(case: Callable[[], object], device: str) -> float:
    """Of one call; on a GPU between two events of its stream."""
    if device == "cpu":
        begin = time.perf_counter()
        case()
        return time.perf_counter() - begin
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    case()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def in_turn(cases: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Median seconds of each case. In turn, so that a busy machine slows all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(ROUNDS + 3):
        for name, case in cases.items():
            seconds = seconds_of(case, device)
            if round_ >= 3:  # the first rounds touch the memory and start the threads
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    from kernels import get_kernel

    found = "cpu" if not torch.cuda.is_available() else "rocm" if torch.version.hip else "cuda"
    backend = os.environ.get("INCREMENT_BACKEND", found)
    device = "cpu" if backend == "cpu" else "cuda"
    kernel = get_kernel(REPO_ID, version=1, backend=backend)
    for workload in ("small", "large"):
        benchmark = IncrementBenchmark()
        benchmark.kernel, benchmark.device = kernel, device
        torch.manual_seed(benchmark.seed)
        getattr(benchmark, f"setup_{workload}")()
        run = getattr(benchmark, f"benchmark_{workload}")
        run()
        if not torch.equal(benchmark.out, getattr(benchmark, f"verify_{workload}")()):
            raise SystemExit(f"{workload}: wrong result")
        x, out = benchmark.x, benchmark.out
        other = torch.empty_like(out)
        cases = {
            "increment": run,
            "torch.add": lambda: torch.add(x, 1.0, out=other),
            "copy": lambda: other.copy_(x),
        }
        moved = x.nbytes + out.nbytes
        for name, seconds in in_turn(cases, device).items():
            print(f"{workload:6} {name:10} {seconds * 1e6:10.1f} us  {moved / seconds / 1e9:7.1f} GB/s")


if __name__ == "__main__":
    main()
