"""The benchmarks: their clockwork, their shapes, and that the runner of `kernels benchmark` takes them, verified."""

import functools
import json
import re
import sys
import types
from dataclasses import replace

import kernels
import pytest
import torch
from kernels.backends import CPU
from kernels.cli import benchmark as runner

from benchmarks import cpu_ratios
from benchmarks.harness import shapes, timing
from problems.block_scaled_gemm import CHALLENGE
from tests.settings import ROOT
from tests.tools.tables import tables

# --- timing ---


class Clock:
    """Stands in for the time module; cases advance it."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_samples_without_the_warm_up(clock):
    # Per case the seconds of rounds 0 to 6, of which two warm up.
    seconds = {"a": [90, 80, 5, 1, 9, 4, 30], "b": [0, 0, 7, 7, 8, 100, 6]}

    def case(name: str):
        def call(i: int) -> None:
            clock.now += seconds[name][i]

        return call

    got = timing.samples_in_turn({name: case(name) for name in seconds}, rounds=5, warm_up=2)
    assert got == {name: values[2:] for name, values in seconds.items()}


def test_the_order_rotates(clock):
    calls = []
    cases = {name: (lambda i, name=name: calls.append((i, name))) for name in "abc"}
    assert timing.samples_in_turn(cases, rounds=3, warm_up=1) == {name: [0] * 3 for name in "abc"}
    rounds = ["".join(name for i, name in calls if i == n) for n in range(4)]
    assert rounds == ["abc", "bca", "cab", "abc"] and [i for i, _ in calls] == [i for i in range(4) for _ in "abc"]


def test_rotated_copies_exceed_the_caches():
    assert timing.copies(timing.ROTATED_BYTES) == timing.copies(10 * timing.ROTATED_BYTES) == 2
    for size in (timing.ROTATED_BYTES // 3, 1_000_003):
        assert (timing.copies(size) - 1) * size < timing.ROTATED_BYTES <= timing.copies(size) * size


def test_ceilings_move_the_bytes_that_they_claim(generator, monkeypatch):
    monkeypatch.setattr(timing, "ROTATED_BYTES", 4096)
    cases, moved = timing.ceiling_cases(generator)
    assert moved == {"read": 4096, "copy": 8192}
    target = cases["copy"](0)
    assert target.shape == (1024,) and cases["read"](0) == target.sum() != 0


# --- shapes ---


def test_shapes_are_those_of_the_models():
    assert shapes.LLAMA_8B.linears == {
        "QKV": (6144, 4096),
        "O": (4096, 4096),
        "Gate/Up": (28672, 4096),
        "Down": (4096, 14336),
    }
    assert shapes.LLAMA_405B_TP8.linears == {
        "QKV": (2304, 16384),
        "O": (16384, 2048),
        "Gate/Up": (13312, 16384),
        "Down": (16384, 6656),
    }
    assert (cpu_ratios.N, cpu_ratios.K) == (2304, 16384)


# --- benchmarks/benchmark.py, as `kernels benchmark` runs it ---

CLASSES = ("AddRmsNormFp8", "BlockScaledGemm", "QuantizeFp8", "SkinnyGemm", "SwigluFp8")
# Small enough for a test; 2 rows of the row operators, 3 of the GEMMs, sizes off the vectors' lengths.
SMALL = {
    "AddRmsNormFp8": (2, 600),
    "BlockScaledGemm": (3, 150, 200),
    "QuantizeFp8": (2, "group", 600),
    "SkinnyGemm": (3, 70, 200),
    "SwigluFp8": (2, 600),
}


def workloads(cls: type) -> list[str]:
    return [name.removeprefix("benchmark_") for name in dir(cls) if name.startswith("benchmark_")]


@pytest.fixture
def on_cpu(monkeypatch):
    """The runner asks which backend torch was built for, and for that variant of the kernel. Here: the CPU's."""
    monkeypatch.setattr(runner, "_backend", CPU)
    monkeypatch.setattr(kernels, "get_local_kernel", functools.partial(kernels.get_local_kernel, backend="cpu"))


@pytest.fixture
def classes(kernel, device, on_cpu, monkeypatch) -> dict[str, type]:
    """The benchmarks as the runner finds them, each with one small workload in place of its own."""
    if device.type != "cpu":
        pytest.skip("the runner is made to take the CPU variant")
    found = runner.discover_benchmark_classes(ROOT / "benchmarks" / "benchmark.py", ROOT)
    module = sys.modules["benchmark_module"]
    monkeypatch.setattr(module, "BUFFERS_BYTES", 1 << 16)
    for cls in found:
        for name in workloads(cls):
            monkeypatch.delattr(cls, f"benchmark_{name}")
        module.add_workload(cls, "small", SMALL[cls.__name__])
    return {cls.__name__: cls for cls in found}


def run(cls: type) -> dict[str, runner.TimingResults]:
    return runner.run_benchmark_class(cls, iterations=3, warmup=1, repo_id=str(ROOT), is_local=True, revision="main")[0]


def test_the_whole_command(classes, monkeypatch, tmp_path, capsys):
    """`kernels benchmark FOLDER --output FILE` with what requirements.txt installs: its tables need packages, too."""
    assert runner.MISSING_DEPS == []
    monkeypatch.setattr(runner, "discover_benchmark_classes", lambda script, folder: list(classes.values()))
    output = tmp_path / "results.json"
    runner.run_benchmark(str(ROOT), branch=None, version=None, iterations=3, warmup=1, output=str(output))
    rows = re.findall(r"(\w+) *│ small ", capsys.readouterr().err)
    assert rows == list(CLASSES)
    assert {result["workload"] for result in json.loads(output.read_text())["results"]} == {
        f"{name}.small" for name in CLASSES
    }


def test_the_runner_finds_every_workload():
    found = runner.discover_benchmark_classes(ROOT / "benchmarks" / "benchmark.py", ROOT)
    assert [cls.__name__ for cls in found] == list(CLASSES)
    gemms = {cls.__name__: set() for cls in found}
    for cls in found:
        names = workloads(cls)
        assert len(names) == {"SkinnyGemm": 16, "BlockScaledGemm": 12, "QuantizeFp8": 10}.get(cls.__name__, 5)
        for name in names:
            assert callable(getattr(cls, f"setup_{name}")) and callable(getattr(cls, f"verify_{name}"))
            if match := re.fullmatch(r"(\d+)x(\d+)_m(\d+)", name):
                gemms[cls.__name__].add(tuple(map(int, match.groups()[:2])))
    linears = [*shapes.LLAMA_8B.linears.values(), *shapes.LLAMA_405B_TP8.linears.values()]
    assert len(gemms["SkinnyGemm"]) == 4 and gemms["SkinnyGemm"] <= set(linears)
    assert gemms["BlockScaledGemm"] < {(n, k) for _, n, k in CHALLENGE}


@pytest.mark.parametrize("name", CLASSES)
def test_a_workload_runs_and_is_verified(classes, capsys, name):
    (result,) = run(classes[name]).items()
    workload, times = result
    assert (workload, times.verified, times.iterations) == ("small", True, 3)
    assert 0 <= times.min_ms <= times.mean_ms <= times.max_ms
    rate = "sum" if name.endswith("Gemm") else "Tensor.copy_"
    line = re.search(rf"(\w+) .*: (\d+) bytes, [\d.]+ ms at the rate of torch.{rate}$", capsys.readouterr().err, re.M)
    assert line[1].replace("_", "") == name.lower()
    # Counted from the operands: x, residual twice and out; gate, up and out; weights, activations, result
    # and scales.
    assert (
        int(line[2])
        == {
            "AddRmsNormFp8": 2 * 600 * (2 + 2 + 2 + 1),
            "SwigluFp8": 2 * 600 * (2 + 2 + 1),
            "QuantizeFp8": 2 * 600 * (2 + 1) + 2 * 5 * 4,
            "SkinnyGemm": 70 * 200 + 3 * 200 + 3 * 70 * 2,
            "BlockScaledGemm": 150 * 200 + 3 * 200 + 3 * 150 * 2 + (3 * 2 + 2 * 2) * 4,
        }[name]
    )


def one_byte_in_a_hundred(out: torch.Tensor) -> None:
    out.view(torch.uint8).view(-1)[::100] ^= 1


# Benchmark -> (operator, what goes wrong with its results, what verification says).
WRONG = {
    "a few bytes of the norm": ("AddRmsNormFp8", "add_rms_norm_fp8", one_byte_in_a_hundred, "bytes differ"),
    "the residual": ("AddRmsNormFp8", "add_rms_norm_fp8", None, "the residual differs"),
    "a few bytes of SwiGLU": ("SwigluFp8", "swiglu_fp8", one_byte_in_a_hundred, "bytes differ"),
    "a few bytes of quantize_fp8": ("QuantizeFp8", "quantize_fp8", one_byte_in_a_hundred, "bytes differ"),
    "a scale": ("QuantizeFp8", "quantize_fp8", "scale", "a scale differs"),
    "the GEMM by 2 %": ("SkinnyGemm", "skinny_gemm", lambda out: out.mul_(1.02), "outside the bound"),
    "one NaN": ("SkinnyGemm", "skinny_gemm", lambda out: out[0, :1].fill_(float("nan")), "outside the bound"),
    "the block-scaled GEMM by 2 %": (
        "BlockScaledGemm",
        "block_scaled_gemm",
        lambda out: out.mul_(1.02),
        "outside the bound",
    ),
    "nothing is written": ("SkinnyGemm", "skinny_gemm", lambda out: out.fill_(float("nan")), "outside the bound"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_kernel_is_found(kernel, classes, monkeypatch, case):
    name, operator, spoil, message = WRONG[case]
    wrong = types.ModuleType(kernel.__name__)
    wrong.__dict__.update(kernel.__dict__)
    original = getattr(kernel, operator)

    def spoiled(*args, out, **kwargs):
        if spoil is None:  # the residual keeps its old values
            args = (args[0], args[1].clone(), *args[2:])
        original(*args, out=out, **kwargs)
        if spoil == "scale":
            kwargs["scale_out"][-1, -1:] *= 1 + 2**-20
        elif spoil is not None:
            spoil(out)
        return out

    setattr(wrong, operator, spoiled)
    monkeypatch.setattr(kernels, "get_local_kernel", lambda path: wrong)
    with pytest.raises(AssertionError, match=message):
        run(classes[name])


def test_results_come_from_rotating_buffers(kernel, classes):
    for name, cls in classes.items():
        instance = cls()
        instance.kernel = kernel
        instance.setup_small()
        assert len(instance.sets) >= 2
        seen = [instance.next_set() for _ in range(len(instance.sets) + 1)]
        starts = {part.data_ptr() for set_ in seen for part in set_}
        assert len(starts) == len(instance.sets) * len(seen[0]) and seen[-1] is seen[0], name
        assert sum(part.nbytes for part in seen[0]) * len(instance.sets) > 1 << 15, name


def test_the_command_by_itself(classes, capsys, monkeypatch):
    # main() goes through the same classes, on this repository's CPU build.
    monkeypatch.setattr(sys, "argv", ["measure hub"])
    sys.modules["benchmark_module"].main()
    _, _, *rows = tables(capsys.readouterr().out)
    names = ("AddRmsNormFp8", "SwigluFp8", "QuantizeFp8", "SkinnyGemm", "BlockScaledGemm")
    assert [row[:2] for row in rows] == [[name, "small"] for name in names]


# --- benchmarks/cpu_ratios.py ---


@pytest.mark.parametrize("slow", [None, "gemm", "blocks", "int8", "experts", "mx", "rows", "dynamic"])
@pytest.mark.parametrize("check", [False, True], ids=["table", "check"])
def test_ratios_below_their_bounds_fail_a_check(monkeypatch, capsys, slow, check):
    linears = {"linear float32": 3.0, "linear bfloat16": 3.0, "dequantise, linear": 4.0, "floor": 0.9}
    seconds = {
        "gemm": linears | {"skinny_gemm": 4.0 if slow == "gemm" else 1.0},
        "block_scaled": linears | {"block_scaled_gemm": 5.0 if slow == "blocks" else 1.0},
        "int8": linears | {"int8_gemm": 5.0 if slow == "int8" else 1.0},
        "experts": {"fused_moe": 3.0 if slow == "experts" else 1.0, "loop float32": 6.0, "floor": 0.9},
        "mx": {cpu_ratios.MX: 8.0 if slow == "mx" else 1.0, "linear bfloat16": 2.6, "floor": 0.9},
        "rows": {"add_rms_norm_fp8": 1.0, "swiglu_fp8": 2.0 if slow == "rows" else 1.0, "floor": 0.7},
        "dynamic": {"static": 1.0, "dynamic": 1.3 if slow == "dynamic" else 1.2, "torch.compile": 2.5},
    }
    seconds["mx_experts"] = seconds["mx"]
    for measured, times in seconds.items():
        monkeypatch.setattr(cpu_ratios, measured, lambda *_, times=times: times)
    monkeypatch.setattr(cpu_ratios, "load_kernel", lambda backend: None)
    monkeypatch.setattr(sys, "argv", ["cpu_ratios.py", *(["--check"] if check else [])])
    assert cpu_ratios.main() == (1 if check and slow else 0)
    captured = capsys.readouterr()
    below = re.findall(r"below its bound: (\S+)", captured.err)
    # By row and by group each operator is below both its bounds.
    computed = [name for name in ("quantize_fp8", "add_rms_norm_dynamic_fp8", "swiglu_dynamic_fp8") for _ in range(4)]
    wanted = {
        None: [],
        "gemm": ["skinny_gemm"] * 3,
        "blocks": ["block_scaled_gemm"] * 3,
        "int8": ["int8_gemm"] * 3,
        "experts": ["fused_moe"] * 2,
        "mx": ["block_scaled_gemm"] * 5 + ["fused_moe"] * 2,
        "rows": ["swiglu_fp8"],
        "dynamic": computed,
    }
    assert below == wanted[slow]
    assert len(tables(captured.out)) == 2 + 26


def test_the_ratios_are_of_real_runs(kernel, device, generator, monkeypatch):
    if device.type != "cpu":
        pytest.skip("the CPU's operators")
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1 << 16)
    monkeypatch.setattr(cpu_ratios, "N", 64)
    monkeypatch.setattr(cpu_ratios, "K", 96)
    times = cpu_ratios.gemm(kernel, 3, generator)
    assert set(times) == {"read", "copy", "skinny_gemm", "linear float32", "linear bfloat16", "floor"}
    assert min(times.values()) > 0
    monkeypatch.setattr(cpu_ratios, "K", 256)
    times = cpu_ratios.block_scaled(kernel, 3, generator)
    assert set(times) == {"read", "copy", "block_scaled_gemm", "linear float32", "dequantise, linear", "floor"}
    assert min(times.values()) > 0
    monkeypatch.setattr(cpu_ratios, "LAYER", (6, 2, 192, 160))
    for tokens in (1, 5):
        times = cpu_ratios.experts(kernel, tokens, generator)
        assert set(times) == {"read", "copy", "fused_moe", "loop float32", "floor"}
        assert min(times.values()) > 0
    monkeypatch.setattr(cpu_ratios, "MX_SIZE", 64)
    monkeypatch.setattr(cpu_ratios, "MIXTURE", replace(cpu_ratios.MIXTURE, experts=8, d=96, hidden=64))
    of_experts = [cpu_ratios.mx_experts(kernel, tokens, generator) for tokens in (1, 20)]
    for times in (cpu_ratios.mx(kernel, 3, generator), *of_experts):
        assert set(times) - {"linear bfloat16"} == {"read", "copy", "MXFP4", "floor"} and min(times.values()) > 0


@pytest.mark.parametrize("operator_ns, floor", [(5.0, 5.0), (20.0, 10.0)], ids=["beats-the-probe", "slower"])
def test_no_operator_beats_its_floor(monkeypatch, operator_ns, floor):
    """Memory is twice as slow in some rounds; the probe reads 100 bytes in 10 ns, the operator 100 in `operator_ns`."""
    now, rounds = [0.0], []

    def takes(ns: float):
        def run(i: int) -> None:
            now[0] += ns * (2 if i % 3 == 2 else 1)
            rounds.append(i)

        return run

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    cases = {"read": takes(10.0), "skinny_gemm": takes(operator_ns)}
    times = cpu_ratios.medians(cases, {"read": 100, "skinny_gemm": 100}, "skinny_gemm")
    assert times == {"read": 10.0, "skinny_gemm": operator_ns, "floor": floor}
    # Round by round: at the probe's best rate alone a round on slow memory would count as slow kernel.
    halves = [(100, [10.0, 20.0, 20.0]), (100, [12.5, 25.0, 25.0])]
    assert timing.floor(100, halves) == 20.0 and timing.floor(100, halves, known_rate=10.0) == 10.0
