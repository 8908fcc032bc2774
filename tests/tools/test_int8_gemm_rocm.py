"""benchmarks/int8_gemm_rocm.py: CK's tiles, and the table of SmoothQuant's linear with times of CK that are made up."""

import re

import pytest

from benchmarks import int8_gemm_rocm
from benchmarks.harness import ck_smoothquant
from tests.settings import needs_rocm_toolchain

M, N, K = 32, 192, 512


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
        f"{ck_smoothquant.ARTICLE.name}, D copied: {name}": 3e-3,
        f"256x64x64x128 v3: {name}": 1e-3,
        f"128x32x64x128 v2: {name}": 2e-3,
        f"256x64x64x128 v3: 1{name}": 1e-9,  # of another shape
    }
    monkeypatch.setattr(int8_gemm_rocm, "ck_estimates", lambda ck: times)
    monkeypatch.setattr("sys.argv", ["int8_gemm_rocm.py", "--smoothquant", "--only", name, "--config", "4,2"])
    int8_gemm_rocm.main()
    head, rule, line, *ratios = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|") == line.count("|")
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    us = float(cells[2])
    assert cells[:2] == [name, "4,2"] and cells[4:] == ["3000.0", "1000.0", "256x64x64x128 v3"] and 1 < us < 100
    assert len(ratios) == 2
    for text, time in zip(ratios, (3000, 1000)):
        mean, least = map(float, re.search(r"([\d.]+), least ([\d.]+)$", text).groups())
        assert mean == least == pytest.approx(time / us, rel=0.01)
