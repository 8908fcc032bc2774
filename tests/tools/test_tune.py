"""benchmarks/tune.py without a GPU: what it tries, prints and says, on the CPU's operators and a fake clock."""

import dataclasses
import itertools
import json
import os
import types
from pathlib import Path

import pytest

from benchmarks import tune
from benchmarks.harness import clock, forms, gpu_cases, gpu_timing, shapes, sweep
from benchmarks.harness.forms import Config
from tests.settings import needs_rocm_toolchain
from tests.tools.tables import tables

MULTIPROCESSORS = 4
NAMES = forms.form_names("skinny_gemm", "cuda")


def test_a_configuration_reads_as_the_variable_has_it():
    for config in (Config("b96"), Config("b96", 2), Config("fallback"), Config("b96", 1, 7), Config("b96", 3, 7)):
        assert Config.parse(str(config)) == config
    assert str(Config("b96", 2, 64)) == "b96,split=2,pieces=64"
    for wrong in ("", "b96,2", "b96,parts=2", "b96,split=x"):
        with pytest.raises(ValueError):
            Config.parse(wrong)


def test_the_table_of_shapes_is_read():
    assert forms.shapes_for(8) == {1: 32, 3: 48, 5: 64, 6: 80, 7: 96, 8: 112}
    assert forms.shapes_for(16) == {0: 24, 1: 32, 2: 40, 3: 48, 4: 56, 5: 64, 6: 80, 8: 112}
    assert forms.shapes_for(17) == {0: 24, 1: 32, 2: 40, 3: 48, 4: 56, 5: 64, 6: 80, 7: 96, 8: 112, 12: 80}
    assert forms.shapes_for(17, splits=2) == {0: 24, 1: 32, 2: 40, 3: 48, 12: 80}
    assert forms.shapes_for(17, large=True) == {9: 96, 10: 112, 11: 128}
    assert forms.shapes_for(16, large=True) == forms.shapes_for(32, splits=2, large=True) == {}
    assert forms.shapes_for(16, splits=2) == forms.shapes_for(16)


@pytest.mark.parametrize("rows", [1, 16, 32])
@pytest.mark.parametrize("n, k", [(1, 1024), (100, 1024), (4096, 4096), (13312, 16384)])
def test_ways_are_what_the_launcher_takes(rows, n, k):
    found = forms.ways(rows, n, k, 132)
    assert len(set(found)) == len(found) > 1
    numbers = [(NAMES.index(each.form), each.split, each.pieces) for each in found]
    for shape, splits, pieces in numbers:
        large = shape in forms.shapes_for(rows, large=True)
        assert not large or (pieces, splits) == (132, 1)
        able = forms.shapes_for(rows, splits, large)
        assert 1 <= splits <= 8 and -(-n // able[shape]) <= pieces <= n
        assert all(columns >= able[shape] for columns in able.values() if columns * pieces >= n), (
            "a narrower one would do"
        )
    # Full tiles; two blocks a multiprocessor; two with split K.
    assert {pieces for _, splits, pieces in numbers if splits == 1} >= {-(-n // 32), -(-n // 64)}
    wanted = {4096: [9], 13312: [10]}.get(n, []) if rows > 16 else []
    assert [shape for shape, _, _ in numbers if shape in forms.shapes_for(rows, large=True)] == wanted
    shapes = forms.shapes_for(rows)
    assert [shapes[shape] for shape, splits, pieces in numbers if (splits, pieces) == (1, 264)] == (
        {4096: [32 if rows == 1 else 24], 13312: [64 if rows == 1 else 56]}.get(n, [])
    )
    assert any(way[1:] == (2, 132) for way in numbers) == (n == 4096 or (n == 13312 and rows <= 16))


def test_what_the_model_picks_on_rocm_is_tried():
    sizes = [(n, k) for model in shapes.MODELS for n, k in model.linears.values()]
    # A few columns and a long k, where it splits; more columns than may be split; a k that is just long enough.
    sizes += [(16, 65536), (128, 16384), (70000, 4096), (64, 1024), (64, 2048)]
    rows_of = {form["name"]: form["rows"] for form in forms.table("skinny_gemm", "rocm")}
    assert {*rows_of.values()} == {*tune.ROW_CLASSES}
    split = 0
    for rows, (n, k), arch in itertools.product(tune.ROW_CLASSES, sizes, forms.ARCHS):
        allowed, picked = forms.streams(rows, n, k), forms.picked("skinny_gemm", (rows, n, k), arch)
        assert picked in allowed and len(set(allowed)) == len(allowed)
        assert {rows_of[config.form] for config in allowed} == {rows}
        split += picked.split > 1
    assert split, "no size here makes the model split k: the test says nothing about splits"
    # 70000 columns: more than 1024 tiles even of four times 16.
    assert {config.split for config in forms.streams(8, 70000, 4096)} == {1}
    assert {config.split for config in forms.streams(8, 64, 4096)} == set(range(1, 9))


@pytest.fixture
def command(cpu, flow, monkeypatch):
    """The command on CUDA's configurations."""
    monkeypatch.setattr(cpu.kernel, "ops", types.SimpleNamespace(backend=lambda: "cuda"))
    properties = types.SimpleNamespace(multi_processor_count=MULTIPROCESSORS)
    monkeypatch.setattr(tune.torch.cuda, "get_device_properties", lambda device: properties)
    return lambda operator, *options: tune.main([operator, "--quick", *options])


@pytest.fixture
def skinny(command):
    return lambda *options: command("skinny_gemm", "--size", "100x1024", *options)


def test_the_fastest_way_stands_beside_the_own_choice(skinny, flow, capsys):
    flow.us = lambda kind, config, launch: {None: 6.0, "b24,pieces=8": 5.0, "b32,pieces=8": 5.0}.get(config, 10.0)
    assert skinny("--rows", "8", "--rows", "32") == 0
    _, _, *rows = tables(capsys.readouterr().out)
    assert rows == [
        [f"{m}, 100 x 1024", "own", "6.00", "0.00", f"{way},pieces=8", "5.00", "0.00", "20.0%"]
        for m, way in (("8", "b32"), ("32", "b24"))
    ]


def test_nothing_faster(skinny, flow, capsys, tmp_path):
    flow.us = lambda kind, config, launch: 10.0 if config else 4.0
    assert skinny("--rows", "1", "--json", str(tmp_path / "figures.json")) == 0
    _, _, row = tables(capsys.readouterr().out)
    assert row[-4:] == ["own", "4.00", "0.00", "0.0%"]
    (result,) = json.loads((tmp_path / "figures.json").read_text())["results"]
    assert result["picked"] == 4.0 and set(result["times"].values()) == {10.0}
    assert result["times"].keys() == {str(way) for way in forms.ways(1, 100, 1024, MULTIPROCESSORS)}


def test_on_rocm(flow, capsys):
    """Without rows or forms: all of each class of rows."""
    flow.us = lambda kind, config, launch: 5.0 if config and config.endswith("x32,split=2") else 10.0
    assert tune.main(["skinny_gemm", "--quick", "--size", "64x4096"]) == 0
    _, _, *rows = tables(capsys.readouterr().out)
    assert rows == [
        [f"{m}, 64 x 4096", "own", "10.00", "0.00", f"s{m}x32,split=2", "5.00", "0.00", "100.0%"]
        for m in tune.ROW_CLASSES
    ]


def test_a_gpu_without_a_variant_is_refused(flow, cpu, monkeypatch, capsys):
    monkeypatch.setattr(tune, "find_gpu", lambda: dataclasses.replace(cpu, arch="sm_90"))
    assert tune.main(["skinny_gemm", "--quick"]) == 1
    assert capsys.readouterr().err == "tune.py: no ROCm variant on one of gfx942, gfx950: this is rocm on sm_90\n"


def test_what_is_far_from_the_fastest_is_timed_once(skinny, flow, monkeypatch):
    flow.us = lambda kind, config, launch: 10.0 if config else 4.0
    timed, original = [], gpu_timing.measure

    def measure(cases, effort):
        timed.append(list(cases))
        return original(cases, effort)

    monkeypatch.setattr(gpu_timing, "measure", measure)
    assert skinny("--rows", "1") == 0
    *alone, together = timed
    assert together == [None] and len(alone) == 1 + len(forms.ways(1, 100, 1024, MULTIPROCESSORS))


def test_a_wrong_way_is_named(skinny, cpu, capsys):
    original = cpu.kernel.skinny_gemm

    def wrong_somewhere(*args, **kwargs):
        out = original(*args, **kwargs)
        forced = os.environ.get(gpu_cases.CONFIG_VARIABLE)
        return out.mul_(1.02) if forced == "skinny_gemm:b32,split=2,pieces=4" else out

    cpu.kernel.skinny_gemm = wrong_somewhere
    assert skinny("--rows", "1") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "b32,split=2,pieces=4" in error and "M=1 100x1024" in error


@pytest.mark.parametrize("operator", ["block_scaled_gemm", "int8_gemm"])
def test_every_form_of_the_large_gemms_is_tried(command, cpu, flow, capsys, tmp_path, operator):
    """Where one is refused, no more parts of it are."""
    names, original = forms.form_names(operator, "cuda"), getattr(cpu.kernel, operator)
    refused, best = names[0], f"{names[1]},split=2"

    def refuse(*args, **kwargs):
        if os.environ.get(gpu_cases.CONFIG_VARIABLE, "").startswith(f"{operator}:{refused},split=2"):
            raise RuntimeError(f"ROCM_FP8_KERNELS_CONFIG {forms.UNFIT}")
        return original(*args, **kwargs)

    setattr(cpu.kernel, operator, refuse)
    flow.us = lambda kind, config, launch: 5.0 if config == best else 10.0
    size = ("--size", "64x512", "--rows", "200")
    assert command(operator, *size, "--random", "1", "--seed", "7", "--json", str(tmp_path / "figures.json")) == 0
    captured = capsys.readouterr()
    assert tables(captured.out)[2][3:6] == ["0.00", best, "5.00"] and not captured.err
    first, drawn = json.loads((tmp_path / "figures.json").read_text())["results"]
    assert set(first["times"]) == {
        "fallback", refused, *(str(Config(name, split)) for name in names[1:] for split in (1, 2, 3, 4))
    }  # fmt: skip
    assert drawn["size"][1] % 16 == drawn["size"][2] % 16 == 0
    # Of few rows also pieces, where the form itself is near the fastest.
    assert command(operator, "--size", "64x512", "--rows", "4", "--form", names[1]) == 0
    assert "pieces" not in capsys.readouterr().err


def test_pieces_of_few_rows_are_tried_near_the_fastest():
    us: dict[Config, float] = {}
    tried = []
    for config in forms.explored("int8_gemm", "cuda", (4, 256, 256), us):
        tried.append(config)
        if config.pieces != 8:  # 32 columns
            us[config] = 10.0 if config.split == 1 else 100.0
    name = forms.form_names("int8_gemm", "cuda")[0]
    mine = [(config.split, config.pieces) for config in tried if config.form == name]
    assert mine == [(1, 0), (1, 16), (1, 11), (1, 8), (2, 0)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("skinny_gemm --random 2", "--random: not of skinny_gemm"),
        ("skinny_gemm --rows 33", "--rows 33: not one of 1, 2"),
        ("skinny_gemm --form b31", "--form b31: not one of b24, b32"),
        ("int8_gemm --size 64x64", "--size and --rows of int8_gemm go together"),
        ("int8_gemm --rows 1", "--size and --rows of int8_gemm go together"),
    ],
)
def test_what_does_not_go_together_is_said(command, capsys, arguments, message):
    assert command(*arguments.split()) == 1
    assert capsys.readouterr().err.startswith(f"tune.py: {message}")


@pytest.mark.parametrize("option", ["--quick", "--seed 1", "--iterations 5", "--random 1"])
def test_the_clock_takes_no_option_of_a_gpu(capsys, option):
    with pytest.raises(SystemExit):
        tune.main(["int8_gemm", "--clock", "gfx942", *option.split()])
    assert f"{option.split()[0]} does not go with --clock" in capsys.readouterr().err


@needs_rocm_toolchain
def test_by_the_clock(rocm_variant, capsys, monkeypatch):
    monkeypatch.setattr(sweep, "FAR", 1.0)  # of GPUs alone
    size = (64, 64, 512)
    assert tune.main(["int8_gemm", "--clock", "gfx942", "--size", "64x512", "--rows", "64", "--form", "t64x64"]) == 0
    captured = capsys.readouterr()
    (row,) = tables(captured.out)[2:]
    own = str(forms.picked("int8_gemm", size, "gfx942"))
    assert row[:2] == ["64, 64 x 512", own] and row[3] == row[6] == "-" and not captured.err
    best = clock.estimated(tune.SimulatedRocm.built(), "int8_gemm", size, "gfx942", Config.parse(row[4]))
    assert f"{1e6 * best.seconds:.2f}" == row[5] and float(row[5]) <= float(row[2])


def test_the_launchers_refuse_in_the_words_that_the_sweep_knows():
    text = (Path(__file__).parents[2] / "common" / "forced.h").read_text()
    assert forms.UNFIT in text
