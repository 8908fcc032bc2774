"""benchmarks/simulated_gemms.py: CK's tiles, and the table of SmoothQuant's linear with made-up times of CK."""

import re

import pytest

from benchmarks import simulated_gemms
from benchmarks.harness import ck_smoothquant
from benchmarks.harness.forms import form_names
from tests.settings import needs_rocm_toolchain

M, N, K = 32, 192, 512
CONFIG = f"{form_names('int8_gemm', 'rocm')[4]},split=2"


@pytest.mark.parametrize("instance", ck_smoothquant.INSTANCES, ids=lambda each: each.name)
def test_the_threads_cover_the_tile(instance):
    macros = dict(flag[len("-DPEER_") :].split("=", 1) for flag in instance.library().flags if "-DPEER_" in flag)
    threads, rows, columns, k, *_, down, across = map(int, macros["TILE"].split(","))
    assert down * across * threads // 64 * 32 * 32 == rows * columns
    beside, lines = map(int, re.match(r"S<(\d+), (\d+), 1>", macros["A"]).groups())
    assert beside * lines == threads and beside * 16 == k and rows % lines == columns % lines == 0
    # One pass of the results through LDS: a subtile of each wave.
    one, down_once, two, lanes = map(int, re.search(r"S<(\d+), (\d+), (\d+), (\d+)>", macros["SHUFFLE"]).groups())
    assert one == two == 1 and down_once * lanes == threads
    assert (down_once, lanes * 16) == (rows // down, columns // across)
    assert ("PIPELINE" in macros) == bool(instance.pipeline)


def test_a_pair_has_the_articles_copies_of_d_or_one_row():
    article = ck_smoothquant.ARTICLE
    copied, row = (article.pair(M, N, K, broadcast) for broadcast in (False, True))
    assert copied.buffers == (M * K, N * K, M * N, M * N) and copied.sizes == (M, N, K, N)
    assert row.buffers == (M * K, N * K, N, M * N) and row.sizes == (M, N, K, 0)
    assert copied.name != row.name and copied.name.endswith(f" {M}x{N}x{K}")


@needs_rocm_toolchain
def test_the_table_beside_ck(rocm_variant, capsys, monkeypatch):
    name = f"{M}x{N}x{K}"
    times = {
        f"{ck_smoothquant.ARTICLE.name}, D copied: {name}": 3000.0,
        f"256x64x64x128 v3: {name}": 1000.0,
        f"128x32x64x128 v2: {name}": 2000.0,
        f"256x64x64x128 v3: 1{name}": 1e-3,  # of another shape
    }
    monkeypatch.setattr(simulated_gemms, "ck_estimates", lambda *_: times)
    monkeypatch.setattr("sys.argv", ["simulated_gemms.py", "linear_abde_i8", "--only", name, "--config", CONFIG])
    simulated_gemms.main()
    head, rule, line, *ratios = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|") == line.count("|")
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    us = float(cells[2])
    assert cells[:2] == [name, CONFIG] and 1 < us < 100
    assert cells[4:6] + cells[7:9] == ["3000.0", "256x64x64x64, D copied", "1000.0", "256x64x64x128 v3"]
    assert len(ratios) == 2
    for text, time in zip(ratios, (3000, 1000)):
        mean, least = map(float, re.search(r"([\d.]+), least ([\d.]+)$", text).groups())
        assert mean == pytest.approx(least, abs=0.006) and mean == pytest.approx(time / us, rel=0.01)
