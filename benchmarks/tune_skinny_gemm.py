#!/usr/bin/env python3
"""Times every allowed configuration of skinny_gemm on this GPU and writes the best ones to skinny_gemm/hip/tuned.h.

    python -m benchmarks.tune_skinny_gemm                                  # the layers of benchmarks/harness/shapes.py
    python -m benchmarks.tune_skinny_gemm --size 2304x16384 --dry-run
    python scripts/build.py --backend rocm                                 # then: the next build has them

A configuration is verified before it is timed. What the model of skinny_gemm/hip/config.h chooses stays where nothing
is faster by more than the spread of both. Entries of other sizes and of the other architecture stay as they are.
"""

import argparse
import sys

from benchmarks.harness import gpu_report, gpu_timing, tuned_header
from benchmarks.harness.gpu_cases import GemmCase, gemm_config
from benchmarks.harness.gpu_environment import Gpu, Missing, find_gpu, random_numbers
from benchmarks.harness.shapes import MODELS
from benchmarks.harness.tuned_header import ARCHS, ROW_CLASSES, Entry, HeaderError

Config = tuple[int, ...]


def shown(config: Config) -> str:
    return ",".join(map(str, config))


def sweep(case: GemmCase, configs: list[Config], effort: gpu_timing.Effort) -> dict[Config, gpu_timing.Times]:
    """Times of the configurations that are right; a wrong or failing one is named on stderr and left out."""

    def record(config: Config) -> gpu_timing.Recorded:
        with gemm_config(config):
            case.verify_ours(f"configuration {shown(config)}")
            return gpu_timing.record(case.ours, case.count)

    tried = {shown(c): gpu_report.attempt(f"{case.name}, {shown(c)}", lambda c=c: record(c)) for c in configs}
    recorded = {name: one for name, one in tried.items() if one}
    times = gpu_timing.measure(recorded, effort) if recorded else {}
    return {config: times[shown(config)] for config in configs if shown(config) in times}


def winner(times: dict[Config, gpu_timing.Times], model: Config) -> Config:
    """The fastest; the model's own choice where the difference is within the spread."""
    best = min(times, key=lambda config: times[config].median_us)
    if model not in times:
        return best
    gain = times[model].median_us - times[best].median_us
    return best if gain > times[model].spread_us + times[best].spread_us else model


def tune(gpu: Gpu, sizes: list[tuple[int, int]], effort: gpu_timing.Effort, seed: int | None) -> tuple[str, bool]:
    """The new text of skinny_gemm/hip/tuned.h, and whether every configuration was right."""
    table = tuned_header.stream_table()
    text = tuned_header.TUNED.read_text()
    old = tuned_header.parse_entries(text)
    for n, k in sizes:
        if not table.takes(k):
            raise HeaderError(f"{n}x{k}: K must be a multiple of 16, for a tuned entry to count")
    generator = random_numbers(gpu.device, seed)
    facts = gpu.environment
    measured = f"{facts['GPU']} ({gpu.arch}), {facts['date']}, commit {facts['commit']}"
    print(f"{measured}, torch {facts['torch']}, {facts['runtime']}, seed {generator.initial_seed()}\n")
    print(gpu_report.table_header(["rows", "N x K", "best", "us", "±", "model's", "us", "gain"]))
    keys = [(ARCHS.index(gpu.arch), rows, n, k) for n, k in sizes for rows in ROW_CLASSES]
    models = tuned_header.picks(tuned_header.render(text, []), keys)
    new, all_right = [], True
    for key, model in zip(keys, models, strict=True):
        _, rows, n, k = key
        configs = table.allowed(rows, n, k)
        times = sweep(GemmCase(gpu.kernel, rows, n, k, generator), configs, effort)
        all_right &= len(times) == len(configs)
        if not times:
            continue
        best = winner(times, model)
        own = times[model].median_us if model in times else float("nan")
        took = times[best]
        cells = [str(rows), f"{n} x {k}", shown(best), gpu_report.cell(took.median_us), gpu_report.cell(took.spread_us)]
        cells += [shown(model), gpu_report.cell(own), f"{own / took.median_us - 1:.1%}"]
        print(gpu_report.table_row(cells), flush=True)
        new.append(Entry(*key, *best, measured))
    return tuned_header.render(text, tuned_header.merged(old, new)), all_right


def sweep_parser(description: str) -> argparse.ArgumentParser:
    """Of what sweeps need: `size`, a list or None, `effort` and `seed`."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = {"type": gpu_report.weight_size, "action": "append", "metavar": "NxK"}
    result.add_argument("--size", **size, help="of the weights; may be repeated")
    quick = {
        "const": gpu_timing.QUICK,
        "default": gpu_timing.Effort(),
        "help": "fewer launches: to see whether it runs",
    }
    result.add_argument("--quick", action="store_const", dest="effort", **quick)
    result.add_argument("--seed", type=int, help="of the random operands (default: a new one, printed)")
    return result


def main(argv: list[str] | None = None) -> int:
    parser = sweep_parser(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the header instead of writing it")
    args = parser.parse_args(argv)
    sizes = args.size or list(dict.fromkeys(s for model in MODELS for s in model.linears.values()))
    try:
        gpu = find_gpu()
        if gpu.backend != "rocm" or gpu.arch not in ARCHS:
            raise Missing(f"no ROCm variant on one of {', '.join(ARCHS)}: this is {gpu.backend} on {gpu.arch}")
        text, all_right = tune(gpu, sizes, args.effort, args.seed)
        if args.dry_run:
            print(f"\n{text}", end="")
        else:
            tuned_header.write(tuned_header.TUNED, text)
            print(f"\n{tuned_header.TUNED.name} is written; python scripts/build.py --backend rocm builds with it")
    except (HeaderError, Missing) as error:
        gpu_report.note(f"tune_skinny_gemm.py: {error}")
        return 1
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
