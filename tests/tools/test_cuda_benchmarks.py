"""benchmarks/cuda.py without a GPU: what it prints, checks and draws, on the CPU's operators and a fake clock."""

import itertools
import json
import os
import re
import sys
import types

import pytest

from benchmarks import cuda
from benchmarks.harness import bars, gpu_cases, gpu_environment, gpu_timing
from tests.tools.tables import tables

Bound = cuda.Bound


def line(operator="swiglu_fp8", size=8, moved=4_000_000, memory_rate=1e6, **us) -> cuda.Line:
    """Times in microseconds; the floor is 4."""
    times = {name: value and gpu_timing.Times([value] * 20) for name, value in us.items()}
    return cuda.Line(operator, size, moved, times, memory_rate)


# --- the arithmetic of a row ---


def test_the_fastest_competitor_decides():
    row = line(ours=5.0, alone=4.5, torch=50.0, compiled=6.0)
    assert (row.floor_us, row.share, row.ratio) == (4.0, 0.8, 1.2)
    assert line(ours=5.0, alone=1.0, torch=None, compiled=None).ratio is None
    assert row.cells == ["8", "4.00", "5.00", "0.00", "4.50", "50.00", "6.00", "0.80", "1.20"]
    assert row.columns == [
        "rows",
        "floor",
        "ours",
        "±",
        "alone",
        "torch",
        "torch.compile",
        "share of memory rate",
        "ratio",
    ]


def test_nobody_beats_the_floor():
    # 5 MB in 4 us are more than 1 MB/us: the floor is at the rate of the fastest, round by round.
    for us in ({"ours": 4.0, "torch": 8.0}, {"ours": 4.5, "torch": 4.0}):
        row = line(moved=5_000_000, **us)
        assert row.floor_us == 4.0 and row.share == 4.0 / us["ours"] <= 1
    mixed = line(moved=5_000_000, ours=4.0)
    mixed.times["ours"] = gpu_timing.Times([4.0, 6.0] * 10)  # half the rounds beat 1 MB/us, the others do not
    assert mixed.floor_us == 4.5 and mixed.share == 0.9


def test_a_bound_is_missed_below_it_only():
    row = line(ours=5.0, alone=5.0, torch=6.0)
    assert row.missed(Bound(1.2, 0.8)) == []
    assert row.missed(Bound(1.3)) == ["swiglu_fp8 8: ratio 1.20, bound 1.30"]
    assert row.missed(Bound(1.0, 0.9)) == ["swiglu_fp8 8: share of the memory rate 0.80, bound 0.90"]
    # With nobody to compare with, nothing has been shown.
    assert line(ours=5.0, alone=5.0, torch=None).missed(Bound(0.5)) == ["swiglu_fp8 8: ratio -, bound 0.50"]


def test_the_mean_is_geometric_and_bounded():
    size = (1, 2304, 16384)
    rows = [line("skinny_gemm", size, ours=4.0, alone=4.0, scaled_mm=us) for us in (6.0, 6.0, 5.4)]
    assert cuda.mean(rows) == pytest.approx((1.5 * 1.5 * 1.35) ** (1 / 3))
    assert cuda.mean([line(ours=4.0, torch=None)]) is None
    assert cuda.missed(rows) == []
    # Whose arithmetic mean is 1.2.
    slow = [line("skinny_gemm", (1, 13312, 16384), ours=4.0, alone=4.0, scaled_mm=us) for us in (4.4, 4.4, 5.6)]
    assert cuda.missed(slow) == ["skinny_gemm: geometric mean of the ratios 1.19, bound 1.20"]


def test_every_size_has_its_bound():
    gemms = cuda.BOUNDS["skinny_gemm"]
    assert len(gemms) == 20 and {size[0] for size in gemms} == {1, 8, 16, 32}
    assert gemms[8, 4096, 4096] == Bound(1.35) and gemms[32, 28672, 4096] == Bound(1.05, 0.86)
    assert [bound.ratio for bound in cuda.BOUNDS["add_rms_norm_fp8"].values()] == [1.6, 1.6, 1.4, 1.3, 1.1, 1.1]
    assert list(cuda.BOUNDS["swiglu_fp8"]) == [1, 32, 128, 512, 2048]


# --- the script ---

US = {"eager": 30.0, "compiled": 15.0, "flashinfer": 12.5, "<lambda>": 14.0}


@pytest.fixture
def script(flow, cpu, monkeypatch):
    """cuda.py at small sizes, with a flashinfer that computes what the reference does."""
    bounds = {"add_rms_norm_fp8": {1: Bound(1.2), 4: Bound(1.2)}, "swiglu_fp8": {2: Bound(1.5)}}
    monkeypatch.setattr(cuda, "BOUNDS", bounds | {"skinny_gemm": {(2, 48, 160): Bound(1.4)}})
    monkeypatch.setattr(gpu_cases.RowCase, "by_inductor", property(lambda case: case.reference))

    def fused_add_rmsnorm_quant(out, input, residual, weight, scale, eps):
        assert scale.shape == (1,)
        cpu.kernel.reference.add_rms_norm_fp8(input, residual, weight, scale, eps, out=out)

    norm = types.SimpleNamespace(fused_add_rmsnorm_quant=fused_add_rmsnorm_quant)
    monkeypatch.setitem(sys.modules, "flashinfer", types.SimpleNamespace(norm=norm))
    monkeypatch.setitem(sys.modules, "flashinfer.norm", norm)
    gpu_cases.by_flashinfer.cache_clear()

    def us(kind, config, launch):
        return US.get(kind, 11.0 if os.environ.get(gpu_cases.OVERLAP_VARIABLE) == "0" else 10.0)

    # What torch's FP8 product takes on a CPU differs from one torch to the next.
    monkeypatch.setattr(gpu_cases.GemmCase, "library", lambda case: lambda i: case.ours(i))
    flow.us = us
    yield types.SimpleNamespace(norm=norm, kernel=cpu.kernel)
    gpu_cases.by_flashinfer.cache_clear()


def records(text: str) -> list[dict[str, str]]:
    """The tables' rows by their headers."""
    found = []
    for is_table, rows in itertools.groupby(text.splitlines(), lambda row: row.startswith("|")):
        if is_table:
            head, _, *rest = tables("\n".join(rows))
            found += [dict(zip(head, row, strict=True)) for row in rest]
    return found


def test_the_tables_the_figures_and_the_picture(script, tmp_path, capsys):
    figures, picture = tmp_path / "figures.json", tmp_path / "new" / "figures.png"
    command = ["--quick", "--seed", "7", "--check", "--json", str(figures), "--plot", str(picture)]
    assert cuda.main(command) == 0
    captured = capsys.readouterr()
    assert "- GPU: Some GPU" in captured.out and "- seed: 7" in captured.out
    norm, other_norm, swiglu, gemm = records(captured.out)
    assert norm == {
        "rows": "1",
        "floor": f"{7 * 96 / 1000:.2f}",
        "ours": "10.00",
        "±": "0.00",
        "alone": "11.00",
        "torch": "30.00",
        "torch.compile": "15.00",
        "flashinfer": "12.50",
        "share of memory rate": f"{7 * 96 / 1e4:.2f}",
        "ratio": "1.25",
    }
    assert other_norm["rows"] == "4" and swiglu["ratio"] == "1.50" and "flashinfer" not in swiglu
    assert (gemm["M, N x K"], gemm["torch._scaled_mm"], gemm["alone"]) == ("2, 48 x 160", "14.00", "11.00")
    means = re.findall(r"Geometric mean of the ratios: (\S+)", captured.out)
    assert means == ["1.25", "1.50", "1.40"]
    # A line a case, so that somebody who waits sees how far it is.
    assert re.findall(r"^\[(\d)/4, \d+ s\] (\w+)", captured.err, re.MULTILINE) == [
        ("1", "add_rms_norm_fp8"),
        ("2", "add_rms_norm_fp8"),
        ("3", "swiglu_fp8"),
        ("4", "skinny_gemm"),
    ]
    raw = json.loads(figures.read_text())
    assert raw["environment"]["seed"] == 7 and raw["read_bytes_per_us"] == 1000.0
    assert [result["ratio"] for result in raw["results"]] == pytest.approx([1.25, 1.25, 1.5, 1.4])
    assert raw["results"][0]["times"]["alone"]["samples_us"] == pytest.approx([11.0] * gpu_timing.SAMPLES)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_axes_are_linear_and_begin_at_0():
    from matplotlib import pyplot

    figure, axis = pyplot.subplots()
    of_two = bars.Bars("a", "red", [0.5, None], [0.25, None])
    bars._fill(axis, bars.Panel("title", "share", "rows", ["1", "2"], [of_two], top=1.0))
    assert axis.get_yscale() == "linear" and axis.get_ylim() == (0, 1)
    bars._fill(axis, bars.Panel("title", "times", "rows", ["1", "2"], [of_two], line=1.0))
    assert axis.get_ylim() == (0, 1.3)
    pyplot.close(figure)


def test_other_sizes_of_the_gemm(script, capsys):
    assert cuda.main(["--quick", "--size", "48x160", "--size", "32x64"]) == 0
    sizes = [row["M, N x K"] for row in records(capsys.readouterr().out)]
    assert sizes == [f"{m}, {weights}" for weights in ("48 x 160", "32 x 64") for m in (1, 8, 16, 32)]
    for bad in (["--size", "48"], ["--size", "48x160", "--check"]):
        with pytest.raises(SystemExit):
            cuda.main(bad)


def test_a_missed_bound_fails_the_check_alone(script, monkeypatch, capsys):
    monkeypatch.setitem(cuda.BOUNDS, "swiglu_fp8", {2: Bound(1.6, 0.1)})
    assert cuda.main(["--quick", "--only", "swiglu_fp8"]) == 0
    capsys.readouterr()
    assert cuda.main(["--quick", "--only", "swiglu_fp8", "--check"]) == 1
    captured = capsys.readouterr()
    assert [row["rows"] for row in records(captured.out)] == ["2"]
    assert captured.err.splitlines()[1:] == [
        "missed: swiglu_fp8 2: ratio 1.50, bound 1.60",
        f"missed: swiglu_fp8 2: share of the memory rate {5 * 96 / 1e4:.2f}, bound 0.10",
    ]


def test_competitors_that_are_wrong_or_fail_are_left_out(script, monkeypatch, capsys):
    def without_the_residual(out, input, residual, weight, scale, eps):
        script.kernel.reference.add_rms_norm_fp8(input, residual.clone(), weight, scale, eps, out=out)

    def broken(case):
        raise RuntimeError("no compiler\nand many more words")

    script.norm.fused_add_rmsnorm_quant = without_the_residual
    gpu_cases.by_flashinfer.cache_clear()
    monkeypatch.setattr(gpu_cases.RowCase, "by_inductor", property(broken))
    assert cuda.main(["--quick", "--only", "add_rms_norm_fp8"]) == 0
    captured = capsys.readouterr()
    for row in records(captured.out):
        assert (row["torch.compile"], row["flashinfer"], row["ours"], row["ratio"]) == ("-", "-", "10.00", "3.00")
    notes = [text for text in captured.err.splitlines() if text.startswith("left out")]
    assert notes[0] == "left out: torch.compile, add_rms_norm_fp8 [1, 96]: RuntimeError: no compiler"
    assert notes[1].startswith("left out: flashinfer, add_rms_norm_fp8 [1, 96]: Wrong:") and "residual" in notes[1]
    assert len(notes) == 4


@pytest.mark.parametrize("why", ["not installed", "does not compile"])
def test_without_flashinfer_one_line_says_so(script, monkeypatch, capsys, why):
    def broken(*args):
        raise RuntimeError("ninja: build stopped\nand many more words")

    if why == "not installed":
        monkeypatch.setitem(sys.modules, "flashinfer.norm", None)
    script.norm.fused_add_rmsnorm_quant = broken
    gpu_cases.by_flashinfer.cache_clear()
    assert cuda.main(["--quick", "--only", "add_rms_norm_fp8"]) == 0
    captured = capsys.readouterr()
    assert [row["flashinfer"] for row in records(captured.out)] == ["-", "-"]
    assert captured.err.count("flashinfer:") == 1


@pytest.mark.parametrize("overlap", [None, "0"], ids=["overlapping", "alone"])
def test_nothing_wrong_of_ours_is_timed(script, capsys, overlap):
    original = script.kernel.swiglu_fp8

    def wrong_in_one_way(x, scale, out):
        result = original(x, scale, out=out)
        return result.fill_(1) if os.environ.get(gpu_cases.OVERLAP_VARIABLE) == overlap else result

    script.kernel.swiglu_fp8 = wrong_in_one_way
    assert cuda.main(["--quick", "--only", "swiglu_fp8"]) == 1
    captured = capsys.readouterr()
    assert records(captured.out) == []
    assert re.search(r"^cuda.py: ours.*, swiglu_fp8 \[2, 96\]: .*differ", captured.err, re.MULTILINE)


def test_what_makes_a_cuda_variant_is_said(monkeypatch, capsys):
    def load(backend):
        raise FileNotFoundError(f"Cannot find a build variant for {backend}")

    monkeypatch.setattr(gpu_environment, "load_kernel", load)
    monkeypatch.setattr(gpu_environment.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_environment.torch.version, "hip", None)
    assert cuda.main([]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("cuda.py: no build of this package for torch")
    assert "scripts/build.py --backend cuda" in said and "scripts/cuda_toolchain.py" in said and "ROCM_PATH" not in said
    assert said.endswith("Cannot find a build variant for cuda\n")
