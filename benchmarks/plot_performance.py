"""The figures of NVIDIA's GPUs in docs/performance.md as two pictures of all families. Times nothing; needs no GPU.

    python -m benchmarks compare plot     # writes docs/h200.png and docs/h200-memory.png

h200.png has the fastest competitor's time by ours. h200-memory.png has the floor by our time, as a share of the
memory's published rate, with a mark where the fastest competitor is. All numbers are those of the tables, as they are
printed there. Of computed scales the tables give times, and torch's only for some sizes: those sizes are drawn.
Experts and MLA have no competitor in the tables, exchange and engines no floor: they are in one picture each.
"""

import argparse
import re
from pathlib import Path

from benchmarks.harness import bars
from benchmarks.harness.sections import PERFORMANCE, section
from benchmarks.harness.table import number

ROW_HEIGHT = 1.9
H200, H100 = 4.8, 3.35  # rates of memory, TB/s
# Columns that are no competitor's time.
OURS = ("rows", "M, N x K", "floor", "ours", "±", "b may change", "alone", "share of memory rate", "ratio")
SCALES = {"row": "a scale a row", "1x128": "128 values", "tensor": "the tensor"}  # column: what has a scale

Row = dict[str, str]


def tables(body: str) -> dict[str, list[Row]]:
    """The rows below each heading, by columns."""
    found: dict[str, list[Row]] = {}
    for part in re.split(r"^### ", body, flags=re.MULTILINE)[1:]:
        heading, *lines = part.splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
        found[heading.removesuffix(": microseconds")] = [dict(zip(cells[0], row)) for row in cells[2:]]
    return found


def others_of(rows: list[Row]) -> list[str]:
    return [name for name in rows[0] if name not in OURS and any(number(row[name]) is not None for row in rows)]


def by_rows(name: str, across: str, rows: list[Row]) -> bars.Family:
    points = [bars.Point(number(row["ratio"]), number(row["share of memory rate"])) for row in rows]
    return bars.Family(name, across, [row["rows"] for row in rows], {name: points}, others_of(rows), H200)


def by_weights(name: str, rows: list[Row]) -> bars.Family:
    """Groups are sizes of the weight, series numbers of rows."""
    points: dict[str, dict[str, bars.Point]] = {}
    weights: list[str] = []
    for row in rows:
        m, weight = row["M, N x K"].split(", ")
        weights += [weight] if weight not in weights else []
        points.setdefault(m, {})[weight] = bars.Point(number(row["ratio"]), number(row["share of memory rate"]))
    series = {
        f"M = {m}": [points[m].get(weight, bars.Point(None, None)) for weight in weights]
        for m in sorted(points, key=int)
    }
    return bars.Family(
        name, "N x K", [weight.replace(" x", "\nx") for weight in weights], series, others_of(rows), H200
    )


def by_scales(name: str, rows: list[Row]) -> bars.Family:
    """Groups are sizes, series what has a scale."""
    rows = [row for row in rows if number(row["torch row"]) is not None]
    series: dict[str, list[bars.Point]] = {label: [] for label in SCALES.values()}
    for row in rows:
        for column, label in SCALES.items():
            ours, theirs = number(row[column]), number(row[f"torch {column}"])
            series[label].append(bars.Point(theirs / ours, number(row["floor"]) / ours))
    groups = [row["rows x d"].replace(" x ", "\n") for row in rows]
    return bars.Family(name, "rows and columns, bfloat16", groups, series, ["torch.compile"], H200)


def rows_with(text: str, name: str, column: str) -> list[Row]:
    """Of a section's tables the one that begins with this column."""
    body = next(part for part in section(text, name).split("\n\n") if part.startswith(f"| {column} |"))
    return next(iter(tables(f"### {name}\n{body}").values()))


def in_series(name: str, across: str, points: dict[tuple[str, str], bars.Point], others: list[str], rate: float):
    """points: (series, group) -> point."""
    groups = list(dict.fromkeys(group for _, group in points))
    series = {
        label: [points.get((label, group), bars.Point(None, None)) for group in groups]
        for label in dict.fromkeys(label for label, _ in points)
    }
    return bars.Family(name, across, groups, series, others, rate)


def experts(text: str) -> bars.Family:
    points = {}
    for row in rows_with(text, "cuda-moe", "fused_moe"):
        sizes = "D{} I{}".format(*re.search(r"D(\d+) I(\d+)", row["fused_moe"]).groups())
        points[sizes, row["tokens"]] = bars.Point(None, float(row["TB/s of weights"]) / H200)
    return in_series("fused_moe", "tokens", points, [], H200)


def latent(text: str) -> bars.Family:
    """Of 128 sequences of 4,096 tokens: by heads and the cache's format."""
    points = {
        (row["mla_decode"], row["heads"]): bars.Point(None, float(row["TB/s of the cache"]) / H100)
        for row in rows_with(text, "cuda-mla", "mla_decode")
        if (row["batch"], row["tokens"]) == ("128", "4096")
    }
    points = dict(sorted(points.items(), key=lambda each: (int(each[0][1]), each[0][0])))
    return in_series("mla_decode, H100", "heads; 128 sequences of 4096 tokens", points, [], H100)


def exchange(text: str) -> bars.Family:
    points = {}
    for row in rows_with(text, "cuda-all-reduce", "norm: hidden x tokens"):
        hidden, tokens = row["norm: hidden x tokens"].split(" x ")
        best = min(float(row[name]) for name in ("nccl", "one_shot", "two_shot", "flashinfer"))
        points[hidden, tokens] = bars.Point(best / float(row["ours"]), None)
    others = ["flashinfer", "NCCL", "torch"]
    return in_series("all_reduce_add_rms_norm_fp8, two H100", "tokens of so many values", points, others, H100)


def layers(text: str) -> bars.Family:
    points = {
        (row["layer"], row["sequences"]): bars.Point(float(row["DeepGEMM by ours"]), None)
        for row in rows_with(text, "cuda-model-layers", "layer")
    }
    return in_series("a decoder layer's step, H100", "sequences", points, ["DeepGEMM"], H100)


def engines(text: str) -> bars.Family:
    """As a decode step of vLLM with the plugin and without."""
    points = {}
    for row in rows_with(text, "vllm-h200", "model"):
        label = row.pop("model")
        if label.startswith(("8B", "70B, dynamic", "70B, blocks", "Qwen3", "DeepSeek")):
            for batch, cell in row.items():
                if batch.isdigit():
                    points[label.split("-")[0], batch] = bars.Point(float(re.search(r"\((.*)\)", cell)[1]), None)
    return in_series("a decode step in vLLM", "batch", points, ["vLLM's own FP8"], H200)


def families(text: str) -> list[bars.Family]:
    operators, scales, gemms = (tables(section(text, f"cuda-{name}")) for name in ("operators", "scales", "gemms"))
    fixed = {heading.split()[0]: rows for heading, rows in operators.items()}
    rows_of = "rows of 16384, float16"
    return [
        by_rows("add_rms_norm_fp8", rows_of, fixed["add_rms_norm_fp8"]),
        by_rows("swiglu_fp8", rows_of, fixed["swiglu_fp8"]),
        *(by_scales(heading.split()[0], rows) for heading, rows in scales.items()),
        by_weights("skinny_gemm", fixed["skinny_gemm"]),
        by_weights("block_scaled_gemm, few rows", gemms["block_scaled_gemm: DeepSeek-V3, few rows"]),
        by_weights("block_scaled_gemm, many rows", gemms["block_scaled_gemm: the challenge's sizes"]),
        by_weights("int8_gemm", gemms["int8_gemm: OPT's linears, one row"] + gemms["int8_gemm: OPT's linears"]),
        *(made(text) for made in (experts, latent, exchange, layers, engines)),
    ]


def title(text: str) -> str:
    """The GPU, then each section's date and commit."""
    runs, gpu = [], ""
    for name in ("operators", "scales", "gemms"):
        facts = dict(re.findall(r"^- ([^:\n]+): (.+)$", section(text, f"cuda-{name}"), flags=re.MULTILINE))
        runs.append(f"{facts['date']} {facts['commit']}")
        gpu = f"{facts['GPU']}, torch {facts['torch']}"
    dates = f"given scales and skinny_gemm {runs[0]}, computed scales {runs[1]}, other GEMMs {runs[2]}"
    return f"{gpu}, where no other is named\n{dates}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=PERFORMANCE, help="default: docs/performance.md")
    parser.add_argument("--times", type=Path, default=PERFORMANCE.with_name("h200.png"))
    parser.add_argument("--shares", type=Path, default=PERFORMANCE.with_name("h200-memory.png"))
    args = parser.parse_args(argv)
    text = args.file.read_text(encoding="utf-8")
    drawn, above = families(text), title(text)
    timed, floored = (
        [family for family in drawn if any(getattr(p, of) for points in family.series.values() for p in points)]
        for of in ("ratio", "share")
    )
    bars.draw([family.times() for family in timed], above, args.times, row_height=ROW_HEIGHT)
    bars.draw([family.shares() for family in floored], above, args.shares, row_height=ROW_HEIGHT)
    return 0
