"""Tuning of skinny_gemm on ROCm without a GPU: the header it reads, the header it writes, what it finds best."""

import dataclasses
import itertools
import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import tune as command
from benchmarks.harness import gpu_timing, shapes
from benchmarks.harness import tuned_header as header
from benchmarks.harness.gpu_cases import CONFIG_VARIABLE
from benchmarks.harness.tuned_header import Config, Entry, HeaderError, cxx_compiler

TUNED = header.TUNED.read_text()
MI300X, MI350 = "AMD Instinct MI300X (gfx942), 2026-01-02, commit abc", "AMD Instinct MI350X (gfx950), 2026-03-04"
ENTRIES = [
    Entry(0, 8, 2304, 16384, "s8x32", 4, MI300X),
    Entry(0, 32, 2304, 16384, "s32x16", 2, MI300X),
    Entry(1, 8, 2304, 16384, "s8x16", 1, MI350),
]


# --- the headers ---


def test_the_table_serves_every_row_class():
    table = header.stream_table()
    assert len(table.shapes) >= 6 and {shape["rows"] for shape in table.shapes} == set(header.ROW_CLASSES)
    assert all(value > 0 for shape in table.shapes for field, value in shape.items() if field != "name")


def test_what_the_model_picks_is_allowed():
    table = header.stream_table()
    sizes = [(n, k) for model in shapes.MODELS for n, k in model.linears.values()]
    # A few columns and a long k, where it splits; more columns than may be split; a k that is just long enough.
    sizes += [(16, 65536), (128, 16384), (70000, 4096), (64, 1024), (64, 2048)]
    keys = [(arch, rows, n, k) for arch in (0, 1) for rows in header.ROW_CLASSES for n, k in sizes]
    split, rows_of = 0, {shape["name"]: shape["rows"] for shape in table.shapes}
    for (_, rows, n, k), picked in zip(keys, header.picks(TUNED, keys), strict=True):
        allowed = table.allowed(rows, n, k)
        assert table.takes(k) and picked in allowed and len(set(allowed)) == len(allowed)
        assert {rows_of[config.form] for config in allowed} == {rows}
        split += picked.split > 1
    assert split, "no size here makes the model split k: the test says nothing about splits"
    # 70000 columns: more than 1024 tiles even of four times 16.
    assert {config.split for config in table.allowed(8, 70000, 4096)} == {1}
    assert {config.split for config in table.allowed(8, 64, 4096)} == set(range(1, 9))
    assert not table.takes(4104) and table.takes(1008) and table.takes(16)


def test_the_files_own_text_comes_back():
    assert header.render(TUNED, header.parse_entries(TUNED)) == TUNED


def test_entries_come_back(tmp_path):
    text = header.render(TUNED, reversed(ENTRIES))
    assert header.parse_entries(text) == ENTRIES
    assert header.render(text, header.parse_entries(text)) == text and header.render(text, []) == header.render(
        TUNED, []
    )
    assert [text.count(f"// {measured}\n") for measured in (MI300X, MI350)] == [1, 1]
    bare = [dataclasses.replace(entry, measured="") for entry in ENTRIES[:1]]
    mixed = header.render(TUNED, [*ENTRIES[1:], *bare])
    assert header.parse_entries(mixed) == [*bare, *ENTRIES[1:]]
    written = tmp_path / header.TUNED.name
    written.write_text(text)
    command = [
        cxx_compiler(),
        "-std=c++20",
        "-Wall",
        "-Werror",
        "-fsyntax-only",
        "-include",
        written,
        "-xc++",
        "/dev/null",
    ]
    subprocess.run(command, check=True)


def test_pick_config_answers_the_entries():
    keys = [(0, 1, 2304, 16384), (0, 8, 2304, 16384), (0, 17, 2304, 16384), (1, 8, 2304, 16384)]
    assert header.picks(header.render(TUNED, ENTRIES), keys) == [
        Config("s8x32", 4),
        Config("s8x32", 4),
        Config("s32x16", 2),
        Config("s8x16"),
    ]
    # Of a class of rows and a size without an entry the model decides, as before.
    others = [(0, 16, 2304, 16384), (1, 32, 2304, 16384), (0, 8, 2304, 8192)]
    assert header.picks(header.render(TUNED, ENTRIES), others) == header.picks(header.render(TUNED, []), others)


def test_foreign_entries_stay():
    new = [Entry(0, 8, 2304, 16384, "s8x16", 1, "today"), Entry(0, 16, 4096, 4096, "s32x32", 1, "today")]
    assert sorted(header.merged(ENTRIES, new), key=lambda e: e.key) == [new[0], new[1], ENTRIES[1], ENTRIES[2]]


def test_a_header_that_is_not_right_is_not_written(tmp_path):
    path = tmp_path / header.TUNED.name
    path.write_text("the old text")
    good = header.render(TUNED, ENTRIES)
    one_more = good.replace(
        '    {0, 8, 2304, 16384, "s8x32", 4},',
        '    {0, 8, 2304, 16384, "s8x16", 2},\n    {0, 8, 2304, 16384, "s8x32", 4},',
    )
    for text, message in (
        (good.replace("const char* form;", ""), "does not compile"),
        (one_more, "pick_config answers"),  # the first of two entries wins
        (good.replace('"s32x16", 2},', '"s32x16"},'), "neither an entry nor a comment"),
        (good.replace('"s32x16"', '"s32x17"'), "no form is called s32x17"),
        ("// no table", "holds no"),
    ):
        with pytest.raises(HeaderError, match=message):
            header.write(path, text)
        assert path.read_text() == "the old text" and [file.name for file in tmp_path.iterdir()] == [path.name]
    header.write(path, good)
    assert path.read_text() == good and [file.name for file in tmp_path.iterdir()] == [path.name]


# --- the sweep ---

SIZE = (64, 4096)


@pytest.fixture
def tuned(tmp_path, flow, monkeypatch) -> Path:
    path = tmp_path / header.TUNED.name
    path.write_text(header.render(TUNED, ENTRIES))
    monkeypatch.setattr(header, "TUNED", path)
    return path


def tune(*options: str) -> int:
    return command.main(["skinny_gemm", "--quick", "--size", f"{SIZE[0]}x{SIZE[1]}", *options])


# Of the table's shapes each class's second, with two splits.
BEST = {8: Config("s8x32", 2), 16: Config("s16x32", 2), 32: Config("s32x32", 2)}


def best_is_fastest(kind, config, launch) -> float:
    return 5.0 if config in map(str, BEST.values()) else 10.0


def test_the_fastest_configurations_are_written(tuned, flow, capsys):
    flow.us = best_is_fastest
    assert tune() == 0
    entries = header.parse_entries(tuned.read_text())
    assert [entry for entry in entries if (entry.n, entry.k) != SIZE] == ENTRIES
    new = {entry.rows: entry for entry in entries if (entry.n, entry.k) == SIZE}
    assert {rows: entry.config for rows, entry in new.items()} == BEST
    assert {entry.arch for entry in new.values()} == {0}
    assert {entry.measured for entry in new.values()} == {"Some GPU (gfx942), 2026-11-21, commit 0123456789ab"}
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 8, 64 x 4096 |")]
    assert len(rows) == 1 and re.fullmatch(
        r"\| 8, 64 x 4096 \| s8x\S+ \| 10.00 \| 0.00 \| s8x32,split=2 \| 5.00 \| 0.00 \| 100.0% \|", rows[0]
    )


def test_a_dry_run_writes_nothing(tuned, flow, capsys):
    flow.us = best_is_fastest
    before = tuned.read_text()
    assert tune("--dry-run") == 0
    assert tuned.read_text() == before and '{0, 8, 64, 4096, "s8x32", 2},' in capsys.readouterr().out


def test_within_the_spread_the_models_choice_stays(tuned, flow):
    # The model's own, not what an earlier run has put in its place.
    tuned.write_text(
        header.render(TUNED, [Entry(0, rows, *SIZE, BEST[rows].form, BEST[rows].split, "yesterday") for rows in BEST])
    )
    model = header.picks(header.render(TUNED, []), [(0, rows, *SIZE) for rows in header.ROW_CLASSES])
    assert all(picked != best for picked, best in zip(model, BEST.values(), strict=True))
    turn = itertools.count()

    def noisy(kind, config, launch):
        offset = best_is_fastest(kind, config, launch) / 10  # 0.5 or 1.0, in noise of about 4
        return lambda: offset + 9.5 + 4.4 * random.Random(next(turn) // gpu_timing.FEWEST).random()

    flow.us = noisy
    assert tune() == 0
    written = [entry.config for entry in header.parse_entries(tuned.read_text()) if (entry.n, entry.k) == SIZE]
    assert written == model


def test_a_wrong_configuration_is_named_and_not_taken(tuned, flow, cpu, capsys):
    flow.us = best_is_fastest
    original = cpu.kernel.skinny_gemm

    def wrong_at_the_best(*args, **kwargs):
        out = original(*args, **kwargs)
        return out.mul_(1.02) if os.environ[CONFIG_VARIABLE] == "skinny_gemm:s16x32,split=2" else out

    cpu.kernel.skinny_gemm = wrong_at_the_best
    assert tune() == 1
    found = {e.rows: e.config for e in header.parse_entries(tuned.read_text()) if (e.n, e.k) == SIZE}
    assert found[8] == BEST[8] and found[32] == BEST[32] and found[16] != BEST[16]
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "s16x32,split=2" in error and "M=16 64x4096" in error


@pytest.mark.parametrize("size", ["64x520", "64x4100"])
def test_sizes_without_a_use_for_entries_are_refused(tuned, flow, capsys, size):
    before = tuned.read_text()
    assert command.main(["skinny_gemm", "--size", size]) == 1 and tuned.read_text() == before
    assert re.fullmatch(rf"tune.py: {size}: K must be .*\n", capsys.readouterr().err)


def test_another_backend_is_refused(tuned, flow, cpu, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_gpu", lambda: dataclasses.replace(cpu, arch="sm_90"))
    assert tune() == 1
    assert capsys.readouterr().err == "tune.py: no ROCm variant on one of gfx942, gfx950: this is rocm on sm_90\n"
