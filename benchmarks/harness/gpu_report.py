"""What the GPU benchmarks share: a case's competitors, the lines of their tables, the command line."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from benchmarks.harness import gpu_timing, sections
from benchmarks.harness.gpu_cases import WIDTH, GemmCase, RowCase, Wrong
from benchmarks.harness.gpu_environment import Gpu, Missing, random_numbers
from benchmarks.harness.gpu_timing import Recorded, Times, record

Cases = dict[str, Recorded | None]
TITLES = {"compiled": "torch.compile"}


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def attempt(what: str, make: Callable[[], Recorded | None]) -> Recorded | None:
    """What is to be timed, or None: what is wrong, or fails, must not take the other figures with it."""
    try:
        return make()
    except Exception as error:
        reason = (str(error).strip() or "without a word").splitlines()[0]
        note(f"left out: {what}: {type(error).__name__}: {reason}")
        return None


def make_case(
    gpu: Gpu, operator: str, size: int | tuple[int, int, int], generator: torch.Generator, width: int | None = None
):
    """`size`: rows, or (M, N, K). `width`: of rows, where it is not the common one."""
    if operator == "skinny_gemm":
        return GemmCase(gpu.kernel, *size, generator)
    return RowCase(gpu.kernel, operator, size, generator, width)


def title(operator: str, width: int | None = None) -> str:
    of_rows = f" of float16 [rows, {width or WIDTH}]"
    return f"{operator}{'' if operator == 'skinny_gemm' else of_rows}: microseconds"


def size_title(operator: str) -> str:
    return "M, N x K" if operator == "skinny_gemm" else "rows"


def shown(size: int | tuple[int, int, int]) -> str:
    return f"{size[0]}, {size[1]} x {size[2]}" if isinstance(size, tuple) else str(size)


def torchs_rows(case: RowCase, compiled: bool) -> Cases:
    """The reference, and what torch.compile makes of it."""

    def inductor() -> Recorded:
        case.verify(case.by_inductor, "torch.compile", share=1)
        return record(case.compiled, case.count)

    cases = {"torch": record(case.eager, case.count)}
    return cases | ({"compiled": attempt(f"torch.compile, {case.name}", inductor)} if compiled else {})


def torchs_gemm(case: GemmCase) -> Cases:
    def library() -> Recorded | None:
        launch = case.library()
        return record(launch, case.count) if launch else None

    return {"torch": attempt(f"torch._scaled_mm, {case.name}", library)}


def weight_size(text: str) -> tuple[int, int]:
    """NxK, as --size has it."""
    if not (match := re.fullmatch(r"(\d+)x(\d+)", text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not NxK")
    return int(match[1]), int(match[2])


def add_sizes(parser: argparse._ActionsContainer, of: str = "of the weights; may be repeated") -> None:
    """--size NxK."""
    parser.add_argument("--size", type=weight_size, action="append", metavar="NxK", help=of)


def add_rows(parser: argparse.ArgumentParser, most: int | None = None) -> None:
    """--rows M, up to `most`."""
    choices, least = (range(1, most + 1), f"1 to {most}; ") if most else (None, "")
    options = {"type": int, "action": "append", "metavar": "M", "choices": choices}
    parser.add_argument("--rows", **options, help=f"{least}may be repeated")


def parser(description: str, operators: Iterable[str] = (), metavar: str = "OPERATOR") -> argparse.ArgumentParser:
    """`operators`: what --only takes; without any there is no --only."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if names := list(operators):
        result.add_argument("--only", action="append", choices=names, metavar=metavar, help=", ".join(names))
    result.add_argument("--quick", action="store_true", help="fewer launches: to see whether it runs")
    result.add_argument("--warm-up", type=int, help="launches before the timed ones (default: 500)")
    result.add_argument("--iterations", type=int, help="timed launches, at least (default: 2000)")
    result.add_argument("--seed", type=int, help="of the random operands (default: a new one, printed)")
    result.add_argument("--json", type=Path, metavar="FILE", help="all samples, with the environment")
    sections.add_options(result)
    return result


def effort(args: argparse.Namespace) -> gpu_timing.Effort:
    usual = gpu_timing.QUICK if args.quick else gpu_timing.Effort()
    return gpu_timing.Effort(args.warm_up or usual.warm_up, args.iterations or usual.iterations)


def begin(gpu: Gpu, args: argparse.Namespace) -> tuple[torch.Generator, dict]:
    """Prints what the figures were taken on and this GPU's own limits. Returns the operands' generator and both."""
    generator, launches = random_numbers(gpu.device, args.seed), effort(args)
    environment = gpu.environment | {
        "seed": generator.initial_seed(),
        "launches": f"{launches.warm_up} to warm up, {launches.iterations} timed",
    }
    for name, value in environment.items():
        print(f"- {name}: {value}")
    read_rate, floor = gpu_timing.read_rate(launches), gpu_timing.launch_floor(launches)
    peak = gpu_timing.peak_rate(gpu.environment["GPU"])
    published = f"{peak / 1e6:.2f} TB/s" if peak else "not known here"
    print(f"- memory's published rate: {published}; torch.sum reads at {read_rate / 1e6:.2f} TB/s")
    print(f"- a kernel that does nothing: {floor:.2f} us")
    print("- ±: half of what lies between the first and the last tenth of the samples", flush=True)
    rates = {"read_bytes_per_us": read_rate, "memory_bytes_per_us": max(peak or 0.0, read_rate)}
    return generator, {"environment": environment, **rates, "launch_floor_us": floor}


def times_of(cases: Cases, args: argparse.Namespace) -> dict[str, Times | None]:
    """Of all cases that there are, timed in turn."""
    measured = gpu_timing.measure({name: one for name, one in cases.items() if one}, effort(args))
    return {name: measured.get(name) for name in cases}


def raw(times: dict[str, Times | None]) -> dict[str, dict | None]:
    """For --json."""
    return {name: one and one.raw() for name, one in times.items()}


def figures_of(script: str, measure: Callable[[], dict], args: argparse.Namespace) -> dict | None:
    """What `measure` returns, written where --json says, and what it prints where --write says; None, and one line on
    stderr, where there is nothing to measure or ours is wrong."""
    try:
        with sections.recorded(script, args):
            figures = measure()
    except (Missing, Wrong, sections.SectionError) as error:
        note(f"{script}.py: {error}")
        return None
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return figures
