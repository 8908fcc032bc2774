"""benchmarks/gpu_builds.py without a GPU: builds side by side, on the CPU's operators and a fake clock."""

import types
from pathlib import Path

import pytest

from benchmarks import gpu_builds
from benchmarks.harness import gpu_environment
from benchmarks.harness.gpu_environment import Missing
from tests.settings import ROOT
from tests.tools.tables import tables


@pytest.fixture
def before(cpu, flow, monkeypatch) -> types.SimpleNamespace:
    """Another build: this one's operators, to be changed. Its launches take 12 microseconds, this one's 10."""
    other = types.SimpleNamespace(**vars(cpu.kernel))
    operators = ("skinny_gemm", "add_rms_norm_fp8", "swiglu_fp8")
    for name in operators:
        original = getattr(cpu.kernel, name)

        def slower(*args, original=original, **kwargs):
            return original(*args, **kwargs)

        slower.__name__ = name
        setattr(other, name, slower)

    def build_of(launch) -> types.SimpleNamespace:
        case = launch.__self__
        if hasattr(case, "kernel"):
            return case.kernel
        return other if case.function is getattr(other, case.function.__name__) else cpu.kernel

    flow.us = lambda kind, config, launch: 12.0 if build_of(launch) is other else 10.0
    monkeypatch.setattr(gpu_environment, "load_build", lambda folder, backend: other)
    return other


def compare(*options: str) -> int:
    return gpu_builds.main(["../before", "--quick", *options])


def test_a_slower_build_of_the_same_bits(before, capsys):
    assert compare("--only", "skinny_gemm", "--size", "100x1024", "--rows", "1", "--rows", "17") == 0
    header, _, *rows = tables(capsys.readouterr().out)
    assert header == ["M, N x K", "now", "±", "before", "±", "gain", "same bits"]
    assert rows == [[f"{m}, 100 x 1024", "10.00", "0.00", "12.00", "0.00", "20.0%", "yes"] for m in (1, 17)]


@pytest.mark.parametrize("operator", ["add_rms_norm_fp8", "swiglu_fp8"])
def test_operators_of_rows(before, capsys, operator):
    assert compare("--only", operator, "--rows", "5") == 0
    assert tables(capsys.readouterr().out)[2:] == [["5", "10.00", "0.00", "12.00", "0.00", "20.0%", "yes"]]


def test_builds_get_the_same_residual(before, monkeypatch, capsys):
    """Though a launch, such as those that come before a recording, updates it."""
    original = gpu_builds.gpu_timing.record

    def record(launch, count):
        launch(0)
        return original(launch, count)

    monkeypatch.setattr(gpu_builds.gpu_timing, "record", record)
    assert compare("--only", "add_rms_norm_fp8", "--rows", "5") == 0
    assert tables(capsys.readouterr().out)[2][-1] == "yes"


def test_more_rows_than_skinny_gemm_takes_are_for_the_others(before, capsys):
    assert compare("--size", "100x1024", "--rows", "2", "--rows", "40") == 0
    shown = [row[0] for row in tables(capsys.readouterr().out)]
    assert [name for name in shown if name[0].isdigit()] == ["2", "40", "2", "40", "2, 100 x 1024"]


def test_other_bits_are_said_to_be(before, cpu, capsys):
    original = before.skinny_gemm

    def in_another_order(a, *args, **kwargs):
        out = original(a, *args, **kwargs)
        # Sums of integers are exact in any order.
        return out if bool((a.float() % 1 == 0).all()) else out.mul_(1.01)

    before.skinny_gemm = in_another_order
    assert compare("--only", "skinny_gemm", "--size", "100x1024", "--rows", "1") == 0
    assert tables(capsys.readouterr().out)[2][-1] == "no"


def test_a_wrong_build_is_named_and_not_timed(before, capsys):
    original = before.skinny_gemm
    before.skinny_gemm = lambda *args, **kwargs: original(*args, **kwargs).mul_(1.02)
    assert compare("--only", "skinny_gemm", "--size", "100x1024", "--rows", "1") == 1
    printed = capsys.readouterr()
    assert tables(printed.out)[2] == ["1, 100 x 1024", "10.00", "0.00", "-", "-", "-", "-"]
    assert printed.err.count("\n") == 1 and "left out" in printed.err and ", before: " in printed.err


def test_nothing_is_compared_with_a_wrong_one(before, cpu, capsys):
    original = cpu.kernel.skinny_gemm
    cpu.kernel.skinny_gemm = lambda *args, **kwargs: original(*args, **kwargs).mul_(1.02)
    assert compare("--only", "skinny_gemm", "--size", "100x1024", "--rows", "1") == 1
    printed = capsys.readouterr()
    assert tables(printed.out)[2] == ["1, 100 x 1024", *["-"] * 6]
    assert printed.err.count("\n") == 1 and ", now: " in printed.err


def test_builds_of_one_name(before, capsys):
    assert gpu_builds.main(["a/before", "b/before"]) == 1
    assert gpu_builds.main(["a/now"]) == 1
    assert capsys.readouterr().err.count("tell them apart") == 2


def test_a_build_is_loaded_from_its_folder(kernel, device):
    if device.type != "cpu":
        pytest.skip("the CPU's build is looked for")
    loaded = gpu_environment.load_build(ROOT, "cpu")
    assert Path(loaded.__file__).is_relative_to(ROOT / "build") and callable(loaded.skinny_gemm)


def test_no_build(tmp_path):
    with pytest.raises(Missing, match=str(tmp_path)):
        gpu_environment.load_build(tmp_path, "cpu")
