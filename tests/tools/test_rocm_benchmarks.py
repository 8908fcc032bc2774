"""The GPU benchmarks without a GPU: their clockwork on a device that the test drives, and what rocm.py prints."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import types

import pytest
import torch

from benchmarks import published_mi300x, rocm, tune
from benchmarks.harness import gpu_cases, gpu_environment, gpu_report, gpu_timing, published, shapes, timing
from simulator.calibration.store import load_all
from tests.settings import ROOT
from tests.tools.tables import tables

ROW_OPERATORS = ("add_rms_norm_fp8", "swiglu_fp8")

# --- gpu_timing ---


def test_copies_are_twice_the_last_level_cache():
    whole = 2 * gpu_timing.LAST_LEVEL_CACHE
    assert gpu_timing.LAST_LEVEL_CACHE == 256 * 2**20 and gpu_timing.copies(whole) == gpu_timing.copies(5 * whole) == 2
    for each in (2304 * 16384, 7 * 16384):
        count = gpu_timing.copies(each)
        assert (count - 1) * each < whole <= count * each
    assert timing.copies(timing.ROTATED_BYTES // 4) == 4  # the CPU's, as before


@pytest.mark.parametrize("count", [1, 3, 15, 32, 600, 4682])
def test_a_graph_goes_through_all_copies_in_order(gpu, count):
    recorded = gpu_timing.record(gpu.launch("a", 1.0), count)
    assert gpu.log == [("eager", i) for i in range(min(count, 3))]
    gpu.log.clear()
    recorded.replay()
    assert gpu.log == [("a", i % count) for i in range(recorded.launches)]
    # Whole turns, no more of them than a graph needs; no graph too large.
    assert recorded.launches % count == 0
    assert gpu_timing.FEWEST <= recorded.launches < max(count, gpu_timing.FEWEST) + count
    assert all(len(graph.launched) <= gpu_timing.MOST for graph in recorded.graphs)


def test_times_are_per_launch_and_without_the_warm_up(gpu):
    # A slow start: the launches of the first graph take 100 us, what follows 2 us; "b" takes 5 us throughout.
    turn, first = itertools.count(), gpu_timing.FEWEST
    cases = {
        "a": gpu_timing.record(gpu.launch("a", lambda: 100.0 if next(turn) < first else 2.0), 32),
        "b": gpu_timing.record(gpu.launch("b", 5.0), 10),
    }
    times = gpu_timing.measure(cases, gpu_timing.Effort(warm_up=first, iterations=2000))
    assert times["a"].samples_us == pytest.approx([2.0] * gpu_timing.SAMPLES)
    assert times["b"].median_us == pytest.approx(5.0) and times["b"].spread_us == pytest.approx(0.0, abs=1e-9)
    turn = itertools.count()
    cold = gpu_timing.measure(cases, gpu_timing.Effort(warm_up=0, iterations=2000))
    assert max(cold["a"].samples_us) > 50


@pytest.mark.parametrize("count", [2, 15, 700])
@pytest.mark.parametrize("iterations", [1, 2000])
def test_enough_launches_in_turn(gpu, count, iterations):
    cases = {name: gpu_timing.record(gpu.launch(name, 1.0), count) for name in "abc"}
    gpu.log.clear()
    gpu_timing.measure(cases, gpu_timing.Effort(warm_up=0, iterations=iterations))
    assert gpu.log.pop() == "synchronize" and "synchronize" not in gpu.log
    runs = [(name, len(list(group))) for name, group in itertools.groupby(name for name, _ in gpu.log)]
    launches = sum(length for name, length in runs if name == "a")
    each = launches // gpu_timing.SAMPLES
    assert launches >= iterations and each % cases["a"].launches == 0
    assert each - cases["a"].launches < iterations / gpu_timing.SAMPLES  # no more replays than that takes
    # Rounds abc, bca, cab, ...: where one round ends as the next begins, their runs join.
    order = "".join(name * (length // each) for name, length in runs)
    assert order == "".join("".join(timing.rotated(list("abc"), i)) for i in range(gpu_timing.SAMPLES))


def test_median_and_spread():
    # Of 19 equidistant values the tenths' ends are the second and the last but one; an outlier moves neither.
    values = [float(i) for i in range(1, 20)]
    times = gpu_timing.Times([*values[:-1], 1000.0])
    assert (times.median_us, times.spread_us) == (10.0, 8.0)
    assert times.raw() == {"samples_us": [*values[:-1], 1000.0], "median_us": 10.0, "spread_us": 8.0}


def test_the_ceilings(gpu, monkeypatch):
    class Source:
        nbytes = 4096

        def sum(self):
            return gpu.launch("read", 2.0)(0)

        def add_(self, one):
            return gpu.launch("nothing", 1.25)(0)

    sizes = []
    fake_torch = gpu_timing.torch
    fake_torch.randn = lambda count, device: sizes.append(count) or Source()
    fake_torch.zeros = lambda count, device: Source()
    for free, want in ((100 << 30, 8 << 30), (4 << 30, 1 << 30)):
        gpu.mem_get_info = lambda free=free: (free, 0)
        assert gpu_timing.read_rate(gpu_timing.QUICK) == pytest.approx(2048)
        assert sizes.pop() * 4 == want
    assert gpu_timing.launch_floor(gpu_timing.QUICK) == pytest.approx(1.25)


# --- the published figures ---


def test_the_published_tables():
    p = published
    assert list(p.ADD_RMS_NORM_FP8) == list(p.SWIGLU_FP8) == list(p.ROWS) == [2**i for i in range(12)]
    assert set(p.SKINNY_GEMM) == {
        (m, *shapes.LLAMA_405B_TP8.linears[layer]) for m in (1, 8, 16, 32) for layer in ("QKV", "Gate/Up", "Down")
    }
    assert p.ADD_RMS_NORM_FP8[2048] == p.Published(73.35, 671.513, 81.2089)
    assert p.SWIGLU_FP8[128] == p.Published(2.61763, 40.3194, 4.20317)
    assert p.SKINNY_GEMM[32, 16384, 6656] == p.Published(35.052, 35.561, None, 1.365, 0.335)
    # The article's own ratios, by rows and by size then M: every pair of figures is the article's.
    ratios = [
        1.99043,
        1.99167,
        2.03043,
        1.97752,
        2.00108,
        2.10072,
        1.99974,
        1.60572,
        1.25447,
        1.36679,
        1.36730,
        1.27820,
    ]
    assert [f.vllm_us / f.kernel_us for f in p.SWIGLU_FP8.values()] == pytest.approx(ratios, abs=1e-5)
    percents = [127.84, 132.07, 120.02, 98.80, 141.88, 137.15, 125.45, 118.30, 112.51, 112.17, 104.76, 101.45]
    assert [100 * f.torch_us / f.kernel_us for f in p.SKINNY_GEMM.values()] == pytest.approx(percents, abs=0.01)
    # What is moved at 2048 rows, over the time: the shares of 5.3 TB/s lie where memory-bound kernels' do.
    assert 0.59 < 7 * 2048 * 16384 / 73.35 / 5.3e6 < 0.61
    assert 0.64 < 5 * 2048 * p.SWIGLU_WIDTH / 19.8957 / 5.3e6 < 0.66


def test_the_table_beside_the_published_times():
    p = published_mi300x
    few, everything = (list(p.cases(each)) for each in (False, True))
    assert len(everything) == 36 and {each.arguments for each in few} < {each.arguments for each in everything}
    stored = {each.name for each in load_all()}
    for case in everything:
        for name in filter(None, (case.theirs, case.vllm)):
            assert sum(each == name or each.startswith(f"{name} ") for each in stored) == 1, name
    case = next(each for each in everything if each.theirs.endswith(" 32x16384"))
    assert case.warm and p.cells_of(case, 4.2e-6, 6.3e-6, 2.1e-6) == (
        "add_rms_norm_fp8 32x16384,4.72,6.09,55.23,4.20,6.30,2.10,0.50".split(",")
    )
    assert not everything[-1].warm
    assert p.cells_of(everything[-1], 34e-6, None, 17e-6)[-4:] == ["34.00", "-", "17.00", "0.50"]


# --- floors and rows of the tables ---


def test_published_rates_are_of_that_very_device():
    names = {"AMD Instinct MI300X": 5.3e6, "AMD Instinct MI300X VF": 5.3e6, "AMD Instinct MI325X": 6.0e6}
    names |= {"NVIDIA H200": 4.8e6, "NVIDIA GH200 480GB": None, "NVIDIA H100 PCIe": None, "Some GPU": None}
    assert {name: gpu_timing.peak_rate(name) for name in names} == names


@pytest.mark.parametrize("name, rate", [("AMD Instinct MI300X", 5.3e6), ("Some GPU", 1000.0)])
def test_the_memorys_rate_is_the_published_one_where_it_is_known(small_tables, cpu, monkeypatch, capsys, name, rate):
    gpu = dataclasses.replace(cpu, environment=cpu.environment | {"GPU": name})
    _, figures = gpu_report.begin(gpu, types.SimpleNamespace(seed=1, quick=True, warm_up=None, iterations=None))
    assert figures["memory_bytes_per_us"] == rate and figures["read_bytes_per_us"] == 1000.0
    rate_text = "5.30 TB/s" if rate > 1e6 else "not known here"
    assert f"- memory's published rate: {rate_text}; torch.sum reads at 0.00 TB/s" in capsys.readouterr().out


def test_a_line_of_a_table():
    times = {name: gpu_timing.Times([us] * 20) for name, us in (("ours", 4.0), ("torch", 40.0))} | {"compiled": None}
    got = rocm.cells_of("8", 10_000_000, times, 2.5, 5.0, True)
    assert got == ["8", "2.50", "4.00", "0.00", "2500", "40.00", "-", "5.00", "0.80"]
    assert rocm.cells_of("8", 10_000_000, times, 2.5, 5.0, False) == [*got[:-1], "-"]
    columns = rocm.begun("swiglu_fp8", list(times)).columns
    assert len(columns) == len(got) and columns[-4:-1] == ["torch", "torch.compile", "published"]


# --- rocm.py ---


@pytest.fixture
def small_tables(flow, monkeypatch):
    some_figures = published.Published(5.0, 6.0)
    figures = {operator: {1: some_figures, 4: some_figures} for operator in ROW_OPERATORS} | {
        "skinny_gemm": {(2, 48, 160): some_figures}
    }
    monkeypatch.setattr(rocm, "PUBLISHED", figures)
    return flow


def test_the_tables_and_the_raw_figures(small_tables, tmp_path, capsys):
    small_tables.us = lambda kind, config, launch: {None: 10.0, "fallback": 40.0}[config] if kind == "ours" else 20.0
    figures = tmp_path / "figures.json"
    assert rocm.main(["--quick", "--seed", "7", "--json", str(figures)]) == 0
    out = capsys.readouterr().out
    assert "- GPU: Some GPU" in out and "- seed: 7" in out and "0123456789ab" in out and "Hugging Face and AMD" in out
    rows = tables(out)
    # Two tables of two rows, one of one, each with a header and a rule.
    assert len(rows) == 2 * (2 + 2) + 2 + 1
    assert rows[3] == ["4", f"{7 * 4 * 96 / 1000:.2f}", "10.00", "0.00", "0", "20.00", "5.00", "2.00"]
    gemm = dict(zip(rows[-3], rows[-1], strict=True))
    assert gemm["M, N x K"] == "2, 48 x 160" and gemm["ours"] == "10.00" and gemm["torch"] == "20.00"
    assert (gemm["direct kernel"], gemm["published"], gemm["ours / published"]) == ("40.00", "5.00", "2.00")
    raw = json.loads(figures.read_text())
    assert raw["environment"]["seed"] == 7 and len(raw["results"]) == 5
    assert raw["results"][0]["times"]["ours"]["samples_us"] == pytest.approx([10.0] * gpu_timing.SAMPLES)


def test_another_gpu_has_no_ratio_to_an_mi300x(small_tables, cpu, monkeypatch, capsys):
    monkeypatch.setattr(rocm, "find_gpu", lambda: dataclasses.replace(cpu, arch="gfx950"))
    assert rocm.main(["--quick", "--only", "swiglu_fp8"]) == 0
    out = capsys.readouterr().out
    assert "### swiglu_fp8" in out and "add_rms_norm" not in out and "skinny_gemm" not in out
    assert [row[-2:] for row in tables(out)[2:]] == [["5.00", "-"]] * 2


def test_nothing_wrong_is_timed(small_tables, cpu, capsys):
    original = cpu.kernel.skinny_gemm

    def wrong_when_forced(*args, **kwargs):
        out = original(*args, **kwargs)
        return out.mul_(1.02) if os.environ.get(gpu_cases.CONFIG_VARIABLE) else out

    cpu.kernel.skinny_gemm = wrong_when_forced
    assert rocm.main(["--quick", "--only", "skinny_gemm"]) == 0
    captured = capsys.readouterr()
    row = dict(zip(tables(captured.out)[0], tables(captured.out)[2], strict=True))
    assert row["direct kernel"] == "-" and row["ours"] == "10.00"
    assert captured.err.startswith("left out: the direct kernel") and captured.err.count("\n") == 1
    cpu.kernel.skinny_gemm = lambda *args, **kwargs: original(*args, **kwargs).mul_(1.02)
    cpu.kernel.swiglu_fp8 = lambda *args, out: out.fill_(1)
    for operator in ("skinny_gemm", "swiglu_fp8"):
        assert rocm.main(["--quick", "--only", operator]) == 1
        captured = capsys.readouterr()
        assert len(tables(captured.out)) == 0 and re.fullmatch(r"rocm.py: ours, .*differ.*\n", captured.err)


# One process for all of them, as it imports torch: what each exits with.
AS_COMMANDS = """
import runpy, sys
names = sys.argv[1:]
for name in names:
    sys.argv[1:] = ["measure", name]
    try:
        runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        print(error.code)
"""


def test_without_a_gpu_one_line_says_so():
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    scripts = {"cuda": "cuda", "rocm": "rocm", "scales": "gpu_scales"}
    command = [sys.executable, "-c", AS_COMMANDS, *scripts]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0 and run.stdout == "1\n1\n1\n", run.stderr
    lines = [rf"{script}.py: no GPU: torch \S+ \((CUDA|HIP) \S+\) finds none\n" for script in scripts.values()]
    assert re.fullmatch("".join(lines), run.stderr)


def test_without_the_variant_one_line_says_so(monkeypatch, capsys):
    def load(backend):
        raise FileNotFoundError("Cannot find a build variant:\n\ncpu: does not match")

    monkeypatch.setattr(gpu_environment, "load_kernel", load)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert rocm.main([]) == 1 and tune.main(["skinny_gemm"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["rocm.py", "tune.py"]
    assert all("no build of this package for torch" in line and line.endswith("cpu: does not match") for line in lines)
